//! Paths through a transaction's own definitions, and definitions of other sessions: during their transactions, and
//! until the proxy has read them.

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, execute, flush, parse, query, sync};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Wire, wait_until};

const SCHEMA: &str = "
    CREATE TABLE ticks (id int, name text);
    CREATE TABLE inbox (id int);
    CREATE TABLE free (id int);
    CREATE VIEW inbox_view AS SELECT * FROM inbox;
    CREATE TABLE source (id int PRIMARY KEY);
    CREATE TABLE middle (id int REFERENCES source ON DELETE CASCADE);
    INSERT INTO source VALUES (1); INSERT INTO middle VALUES (1);
    CREATE TABLE parts (id int, name text) PARTITION BY LIST (id);
    CREATE VIEW parts_view AS SELECT * FROM parts;
    CREATE TABLE base (id int, name text);
    CREATE TABLE spare (id int, name text);
    CREATE VIEW moved AS SELECT * FROM spare";
const POLICY: &str = "version: 1
resources:
  - name: scheduler
    tables: [{name: public.ticks, operations: [insert, update, delete, truncate]}]
";
const RULE: &str = "CREATE RULE r AS ON INSERT TO inbox DO ALSO INSERT INTO ticks VALUES (NEW.id, 'x')";
const WRITE: &str = "INSERT INTO inbox VALUES (1)";

#[test]
fn relations_that_lead_to_a_definition_count_in_its_transaction() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for (define, write) in [
        (RULE, "INSERT INTO inbox_view VALUES (77)"),
        ("CREATE RULE r AS ON DELETE TO middle DO ALSO INSERT INTO ticks VALUES (OLD.id, 'x')", "DELETE FROM source"),
        ("ALTER TABLE parts ATTACH PARTITION ticks DEFAULT", "INSERT INTO parts_view VALUES (1, 'x')"),
    ] {
        let mut stranger = fenced.login();
        ok(&mut stranger, &format!("BEGIN; {define}"));
        let error = stranger.rows(write).expect_err(write);
        assert_eq!(
            (error.code(), error.hint()),
            ("LF004", "Commit the definitions before you write to the relations that they change."),
            "{write}"
        );
        ok(&mut stranger, "ROLLBACK");
        assert_eq!(code(&mut stranger, &format!("{define}; {write}")), "LF004", "{write}");
    }
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// The transaction has ended, but the session continues without reporting that it is idle.
#[test]
fn committed_definitions_count_before_their_session_is_idle() {
    type Commit = fn(&mut Wire);
    let ways: [(&str, Commit); 3] = [
        ("COMMIT AND CHAIN", |wire| {
            for sql in ["BEGIN", RULE, "COMMIT AND CHAIN"] {
                ok(wire, sql);
            }
        }),
        ("one string", |wire| wire.send(&query(&format!("BEGIN; {RULE}; COMMIT; SELECT pg_sleep(4)")))),
        ("no Sync", |wire| {
            let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0)].concat();
            wire.send(&[run("BEGIN"), run(RULE), run("COMMIT"), flush()].concat());
        }),
    ];
    for (way, commit) in ways {
        let fenced = Fenced::start(SCHEMA, POLICY);
        let (mut author, mut stranger) = (fenced.login(), fenced.login());
        ok(&mut stranger, "INSERT INTO free VALUES (1)");
        commit(&mut author);
        wait_until("the rule is committed", DEADLINE, || fenced.postgres.value(RULES) == "1");
        assert!(["LF002", "LF004"].contains(&&*code(&mut stranger, WRITE)), "{way}");
        ok(&mut stranger, "INSERT INTO free VALUES (1)");
        drop(author);
        wait_until("the rule is known", DEADLINE, || code(&mut stranger, WRITE) == "LF002");
        ok(&mut fenced.holder(1), WRITE);
        assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "1", "{way}");
    }
}

/// The proxy queries the setting within the pipeline. The error undoes it, and the server reports nothing.
#[test]
fn a_string_syntax_that_a_failed_pipeline_has_set_does_not_hide_a_write() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let hidden = r"SELECT '\'; INSERT INTO ticks VALUES (1); --'";
    let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0)].concat();
    let mut stranger = fenced.login();
    let pipeline = [run("SET standard_conforming_strings = off"), run(hidden), run("SELECT 1 / 0"), sync()].concat();
    assert_eq!(code_in(&stranger.exchange(&pipeline)), "22012");
    assert_eq!(code(&mut stranger, hidden), "LF002");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// A setting is undone while the server owes replies, by the end of a transaction or by an error. The server reports nothing
