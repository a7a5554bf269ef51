//! A session that waits in its transaction without a visible lock, but will still write: messages that were already
//! forwarded cause a write when rows are fetched or the transaction ends.

use crate::support::commit_order::CommitOrder;
use crate::support::message::{bind_text, execute, flush, parse, query, sync};
use crate::support::ticks::{self, WRITE, ok, out_of_order, process, tokens, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{Proxy, Wire};

/// The policies name `write_tick`, but not `hidden_write`. A row in `others` writes a tick when its transaction ends.
/// No function is in SQL, because the server would lock its tables as soon as a cursor over it is opened.
const SCHEMA: &str = "CREATE TABLE others (n int); \
    CREATE FUNCTION write_tick() RETURNS int LANGUAGE plpgsql AS \
      'BEGIN INSERT INTO ticks (note) VALUES (''called''); RETURN 1; END'; \
    CREATE FUNCTION hidden_write() RETURNS int LANGUAGE plpgsql AS \
      'BEGIN INSERT INTO ticks (note) VALUES (''hidden''); RETURN 1; END'; \
    CREATE FUNCTION open_cursor() RETURNS refcursor LANGUAGE plpgsql AS \
      'DECLARE c refcursor := ''c''; BEGIN OPEN c FOR SELECT hidden_write() FROM generate_series(1, 3); RETURN c; END'; \
    CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM hidden_write(); RETURN NULL; END'; \
    CREATE CONSTRAINT TRIGGER later AFTER INSERT ON others DEFERRABLE INITIALLY DEFERRED \
      FOR EACH ROW EXECUTE FUNCTION later(); \
    CREATE VIEW shown AS SELECT note FROM ticks; \
    CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO others VALUES (1); RETURN NEW; END'; \
    CREATE TRIGGER instead INSTEAD OF INSERT ON shown FOR EACH ROW EXECUTE FUNCTION instead()";

const FUNCTIONS: &str = "    functions: [public.write_tick, public.open_cursor]\n";
const REQUIRE_TOKEN: &str = "opaque: require_token\n";

const DECLARE: &str = "DECLARE c CURSOR FOR SELECT write_tick() FROM generate_series(1, 3)";
const DECLARE_WITH_HOLD: &str = "DECLARE c CURSOR WITH HOLD FOR SELECT write_tick() FROM generate_series(1, 3)";
const OPEN_IN_DO: &str = "DO $$ DECLARE c refcursor := 'c'; \
    BEGIN OPEN c FOR SELECT hidden_write() FROM generate_series(1, 3); END $$";
const WRITE_IN_DO: &str = "DO $$ BEGIN INSERT INTO others VALUES (1); END $$";
const WRITE_TO_VIEW: &str = "INSERT INTO shown VALUES ('shown')";

/// Brings an admitted session into a transaction with a write still to come.
type Enter = fn(&mut Wire);

/// For each state, a test for each route. Arguments: settings in addition to the policies, the way to the state, and a
/// message that would then write.
macro_rules! states {
    ($($state:ident: $settings:expr, $enter:expr, $next:expr;)+) => {
        $(mod $state {
            use super::*;

            #[test]
            fn new_leader_through_the_same_proxy() {
                take_over($settings, $enter, $next, false);
            }

            #[test]
            fn new_leader_through_a_second_proxy() {
                take_over($settings, $enter, $next, true);
            }
        })+
    };
}

states! {
    fetch: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE]), query("FETCH ALL FROM c; COMMIT");
    move_all: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE]), query("MOVE ALL FROM c; COMMIT");
    fetch_after_a_first_fetch_of_nothing: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE, "FETCH 0 FROM c"]),
        query("FETCH ALL FROM c; COMMIT");
    execute_of_the_declared_portal: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE]),
        [execute("c", 0), sync(), query("COMMIT")].concat();
    declared_by_the_extended_protocol: FUNCTIONS, |wire| {
        ok(wire, "BEGIN");
        let declare = [parse("", DECLARE, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat();
        assert_eq!(error_in(&wire.exchange(&declare)), None);
    }, query("FETCH ALL FROM c; COMMIT");
    declared_and_flushed: FUNCTIONS, |wire| {
        ok(wire, "BEGIN");
        wire.send(&[parse("", DECLARE, &[]), bind_text("", "", &[]), execute("", 0), flush()].concat());
        assert_eq!(error_in(&wire.read_until(b'C')), None);
    }, [parse("", "FETCH ALL FROM c", &[]), bind_text("", "", &[]), execute("", 0), sync(), query("COMMIT")].concat();
    with_hold: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE_WITH_HOLD]), query("COMMIT");
    with_hold_and_chain: FUNCTIONS, |wire| run(wire, &["BEGIN", DECLARE_WITH_HOLD]), query("COMMIT AND CHAIN");
    in_a_released_savepoint: FUNCTIONS, |wire| run(wire, &["BEGIN", "SAVEPOINT s", DECLARE, "RELEASE s"]),
        query("FETCH ALL FROM c; COMMIT");
    before_a_savepoint_that_was_rolled_back: FUNCTIONS,
        |wire| run(wire, &["BEGIN", DECLARE, "SAVEPOINT s", WRITE, "ROLLBACK TO s"]), query("FETCH ALL FROM c; COMMIT");
    in_a_failed_transaction_with_a_savepoint: FUNCTIONS, |wire| {
        run(wire, &["BEGIN", DECLARE, "SAVEPOINT s"]);
        assert_eq!(error_in(&wire.query("SELECT 1 / 0")).map(|error| error.code().to_owned()).as_deref(), Some("22012"));
    }, query("ROLLBACK TO s; FETCH ALL FROM c; COMMIT");
    after_a_commit_in_the_same_string: FUNCTIONS,
        |wire| ok(wire, &format!("BEGIN; INSERT INTO others SELECT WHERE false; COMMIT; BEGIN; {DECLARE}")),
        query("FETCH ALL FROM c; COMMIT");
    after_commit_and_chain: FUNCTIONS, |wire| run(wire, &["BEGIN", "SELECT 1", "COMMIT AND CHAIN", DECLARE]),
        query("FETCH ALL FROM c; COMMIT");
    after_a_commit_in_the_same_pipeline: FUNCTIONS, |wire| {
        let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0)].concat();
        wire.send(&[run("BEGIN"), run("COMMIT"), run("BEGIN"), run(DECLARE), sync()].concat());
        assert_eq!(error_in(&wire.read_until_ready()), None);
    }, query("FETCH ALL FROM c; COMMIT");
    by_a_named_function: FUNCTIONS, |wire| run(wire, &["BEGIN", "SELECT open_cursor()"]), query("FETCH ALL FROM c; COMMIT");
    by_an_instead_of_trigger: "", |wire| run(wire, &["BEGIN", WRITE_TO_VIEW]), query("COMMIT");
    by_set_constraints: "", |wire| run(wire, &["BEGIN", WRITE_TO_VIEW]), query("SET CONSTRAINTS ALL IMMEDIATE; COMMIT");
    by_a_cursor_opened_in_do: REQUIRE_TOKEN, |wire| run(wire, &["BEGIN", OPEN_IN_DO]), query("FETCH ALL FROM c; COMMIT");
    by_a_deferred_trigger_of_do: REQUIRE_TOKEN, |wire| run(wire, &["BEGIN", WRITE_IN_DO]), query("COMMIT");
}

