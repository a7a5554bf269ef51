//! A new leader that only calls functions. The guard's error tells the proxy which fence to raise.

use super::world::{LEVELS, POLICIES, World, attempt, guard, policy_folder};
use crate::support::commit_order::CommitOrder;
use crate::support::fenced::{code, code_in, ok, value};
use crate::support::postgres::SUPERUSER;
use crate::support::ticks::{self, WRITE, process, refused, session_of, tokens, wait_until_harmless};
use crate::support::wire::{Fields, Frame, error_in};
use crate::support::{DEADLINE, Etcd, Options, Proxy, message, wait_until};

/// Writes that only the guard sees: statements of one leader, each under a separate token.
const UNSEEN: [&str; 6] = [
    "SELECT unnamed()",
    "INSERT INTO inbox VALUES (1)",
    "INSERT INTO outbox VALUES (1)",
    "CALL procedure()",
    "DO $$ BEGIN INSERT INTO ticks (note) VALUES ('do'); END $$",
    "SELECT unnamed(); SELECT 1",
];
/// Number of statements that the proxy resends: single statements that cannot have committed anything before they
/// failed.
const SENT_AGAIN: usize = 3;

const MORE: &str = "
CREATE TABLE runs (id int);
CREATE SEQUENCE tries;
CREATE FUNCTION tried() RETURNS bigint LANGUAGE sql AS 'SELECT last_value FROM tries WHERE is_called';
CREATE FUNCTION counted() RETURNS bigint LANGUAGE plpgsql
    AS 'BEGIN PERFORM nextval(''public.tries''); INSERT INTO public.ticks (note) VALUES (''counted''); RETURN 1; END';
CREATE FUNCTION noticed() RETURNS void LANGUAGE plpgsql
    AS 'BEGIN RAISE NOTICE ''about to write''; PERFORM public.counted(); END';
CREATE FUNCTION third(n int) RETURNS bigint LANGUAGE plpgsql
    AS 'BEGIN RETURN CASE WHEN n = 3 THEN public.counted() ELSE n END; END';
CREATE PROCEDURE halfway() LANGUAGE plpgsql
    AS 'BEGIN INSERT INTO public.runs VALUES (1); COMMIT; PERFORM public.counted(); END';