/// until it has read the next text.
#[test]
fn a_setting_that_an_owed_message_undoes_does_not_hide_a_write() {
    const OFF: &str = "SET LOCAL standard_conforming_strings = off";
    let fenced = Fenced::start(&format!("{SCHEMA}; CREATE SCHEMA other; INSERT INTO ticks VALUES (1)"), POLICY);
    // Sends two parts at once. The server answers each with ReadyForQuery.
    let has_not_written = |stranger: &mut Wire, parts: [&[u8]; 2]| {
        stranger.send(&parts.concat());
        let replies = parts.map(|_| stranger.read_until_ready());
        assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "1", "{replies:?}");
    };
    let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0)].concat();
    let escaped = |sql| [run(sql), parse("escaped", r"SELECT 'a\\b'", &[])].concat();
    let hidden = r"SELECT '\'; INSERT INTO ticks VALUES (1); --'";
    let hidden_in_one =
        r"WITH x AS (SELECT '\'), y AS (INSERT INTO ticks VALUES (1) RETURNING 1) SELECT 1 --') SELECT 2";
    let write = "INSERT INTO ticks VALUES (1)";
    let run_and_sync = |sql| [run(sql), sync()].concat();
    for failing in [query("DEALLOCATE nosuch"), query("SHOW nosuch"), [parse("", "nonsense", &[]), sync()].concat()] {
        let mut stranger = fenced.login();
        ok(&mut stranger, "BEGIN");
        ok(&mut stranger, "SET standard_conforming_strings = off");
        has_not_written(&mut stranger, [&failing, &query(&format!("ROLLBACK; {hidden}"))]);
    }
    for (first, second) in [
        (escaped(OFF), run_and_sync(hidden_in_one)),
        (escaped(OFF), query(hidden)),
        ([escaped(OFF), run("DEALLOCATE nosuch")].concat(), run_and_sync(hidden_in_one)),
        (escaped("SET LOCAL search_path = other"), run_and_sync(write)),
        (escaped("SET LOCAL search_path = other"), query("TRUNCATE ticks")),
    ] {
        has_not_written(&mut fenced.login(), [&[first, sync()].concat(), &second]);
    }
    // The transaction ends within a pipeline.
    let pipeline = [run("BEGIN"), escaped(OFF), run("COMMIT"), run(hidden_in_one), sync()].concat();
    has_not_written(&mut fenced.login(), [&pipeline, &sync()]);
}

/// Each Sync ends a transaction. Drivers send the next one before the reply.
#[test]
fn definitions_of_an_earlier_pipeline_count_no_longer() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat();
    let mut author = fenced.login();
    author.send(&[run("CREATE VIEW over AS SELECT * FROM ticks"), run("INSERT INTO free VALUES (1)")].concat());
    for _ in 0..2 {
        let frames = author.read_until_ready();
        assert!(error_in(&frames).is_none(), "{frames:?}");
    }
    assert_eq!(code(&mut author, "INSERT INTO over VALUES (1)"), "LF002");
}

const RULES: &str = "SELECT count(*) FROM pg_rewrite WHERE rulename = 'r'";

/// A chained transaction without definitions blocks neither other sessions nor itself.
#[test]
fn definitions_are_known_after_commit_and_chain() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    for sql in ["BEGIN", RULE, "COMMIT AND CHAIN", "INSERT INTO free VALUES (1)"] {
        ok(&mut author, sql);
    }
    assert_eq!(code(&mut fenced.login(), WRITE), "LF002");
}

/// A role without privileges can create one with the name of a fenced table.
#[test]
fn a_temporary_view_in_an_open_transaction_does_not_count_for_other_sessions() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    for name in ["ticks", "inbox"] {
        ok(&mut author, &format!("BEGIN; CREATE TEMP VIEW {name} AS SELECT * FROM public.ticks"));
        assert_eq!(code(&mut author, &format!("INSERT INTO {name} VALUES (1)")), "LF004");
        ok(&mut author, &format!("ROLLBACK; BEGIN; CREATE TEMP VIEW {name} AS SELECT * FROM public.ticks"));
        for relation in ["ticks", "public.ticks", "inbox", "public.inbox"] {
            ok(&mut fenced.holder(1), &format!("INSERT INTO {relation} VALUES (1)"));
        }
        ok(&mut author, "ROLLBACK");
    }
}