fn run(wire: &mut Wire, statements: &[&str]) {
    statements.iter().for_each(|sql| ok(wire, sql));
}

fn take_over(settings: &str, enter: Enter, next: Vec<u8>, by_second_proxy: bool) {
    let postgres = ticks::server();
    postgres.sql(SCHEMA);
    let policies = format!("{}{settings}", ticks::POLICIES);
    let first = Proxy::start(&postgres, &policies, &[]);
    let second = by_second_proxy.then(|| Proxy::start(&postgres, &policies, &[]));
    let mut order = CommitOrder::start(&postgres, "postgres");

    let mut stale = ticks::session(&first.address(), 1);
    let its_process = process(&mut stale);
    ok(&mut stale, WRITE);
    enter(&mut stale);
    let mut leader = ticks::session(&second.as_ref().unwrap_or(&first).address(), 2);
    ok(&mut leader, WRITE);
    stale.send(&next);
    let told = stale.read_until_ready();
    wait_until_harmless(&postgres, &its_process);
    let tokens = tokens(&mut order);
    assert_eq!(out_of_order(&tokens), 0, "committed in this order: {tokens:?}");
    assert_eq!(tokens, [1, 2]);
    let error = error_in(&told).unwrap_or_else(|| panic!("no error, but {told:?}"));
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"));
    assert_eq!(error.detail(), "resource=scheduler presented=1 highest=2 outcome=rolled_back");
}
