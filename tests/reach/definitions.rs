//! Ways that lead on from what a transaction defines, and definitions of other sessions: before their transactions end,
//! and after that for as long as the proxy has not read them.

use super::support::fenced::{Fenced, code, code_in, ok};
use super::support::message::{bind_text, execute, flush, parse, query, sync};
use super::support::{DEADLINE, Wire, wait_until};

const SCHEMA: &str = "
    CREATE TABLE ticks (id int, name text);
    CREATE TABLE inbox (id int);
    CREATE TABLE free (id int);
    CREATE VIEW inbox_view AS SELECT * FROM inbox;
    CREATE TABLE source (id int PRIMARY KEY);
    CREATE TABLE middle (id int REFERENCES source ON DELETE CASCADE);
    INSERT INTO source VALUES (1); INSERT INTO middle VALUES (1);
    CREATE TABLE parts (id int, name text) PARTITION BY LIST (id);
    CREATE VIEW parts_view AS SELECT * FROM parts";
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
            ("LF004", "Commit the definitions before you write to what they made."),
            "{write}"
        );
        ok(&mut stranger, "ROLLBACK");
        assert_eq!(code(&mut stranger, &format!("{define}; {write}")), "LF004", "{write}");
    }
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// The transaction is over, and the session goes on without a word that it is.
#[test]
fn what_was_committed_counts_before_its_session_is_idle() {
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
        wait_until("it is no more than a way", DEADLINE, || code(&mut stranger, WRITE) == "LF002");
        ok(&mut fenced.holder(1), WRITE);
        assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "1", "{way}");
    }
}

const RULES: &str = "SELECT count(*) FROM pg_rewrite WHERE rulename = 'r'";

/// A chain that has defined nothing yet holds up nobody, nor itself.
#[test]
fn after_commit_and_chain_it_is_known() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    for sql in ["BEGIN", RULE, "COMMIT AND CHAIN", "INSERT INTO free VALUES (1)"] {
        ok(&mut author, sql);
    }
    assert_eq!(code(&mut fenced.login(), WRITE), "LF002");
}

/// It would wait for the lock, and then do what it was not judged for.
#[test]
fn a_write_to_what_another_session_defines_is_opaque() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut stranger) = (fenced.login(), fenced.login());
    ok(&mut author, &format!("BEGIN; {RULE}"));
    let error = stranger.rows(WRITE).expect_err("it waits for the rule");
    assert_eq!((error.code(), error.hint()), ("LF004", "Try again when that session has ended its transaction."));
    for sql in ["INSERT INTO free VALUES (1)", "SELECT * FROM ticks", "DELETE FROM source"] {
        ok(&mut stranger, sql);
    }
    ok(&mut author, "ROLLBACK");
    ok(&mut stranger, WRITE);
    // Nor does who is gone hold up anybody.
    ok(&mut author, &format!("BEGIN; {RULE}"));
    drop(author);
    wait_until("nobody defines anything", DEADLINE, || code(&mut stranger, WRITE).is_empty());
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM ticks"), "0");
}

/// It is harmless when it is judged, and leads to a fenced table when it is done.
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

/// Sessions that make and drop tables and views all the time, and one whose views lead to the fenced table, keep nobody
/// from writing elsewhere.
#[test]
fn a_storm_of_definitions_stops_nobody() {
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

#[test]
fn definitions_do_not_leave_by_two_phase_commit() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    ok(&mut author, &format!("BEGIN; {RULE}"));
    assert_eq!(code(&mut author, "PREPARE TRANSACTION 'x'"), "LF004");
    assert_eq!(code_in(&author.exchange(&sync())), "");
}