/// The write would wait for the lock and then do more than it was judged for.
#[test]
fn a_write_to_another_sessions_definition_is_opaque() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    ok(&mut author, &format!("BEGIN; {RULE}"));
    let error = stranger.rows(WRITE).expect_err("the rule is pending");
    assert_eq!((error.code(), error.hint()), ("LF004", "Retry when that session has ended its transaction."));
    for sql in ["INSERT INTO free VALUES (1)", "SELECT * FROM ticks", "DELETE FROM source"] {
        ok(&mut stranger, sql);
    }
    ok(&mut author, "ROLLBACK");
    ok(&mut stranger, WRITE);
    // A session that has disconnected does not block others either.
    ok(&mut author, &format!("BEGIN; {RULE}"));
    drop(author);
    wait_until("no definition is pending", DEADLINE, || code(&mut stranger, WRITE).is_empty());
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// The definition is harmless when it is judged but leads to a fenced table when it runs.
#[test]
fn a_definition_that_waited_for_another_is_known() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut waiting) = (fenced.login(), fenced.login());
    ok(&mut author, &format!("BEGIN; {RULE}"));
    let sql = [query("CREATE VIEW later AS TABLE inbox"), query("INSERT INTO later VALUES (1)")];
    waiting.send(&sql[0]);
    wait_until("it waits", DEADLINE, || {
        fenced.postgres.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
    });
    ok(&mut author, "COMMIT");
    assert_eq!(code_in(&waiting.read_until_ready()), "");
    assert_eq!(code_in(&waiting.exchange(&sql[1])), "LF002");
}

/// The server has committed a definition that the proxy does not see. A view based on it counts before the proxy reads
/// it.
#[test]
fn a_definition_beside_one_that_is_committed_unseen_is_known() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    let direct = || Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    let (mut lock, mut reading) = (direct(), direct());
    ok(&mut lock, "SELECT pg_advisory_lock(1)");
    let redefine = "CREATE OR REPLACE VIEW moved AS SELECT * FROM ticks";
    author.send(&query(&format!("BEGIN; {redefine}; COMMIT; SELECT pg_advisory_lock(1)")));
    wait_until("it is committed", DEADLINE, || {
        fenced.postgres.value("SELECT pg_get_viewdef('moved') LIKE '%ticks%'") == "t"
    });
    // The proxy cannot read the catalog until this lock is released.
    ok(&mut reading, "BEGIN; LOCK TABLE pg_inherits");
    ok(&mut stranger, "CREATE VIEW later AS SELECT * FROM moved");
    assert_eq!(code(&mut stranger, "INSERT INTO later VALUES (1, 'x')"), "LF006");
    ok(&mut reading, "ROLLBACK");
    wait_until("it is read", DEADLINE, || code(&mut stranger, "INSERT INTO later VALUES (1, 'x')") == "LF002");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// If an open transaction makes a table part of a path, a view that another session defines on it is pending too.
#[test]
fn a_definition_based_on_another_sessions_definition_is_pending() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut other, mut stranger) = (fenced.login(), fenced.login(), fenced.login());
    ok(&mut author, "BEGIN; ALTER TABLE ticks INHERIT base");
    ok(&mut other, "BEGIN; CREATE OR REPLACE VIEW moved AS SELECT * FROM base");
    let write = "UPDATE moved SET name = 'stale'";
    for wire in [&mut stranger, &mut other] {
        assert_eq!(code(wire, write), "LF004");
    }
    ok(&mut author, "COMMIT");
    assert_eq!(code(&mut stranger, write), "LF004");
    ok(&mut other, "ROLLBACK");
    ok(&mut stranger, write);
}

/// The text of the statement that fires the trigger does not show what the trigger creates.
#[test]
fn a_definition_by_an_event_trigger_is_known() {
    let make = "IF to_regclass('made') IS NOT NULL THEN CREATE VIEW led AS TABLE ticks; END IF";
    let trigger = format!(
        "CREATE FUNCTION lead() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {make}; END $$;
         CREATE EVENT TRIGGER lead ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION lead()"
    );
    let fenced = Fenced::start(&format!("{SCHEMA}; {trigger}"), POLICY);
    let mut stranger = fenced.login();
    for sql in ["CREATE TABLE other (id int)", "CREATE TABLE made (id int)"] {
        ok(&mut stranger, sql);
    }
    assert_eq!(code(&mut stranger, "INSERT INTO led VALUES (1, 'x')"), "LF002");
}