CREATE FUNCTION forged(resource text, presented bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN PERFORM nextval('public.tries'); RAISE EXCEPTION USING ERRCODE = 'LF004',
        MESSAGE = format('token %s for resource \"%s\" is not in force yet, and the statement does not show that it writes to the resource', presented, resource),
        DETAIL = format('resource=%s presented=%s highest=5', resource, presented), HINT = 'forged'; END $$;
CREATE FUNCTION definer() RETURNS bigint LANGUAGE sql SECURITY DEFINER
    AS 'INSERT INTO public.ticks (note) VALUES (''definer'') RETURNING id';
GRANT ALL ON SEQUENCE tries TO PUBLIC;
";

fn world(name: &str) -> World {
    let world = World::start(name);
    world.postgres.sql(MORE);
    world
}

fn epoch(world: &World) -> String {
    world.postgres.value(
        "SELECT token || CASE WHEN drained THEN '' ELSE '!' END FROM fencegate_state.epoch WHERE resource = 'scheduler'",
    )
}

/// The error, which must report that the fence was raised.
#[track_caller]
fn raised(frames: &[Frame]) -> Fields {
    let error = error_in(frames).expect("an error");
    assert_eq!(error.code(), "LF004", "{error:?}");
    assert!(error.hint().starts_with("The token is now in force"), "{error:?}");
    error
}

fn extended(sql: &str) -> Vec<u8> {
    [
        message::parse("", sql, &[]),
        message::bind_text("", "", &[]),
        message::describe_portal(""),
        message::execute("", 0),
        message::sync(),
    ]
    .concat()
}

#[test]
fn one_statement_of_a_new_leader_passes() {
    let world = world("one_statement_of_a_new_leader_passes");
    let mut token = 5;
    let ways: [fn(&str) -> Vec<u8>; 2] = [message::query, extended];
    for (way, bytes) in ways.iter().enumerate() {
        for sql in &UNSEEN[..SENT_AGAIN] {
            // Its trigger fires at the Sync, when earlier replies have already been sent.
            if way == 1 && sql.contains("outbox") {
                continue;
            }
            token += 1;
            let mut leader = world.session(token);
            let first = leader.exchange(&bytes(sql));
            assert_eq!(error_in(&first), None, "{sql}");
            assert_eq!(epoch(&world), token.to_string(), "{sql}");
            assert_eq!(first, leader.exchange(&bytes(sql)), "{sql}: the client sees nothing of it");
            let tokens = world.postgres.value(&format!("SELECT count(*) FROM ticks WHERE token = {token}"));
            assert_eq!(tokens, "2", "{sql}");
        }
    }
}

/// No effect is lost, and none occurs twice.
#[test]
fn other_statements_are_told_to_retry() {
    let world = world("other_statements_are_told_to_retry");
    for (sql, token) in UNSEEN[SENT_AGAIN..].iter().zip(6..) {
        let mut leader = world.session(token);
        raised(&leader.query(sql));
        assert_eq!(epoch(&world), token.to_string(), "{sql}");
        assert_eq!(code(&mut leader, sql), "", "{sql}");
        assert_eq!(world.postgres.value(&format!("SELECT count(*) FROM ticks WHERE token = {token}")), "1", "{sql}");
    }
    let mut leader = world.session(20);
    raised(&leader.exchange(&extended("CALL procedure()")));
    assert_eq!(code_in(&leader.exchange(&extended("CALL procedure()"))), "");
    let mut leader = world.session(21);
    raised(&leader.exchange(&extended("INSERT INTO outbox VALUES (1)")));
    assert_eq!(code_in(&leader.exchange(&extended("INSERT INTO outbox VALUES (1)"))), "");
    // Two statements before one Sync, and two with a Sync each, sent together.
    let call = extended("SELECT unnamed()");
    let open = &call[..call.len() - message::sync().len()];
    let mut leader = world.session(22);
    raised(&leader.exchange(&[open, &call].concat()));
    assert_eq!(code_in(&leader.exchange(&[open, &call].concat())), "");
    let mut leader = world.session(23);
    leader.send(&[call.clone(), call.clone()].concat());
    assert_eq!(code_in(&leader.read_until_ready()), "LF004");
    raised(&leader.read_until_ready());
    assert_eq!(code_in(&leader.exchange(&call)), "");
    // The client receives an error that arrives before the Sync was sent.
    let mut leader = world.session(24);
    leader.send(&[open, &message::flush()].concat());
    assert_eq!(code_in(&leader.read_until(b'E')), "LF004");
    assert_eq!(code_in(&leader.exchange(&message::sync())), "");
    assert_eq!(code_in(&leader.exchange(&call)), "");
}

#[test]
fn in_a_transaction() {
    let world = world("in_a_transaction");
    let mut token = 5;
    for level in LEVELS {
        for sql in UNSEEN {
            token += 1;
            let mut leader = world.session(token);
            // Nothing was done in the transaction before: the proxy begins another one with the same isolation level.
            let shows = "SELECT current_setting('transaction_isolation')";
            ok(&mut leader, &format!("BEGIN ISOLATION LEVEL {level}"));
            let is_sent_again = UNSEEN[..SENT_AGAIN].contains(&sql);
            assert_eq!(code(&mut leader, sql).is_empty(), is_sent_again || sql.contains("outbox"), "{level}, {sql}");
            if is_sent_again {
                assert_eq!(value(&mut leader, shows), Some(level.to_lowercase()), "{sql}");
            }
            let is_told_at_commit = sql.contains("outbox");
            assert_eq!(code(&mut leader, "COMMIT"), if is_told_at_commit { "LF004" } else { "" }, "{level}, {sql}");
            assert_eq!(epoch(&world), token.to_string(), "{level}, {sql}");
            let written = format!("SELECT count(*) FROM ticks WHERE token = {token}");
            let written = || world.postgres.value(&written);
            assert_eq!(written(), if is_sent_again && !is_told_at_commit { "1" } else { "0" }, "{level}, {sql}");
            assert_eq!(attempt(&mut leader, level, &[sql]), "", "{level}, {sql}");
            // After another statement, the proxy does not resend.
            token += 1;
            let mut leader = world.session(token);
            assert_eq!(attempt(&mut leader, level, &["SELECT 1", sql]), "LF004", "{level}, {sql}");
            assert_eq!(written(), if is_sent_again && !is_told_at_commit { "2" } else { "1" }, "{level}, {sql}");
            // The same after a rollback to a savepoint.
            token += 1;
            let mut leader = world.session(token);
            ok(&mut leader, &format!("BEGIN ISOLATION LEVEL {level}; SAVEPOINT a"));
            if !sql.contains("outbox") {
                raised(&leader.query(sql));
                ok(&mut leader, "ROLLBACK TO a");
                assert_eq!(code(&mut leader, sql), "", "{level}, {sql}");
            }
            ok(&mut leader, "COMMIT");
        }
    }
}

/// A statement is not resent if the client has seen a part of its reply, or if it may have committed.
#[test]
fn a_lasting_effect_is_not_repeated() {
    let world = world("a_lasting_effect_is_not_repeated");
    let tries = || world.postgres.value("SELECT coalesce((SELECT last_value FROM tries WHERE is_called), 0)");
    let mut expected = 0;
    for (sql, token, runs) in [
        ("SELECT counted()", 6, 2),
        ("SELECT third(n) FROM generate_series(1, 5) n", 7, 1),
        ("SELECT noticed()", 8, 1),
        ("SELECT pg_advisory_lock(1), counted()", 9, 1),
        ("CALL halfway()", 10, 1),
        ("SELECT 1; SELECT counted()", 11, 1),
        ("CREATE TABLE made AS SELECT counted()", 12, 1),
        ("EXPLAIN ANALYZE SELECT counted()", 13, 1),
        ("COPY (SELECT counted()) TO STDOUT", 14, 1),
    ] {
        let mut leader = world.session(token);
        let frames = leader.query(sql);
        if runs == 1 {
            raised(&frames);
        } else {
            assert_eq!(error_in(&frames), None, "{sql}");
        }
        expected += runs;
        assert_eq!(tries(), expected.to_string(), "{sql}");
        assert_eq!(epoch(&world), token.to_string(), "{sql}");
    }
    // The description of its rows was sent before it ran.
    raised(&world.session(15).exchange(&extended("SELECT third(n) FROM generate_series(1, 5) n")));
    assert_eq!(tries(), (expected + 1).to_string());
    assert_eq!(world.postgres.value("SELECT count(*) FROM runs"), "1", "the earlier commit is kept, once");
    let error = raised(&world.session(16).query("CALL halfway()"));
    assert!(error.hint().contains("Earlier commits"), "{error:?}");
}

/// Only the current leader's sessions succeed, however others write.
#[test]
fn a_deposed_leader_is_stopped_in_every_form() {
    let world = world("a_deposed_leader_is_stopped_in_every_form");
    let mut zombie = world.session(5);
    assert_eq!(code(&mut world.session(6), "SELECT unnamed()"), "");
    let before = world.state();
    for sql in UNSEEN {
        assert_eq!(code(&mut zombie, sql), "LF001", "{sql}");
        assert_eq!(
            code_in(&zombie.exchange(&extended(sql.split(';').next().unwrap()))),
            if sql.starts_with("DO") { "42601" } else { "LF001" },
            "{sql}"
        );
        for level in LEVELS {
            assert_eq!(attempt(&mut zombie, level, &[sql]), "LF001", "{level}, {sql}");
        }
    }
    assert_eq!((world.state(), epoch(&world)), (before, "6".to_owned()));
}

/// The takeover cuts off the old leader's transactions, through either proxy, and whether or not the proxy has seen the
/// write.
#[test]
fn it_ends_the_old_leaders_transaction() {
    for write in [WRITE, "SELECT unnamed()"] {
        let world = world("it_ends_the_old_leaders_transaction");
        let other = Proxy::start(&world.postgres, POLICIES, &[]);
        let mut order = CommitOrder::start(&world.postgres, "postgres");
        let mut old = [world.session(5), ticks::session(&other.address(), 5)];
        let processes = old.each_mut().map(process);
        old.iter_mut().for_each(|old| {
            ok(old, "BEGIN");
            ok(old, write);
        });
        assert_eq!(code(&mut ticks::session(&other.address(), 6), "SELECT unnamed()"), "", "{write}");
        for (old, process) in old.iter_mut().zip(&processes) {
            assert_eq!(error_in(&old.query("COMMIT")).expect("it is cut off").severity(), "FATAL", "{write}");
            wait_until_harmless(&world.postgres, process);
        }
        assert_eq!(tokens(&mut order), [6], "{write}");
    }
}

/// With a forged error, a role that may lock the table raises its fence to its own token, but no other fence, and not
/// to a higher token.
#[test]
fn a_forged_error_has_no_effect() {
    let world = world("a_forged_error_has_no_effect");
    world.postgres.sql(
        "REVOKE ALL ON ticks FROM PUBLIC; CREATE ROLE writer LOGIN; GRANT INSERT ON ticks TO writer; \
         CREATE ROLE member LOGIN NOINHERIT IN ROLE writer; GRANT USAGE ON SCHEMA public TO reader, writer",
    );
    let session = |user, token| session_of(&world.proxy.address(), user, token);
    // A role that may not write the table.
    let mut reader = session("reader", 6);
    for sql in ["SELECT forged('scheduler', 6)", "SELECT definer()", "BEGIN; SELECT forged('scheduler', 6)"] {
        let error = refused(&mut reader, sql, "LF004");
        assert!(!error.hint().starts_with("The token is now in force"), "{sql}: {error:?}");
    }
    ok(&mut reader, "ROLLBACK");
    // A token other than the session's, another resource, and no resource.
    let mut writer = session("writer", 6);
    for sql in [
        "SELECT forged('scheduler', 7)",
        "SELECT forged('scheduler', 9223372036854775807)",
        "SELECT forged('nothing', 6)",
        "SELECT forged('', 6)",
    ] {
        assert_eq!(refused(&mut writer, sql, "LF004").hint(), "forged", "{sql}");
    }
    let mut list = session("writer", 6);
    ok(&mut list, "SET lease.fence = 'other=6'");
    assert_eq!(refused(&mut list, "SELECT forged('scheduler', 6)", "LF004").hint(), "forged");
    ok(&mut list, "RESET lease.fence; SET lease.fence = ''");
    assert_eq!(refused(&mut list, "SELECT forged('scheduler', 6)", "LF004").hint(), "forged");
    assert_eq!(epoch(&world), "5");
    // Its own token is raised, as LOCK TABLE would raise it. The proxy resends the statement only once.
    let tries = world.postgres.value("SELECT last_value FROM tries").parse::<i64>().unwrap();
    raised(&writer.query("SELECT forged('scheduler', 6)"));
    assert_eq!(world.postgres.value("SELECT last_value FROM tries"), (tries + 2).to_string());
    assert_eq!(epoch(&world), "6");
    // A member of a role that may write the table.
    raised(&session("member", 7).query("SELECT forged('scheduler', 7)"));
    assert_eq!(epoch(&world), "7");
}

/// The proxy need not know whether earlier statements have changed the token.
#[test]
fn after_functions_that_may_have_set_the_token() {
    let world = world("after_functions_that_may_have_set_the_token");
    let mut leader = world.session(6);
    ok(&mut leader, "SELECT tried()");
    assert_eq!(code(&mut leader, "SELECT unnamed()"), "");
    let mut leader = world.session(7);
    ok(&mut leader, "BEGIN; SELECT tried()");
    raised(&leader.query("SELECT unnamed()"));
    ok(&mut leader, "ROLLBACK");
    assert_eq!(attempt(&mut leader, LEVELS[0], &["SELECT tried()", "SELECT unnamed()"]), "");
    // A token that the transaction itself has set.
    let mut leader = world.session(7);
    ok(&mut leader, "BEGIN; SET LOCAL lease.fence = 8");
    raised(&leader.query("SELECT unnamed()"));
    ok(&mut leader, "ROLLBACK");
    assert_eq!(epoch(&world), "8");
    assert_eq!(code(&mut leader, "SELECT unnamed()"), "LF001");
    // The transaction keeps the token under which it has written.
    let mut leader = world.session(8);
    ok(&mut leader, "BEGIN; SELECT unnamed(); SET lease.fence = 9; SAVEPOINT a");
    refused(&mut leader, "SELECT unnamed()", "LF003");
    ok(&mut leader, "ROLLBACK");
    assert_eq!((epoch(&world).as_str(), value(&mut leader, "SHOW lease.fence")), ("8", Some("8".into())));
}

const SEVERAL: &str = "
version: 1
resources:
  - {name: scheduler, tables: [public.ticks]}
  - {name: other, tables: [public.elsewhere]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard}]}
