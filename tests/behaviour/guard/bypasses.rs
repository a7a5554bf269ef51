//! Each way around the proxy, at each isolation level: without a token, with a stale one, and with the current one.

use super::world::{LEVELS, World, attempt, without_token};
use crate::support::Wire;
use crate::support::fenced::ok;
use crate::support::ticks::{WRITE, session};

#[derive(Clone, Copy, PartialEq)]
enum Route {
    /// Through the proxy, whose gate lets the statement pass, and around the proxy.
    Both,
    /// The gate refuses the statement for other reasons.
    AroundOnly,
}

fn try_all(name: &str, route: Route, prepare: &str, statements: &[&str]) {
    let world = World::start(name);
    if !prepare.is_empty() {
        world.postgres.sql(prepare);
    }
    // Another session is admitted.
    let mut leader = world.session(5);
    ok(&mut leader, WRITE);
    let routes = match route {
        Route::Both => vec![world.proxy.address(), world.postgres.socket()],
        Route::AroundOnly => vec![world.postgres.socket()],
    };
    for address in routes {
        for level in LEVELS {
            let before = world.state();
            let refused = |session: &mut Wire, expected: &str| {
                assert_eq!(attempt(session, level, statements), expected, "{name}, {level}, {address:?}");
                assert_eq!(world.state(), before, "{name}, {level}, {address:?}");
            };
            refused(&mut without_token(&address), "LF002");
            refused(&mut session(&address, 4), "LF001");
            // The proxy would put the token in force: tests/behaviour/guard/unseen.rs.
            if address == world.postgres.socket() {
                refused(&mut session(&address, 6), "LF004");
            }
            let mut unreadable = without_token(&world.postgres.socket());
            ok(&mut unreadable, "SET lease.fence = 'scheduler=x'");
            refused(&mut unreadable, "LF003");

            let mut leader = session(&address, 5);
            assert_eq!(attempt(&mut leader, level, statements), "", "{name}, {level}, {address:?}");
            assert_ne!(world.state(), before, "{name}, {level}, {address:?}");
        }
    }
}

macro_rules! bypasses {
    ($($name:ident: $route:ident, $prepare:expr, $statements:expr;)+) => {
        $(#[test]
        fn $name() {
            try_all(stringify!($name), Route::$route, $prepare, &$statements);
        })+
    };
}

bypasses! {
    a_function: Both, "", ["SELECT unnamed()"];
    a_procedure: Both, "", ["CALL procedure()"];
    a_do_block: Both, "", ["DO $$ BEGIN INSERT INTO ticks (note) VALUES ('do'); END $$"];
    a_trigger_elsewhere: Both, "", ["INSERT INTO inbox VALUES (1)"];
    a_trigger_at_commit: Both, "", ["INSERT INTO outbox VALUES (1)"];
    a_cursor_that_is_held: Both, "", ["DECLARE held CURSOR WITH HOLD FOR SELECT unnamed()"];
    a_cascade: AroundOnly, "", ["DELETE FROM owners WHERE id = (SELECT min(id) FROM owners)"];
    a_client_around_the_proxy: AroundOnly, "", [WRITE];
    a_copy: AroundOnly, "", ["COPY owned FROM PROGRAM 'echo 100'"];
    straight_into_a_partition: AroundOnly, "", ["INSERT INTO part VALUES (1, '')"];
    a_partition_attached_later: AroundOnly,
        "CREATE TABLE late (id int, note text); ALTER TABLE parts ATTACH PARTITION late FOR VALUES FROM (1000) TO (2000)",
        ["INSERT INTO late VALUES (1000, '')"];
    as_a_partition_of_something_else: AroundOnly,
        "CREATE TABLE whole (id int) PARTITION BY RANGE (id);
         ALTER TABLE whole ATTACH PARTITION owned FOR VALUES FROM (0) TO (1000)",
        ["DELETE FROM whole WHERE id = (SELECT min(id) FROM whole)"];
    as_a_replica: AroundOnly, "", ["SET LOCAL session_replication_role = replica", WRITE];
    truncate: AroundOnly, "ALTER TABLE owned DROP CONSTRAINT owned_id_fkey;
        CREATE FUNCTION refill() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO ticks (note) VALUES (''x''); RETURN NULL; END';
        CREATE TRIGGER refill AFTER TRUNCATE ON owned EXECUTE FUNCTION refill()", ["TRUNCATE owned"];
    names_that_others_made: AroundOnly,
        "CREATE SCHEMA evil;
         CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''5''';
         CREATE FUNCTION evil.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 1';
         CREATE FUNCTION evil.hashtext(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
         CREATE FUNCTION evil.no(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
         CREATE OPERATOR evil.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.no);
         DO $$ DECLARE kind text; BEGIN
             FOREACH kind IN ARRAY ARRAY['int', 'bigint', 'text', 'timestamptz'] LOOP
                 EXECUTE format('CREATE FUNCTION evil.yes(%1$s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT true'';
                     CREATE OPERATOR evil.= (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = evil.yes)', kind);
             END LOOP;
         END $$;
         CREATE OPERATOR evil.~~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes)",
        ["SET LOCAL search_path = evil, pg_temp, pg_catalog, public", "CREATE TEMP TABLE epoch (resource text, token bigint) ON COMMIT DROP",
         "INSERT INTO public.ticks (note) VALUES ('x')"];
}

/// A write without rows is refused at its start.
#[test]
fn a_write_of_nothing() {
    let world = World::start("a_write_of_nothing");
    for level in LEVELS {
        let nothing = ["UPDATE ticks SET note = '' WHERE false"];
        assert_eq!(attempt(&mut world.around(4), level, &nothing), "LF001");
        assert_eq!(attempt(&mut world.around(5), level, &nothing), "");
    }
}

/// The gate admits a function that the policy names. The guard then takes no lock that a next leader would wait for.
#[test]
fn a_function_that_the_policy_names() {
    only_the_process_lock_is_taken(&World::start("a_function_that_the_policy_names"));
}

/// The trigger works until the table's owner installs this version of the guard.
#[test]
fn a_trigger_of_an_earlier_version() {
    let world = World::start("a_trigger_of_an_earlier_version");
    let name = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'ticks'::regclass AND tgname LIKE '%_statement'";
    let name = world.postgres.value(name);
    world.postgres.sql(&format!(
        "DROP TRIGGER {name} ON ticks; CREATE TRIGGER {name} BEFORE INSERT ON ticks
         EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'scheduler', '', '')"
    ));
    only_the_process_lock_is_taken(&world);
    assert_eq!(attempt(&mut world.around(4), LEVELS[0], &["SELECT unnamed()"]), "LF001");
}

fn only_the_process_lock_is_taken(world: &World) {
    let locks = "SELECT string_agg(DISTINCT objsubid::text, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    for level in LEVELS {
        let mut leader = world.session(5);
        ok(&mut leader, &format!("BEGIN ISOLATION LEVEL {level}"));
        ok(&mut leader, "SELECT named()");
        assert_eq!(ok(&mut leader, locks)[0][0].as_deref(), Some("2"), "{level}");
        ok(&mut leader, "COMMIT");
        assert_eq!(attempt(&mut world.session(4), level, &["SELECT named()"]), "LF001");
    }
}