/// The proxy has closed the session, but the server continues to run the string.
#[test]
fn definitions_after_a_disconnect_are_known() {
    let schema = "CREATE VIEW names AS SELECT DISTINCT id, name FROM ticks;
        CREATE FUNCTION add() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO ticks VALUES (NEW.id, NEW.name); RETURN NEW; END $$";
    let fenced = Fenced::start(&format!("{SCHEMA}; {schema}"), POLICY);
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    let mut lock = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    ok(&mut lock, "SELECT pg_advisory_lock(1)");
    let define = "CREATE TRIGGER added INSTEAD OF INSERT ON names FOR EACH ROW EXECUTE FUNCTION add()";
    author.send(&query(&format!("SELECT repeat('x', 100000); SELECT pg_advisory_lock(1); {define}")));
    wait_until("it waits", DEADLINE, || {
        fenced.postgres.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
    });
    // Unread data turns the close into a reset.
    author.byte();
    drop(author);
    fenced.proxy.wait_for_log("connection to the client was lost", DEADLINE);
    ok(&mut lock, "SELECT pg_advisory_unlock(1)");
    // Rolled back, so that no write persists before the proxy knows the trigger.
    wait_until("the proxy knows the trigger", DEADLINE, || {
        let code = code(&mut stranger, "BEGIN; INSERT INTO names VALUES (1, 'x')");
        ok(&mut stranger, "ROLLBACK");
        code == "LF002"
    });
}

/// CALL runs to its end before it returns its row, and a client with a row limit may read no further.
#[test]
fn a_definition_of_a_procedure_counts_before_its_portal_ends() {
    let make = "CREATE PROCEDURE make(INOUT n int) LANGUAGE plpgsql AS 'BEGIN CREATE VIEW made AS TABLE ticks; END'";
    let fenced = Fenced::start(&format!("{SCHEMA}; {make}"), &format!("{POLICY}opaque: allow\n"));
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    ok(&mut stranger, "INSERT INTO free VALUES (1)");
    let call = [parse("", "CALL make(1)", &[]), bind_text("", "", &[]), execute("", 1), sync()].concat();
    assert_eq!(code_in(&author.exchange(&call)), "");
    assert_eq!(code(&mut stranger, "INSERT INTO made VALUES (1, 'x')"), "LF002");
}

#[test]
fn a_definition_of_a_procedure_counts_if_the_procedure_commits_and_fails() {
    let make = "CREATE PROCEDURE make() LANGUAGE plpgsql AS
        'BEGIN CREATE VIEW made AS TABLE ticks; COMMIT; RAISE division_by_zero; END'";
    let fenced = Fenced::start(&format!("{SCHEMA}; {make}"), &format!("{POLICY}opaque: allow\n"));
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    ok(&mut stranger, "INSERT INTO free VALUES (1)");
    assert_eq!(code(&mut author, "CALL make()"), "22012");
    assert_eq!(code(&mut stranger, "INSERT INTO made VALUES (1, 'x')"), "LF002");
}

/// Sessions that constantly create and drop tables and views, and one whose views lead to the fenced table, do not
/// block writes elsewhere.
#[test]
fn many_definitions_block_no_session() {
    const ROUNDS: usize = 40;
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (author, writers) = (fenced.login(), [fenced.login(), fenced.login(), fenced.login(), fenced.login()]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut author = author;
            (0..ROUNDS).for_each(|_| ok(&mut author, "CREATE VIEW led AS TABLE ticks; DROP VIEW led").clear());
        });
        for (number, mut wire) in writers.into_iter().enumerate() {
            scope.spawn(move || {
                let name = format!("made_{number}");
                for _ in 0..ROUNDS {
                    ok(&mut wire, &format!("CREATE TABLE {name} (id int)"));
                    ok(&mut wire, &format!("CREATE VIEW {name}_view AS TABLE {name}"));
                    ok(&mut wire, &format!("INSERT INTO {name}_view VALUES (1)"));
                    ok(&mut wire, &format!("DROP TABLE {name} CASCADE"));
                }
            });
        }
    });
}

/// A leader's write does not wait for catalog readings unless its table has new definitions.
#[test]
fn a_write_to_a_redefined_relation_waits_and_passes() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut leader) = (fenced.holder(1), fenced.holder(1));
    ok(&mut author, "CREATE VIEW led AS TABLE ticks");
    for round in 0..20 {
        ok(&mut author, "CREATE RULE more AS ON DELETE TO ticks DO ALSO INSERT INTO led VALUES (OLD.id, OLD.name)");
        ok(&mut leader, &format!("INSERT INTO ticks VALUES ({round}, 'x')"));
        ok(&mut author, "DROP RULE more ON ticks");
    }
}

#[test]
fn definitions_do_not_leave_by_two_phase_commit() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    ok(&mut author, &format!("BEGIN; {RULE}"));
    assert_eq!(code(&mut author, "PREPARE TRANSACTION 'x'"), "LF004");
    assert_eq!(code_in(&author.exchange(&sync())), "");
}