opaque: allow
";

/// Exactly the fences of the written resources are raised.
#[test]
fn several_resources() {
    let world = World::start_with("several_resources", SEVERAL, Options::default());
    world.postgres.sql(
        "CREATE TABLE shards (shard int, n int); \
         CREATE FUNCTION write_both() RETURNS void LANGUAGE sql AS 'INSERT INTO public.ticks (note) VALUES (NULL); \
             INSERT INTO public.elsewhere VALUES (1)'; \
         CREATE FUNCTION write_keys(keys int[]) RETURNS void LANGUAGE sql \
             AS 'INSERT INTO public.shards SELECT unnest(keys), 1'",
    );
    world.guard("install");
    let epochs = || {
        world
            .postgres
            .value("SELECT string_agg(resource || ' ' || token, ', ' ORDER BY resource) FROM fencegate_state.epoch")
    };
    let mut leader = world.session(6);
    assert_eq!(code(&mut leader, "SELECT unnamed()"), "");
    assert_eq!(epochs(), "scheduler 6");
    assert_eq!(code(&mut world.session(7), "SELECT write_both()"), "");
    assert_eq!(epochs(), "other 7, scheduler 7");
    let mut leader = world.session(7);
    ok(&mut leader, "SET lease.fence = 'scheduler=8'");
    assert_eq!(code(&mut leader, "SELECT write_both()"), "LF002");
    assert_eq!(epochs(), "other 7, scheduler 8");
    ok(&mut leader, "SET lease.fence = 'scheduler=9, other=8, shard/1=3, shard/2=4'");
    assert_eq!(code(&mut leader, "SELECT write_both()"), "");
    assert_eq!(code(&mut leader, "SELECT write_keys('{1, 2}')"), "");
    assert_eq!(epochs(), "other 8, scheduler 9, shard/1 3, shard/2 4");
    assert_eq!(code(&mut leader, "SELECT write_keys('{3}')"), "LF002");
    // The number of retries is limited.
    let mut leader = world.session(5);
    raised(&leader.query("SELECT write_keys(ARRAY(SELECT generate_series(10, 40)))"));
}

const ELECTION: &str = "/cron/scheduler/leader";
const ELECTED: &str = "
version: 1
resources:
  - {name: scheduler, election: /cron/scheduler/leader, tables: [public.ticks]}
opaque: allow
";

/// Leaders that only call functions, from the first on, through two proxies, and tokens that the election has not
/// issued.
#[test]
fn leaders_by_an_election() {
    let (mut etcd, postgres) = (Etcd::start(), ticks::server());
    postgres
        .sql("CREATE FUNCTION unnamed() RETURNS void LANGUAGE sql AS 'INSERT INTO public.ticks (note) VALUES (NULL)'");
    let control = format!("postgres://{SUPERUSER}@127.0.0.1:{}/postgres", postgres.port());
    assert!(guard("install", &control, Some(&policy_folder("leaders_by_an_election", ELECTED))).status.success());
    let proxies = [0, 1].map(|_| Proxy::start(&postgres, ELECTED, &["--etcd", &etcd.url()]));
    let session = |proxy: usize, token| ticks::session(&proxies[proxy].address(), token);
    let epoch = || postgres.value("SELECT coalesce((SELECT token FROM fencegate_state.epoch), 0)");
    let call = "SELECT unnamed()";

    assert_eq!(code(&mut session(0, 7), call), "LF005", "no candidate leads");
    let first = etcd.put_new(&format!("{ELECTION}/a"));
    for (sql, unissued) in [(call, first + 1000), (call, i64::MAX), ("DO 'BEGIN PERFORM unnamed(); END'", first + 1000)]
    {
        let error = refused(&mut session(0, unissued), sql, "LF005");
        assert_eq!(error.detail(), format!("resource=scheduler presented={unissued} highest={first}"));
        assert_eq!(attempt(&mut session(1, unissued), LEVELS[0], &[sql]), "LF005");
    }
    assert_eq!(epoch(), "0", "no token that was not issued raises it");
    assert_eq!(code(&mut session(0, first - 1), call), "LF001");
    let mut old = session(0, first);
    assert_eq!(code(&mut old, call), "");
    assert_eq!(epoch(), first.to_string());

    let second = etcd.put_new(&format!("{ELECTION}/b"));
    assert_eq!(code(&mut session(1, second), call), "LF005", "it does not lead yet");
    etcd.pause();
    assert_eq!(code(&mut session(1, second), call), "LF006", "the leader is unknown");
    assert_eq!(code(&mut old, call), "", "an admitted session continues");
    etcd.signal("CONT");
    etcd.delete(&format!("{ELECTION}/a"));
    let mut new = session(1, second);
    wait_until("the second leader writes", DEADLINE, || code(&mut new, call).is_empty());
    // Its process may have been terminated.
    assert_eq!(code(&mut old, call), "LF001");
    assert_eq!(attempt(&mut session(0, first), LEVELS[0], &[call]), "LF001");
    assert_eq!(epoch(), second.to_string());
}
