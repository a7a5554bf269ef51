//! When the proxy reads the catalog, and its verdicts while it cannot.

use crate::support::fenced::{Fenced, code, init, ok};
use crate::support::proxy::{Proxy, ProxyOptions};
use crate::support::{DEADLINE, Options, Postgres, Wire, wait_until};
use std::process::Command;
use std::thread;
use std::time::Duration;

const SCHEMA: &str = "
    CREATE TABLE items (id int); CREATE TABLE plain (id int); CREATE VIEW listed AS SELECT * FROM items;
    CREATE ROLE fencer LOGIN";
const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.items]\n";

/// A server and a proxy whose control connections can be terminated.
fn fenced() -> Fenced {
    fenced_by(POLICY)
}

fn fenced_by(policy: &str) -> Fenced {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init_for_control_role(&postgres);
    let control = postgres.control_url().replace("postgres@", "fencer@");
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().policies(policy).control(&control));
    postgres.sql(
        "CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON SCHEMA public TO app",
    );
    Fenced { proxy, postgres }
}

fn init_for_control_role(postgres: &Postgres) {
    init(postgres, "postgres");
    let database = postgres.control_url() + "postgres";
    let mut command = crate::support::proxy::fencegate();
    crate::support::programs::run(command.args(["init", "--control", &database, "--role", "fencer"]));
}

fn take_control_away(fenced: &Fenced) {
    end_control(&fenced.postgres);
    // The proxy may notice this a moment later than a client.
    fenced.proxy.wait_for_log("control_not_listening", DEADLINE);
}

fn end_control(postgres: &Postgres) {
    postgres.sql("ALTER ROLE fencer NOLOGIN");
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'fencer'");
    wait_until("the control connections have ended", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'fencer'") == "0"
    });
}

fn holder(fenced: &Fenced, token: i64) -> Wire {
    let mut wire = fenced.login_as("app");
    ok(&mut wire, &format!("SET lease.fence = {token}"));
    wire
}

/// Without a listener, no proxy is notified of definitions by other proxies or by direct sessions. The policies name
/// the fenced tables.
#[test]
fn without_a_listener_only_direct_names_are_known() {
    let fenced = fenced();
    let (mut leader, mut stranger) = (holder(&fenced, 1), fenced.login_as("app"));
    ok(&mut leader, "INSERT INTO listed VALUES (1)");
    fenced.postgres.sql("CREATE VIEW copied AS SELECT * FROM plain; GRANT ALL ON copied TO app");
    ok(&mut stranger, "INSERT INTO copied VALUES (1)");
    take_control_away(&fenced);
    fenced.postgres.sql("CREATE OR REPLACE VIEW copied AS SELECT * FROM items");
    for sql in ["INSERT INTO copied VALUES (2)", "INSERT INTO plain VALUES (2)", "DROP TABLE plain CASCADE"] {
        assert_eq!(code(&mut stranger, sql), "LF006", "{sql}");
    }
    ok(&mut stranger, "SELECT * FROM plain");
    assert_eq!(code(&mut stranger, "INSERT INTO items VALUES (3)"), "LF002");
    assert_eq!(code(&mut stranger, "INSERT INTO listed VALUES (3)"), "LF002");
    // Admitted sessions continue.
    for sql in ["INSERT INTO items VALUES (2)", "INSERT INTO listed VALUES (2)"] {
        ok(&mut leader, sql);
    }
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "3");
    fenced.postgres.sql("ALTER ROLE fencer LOGIN");
    wait_until("the proxy listens again", DEADLINE, || code(&mut stranger, "INSERT INTO plain VALUES (2)").is_empty());
    assert_eq!(code(&mut stranger, "INSERT INTO copied VALUES (2)"), "LF002");
}

/// No table was fenced when the catalog was read. The first fenced table, and a view on it, may be created unnoticed.
#[test]
fn without_a_listener_the_first_fenced_table_may_exist() {
    let fenced = fenced();
    fenced.postgres.sql("DROP TABLE items CASCADE");
    let mut stranger = fenced.login_as("app");
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    take_control_away(&fenced);
    let made =
        "CREATE TABLE items (id int); CREATE VIEW listed AS SELECT * FROM items; GRANT ALL ON items, listed TO app";
    fenced.postgres.sql(made);
    assert_eq!(code(&mut stranger, "INSERT INTO listed VALUES (1)"), "LF006");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
    fenced.postgres.sql("ALTER ROLE fencer LOGIN");
    wait_until("the proxy listens again", DEADLINE, || code(&mut stranger, "INSERT INTO plain VALUES (2)").is_empty());
    assert_eq!(code(&mut stranger, "INSERT INTO listed VALUES (2)"), "LF002");
}

/// A view that was created meanwhile may call a function that the policy names. Reading the view is then a write.
#[test]
fn without_a_listener_a_read_may_call_a_named_function() {
    let fenced = fenced_by(&POLICY.replace("tables:", "functions: [public.note]\n    tables:"));
    fenced.postgres.sql(
        "CREATE FUNCTION note() RETURNS int LANGUAGE sql AS 'INSERT INTO items VALUES (9) RETURNING 1'; \
         GRANT ALL ON items TO app",
    );
    let (mut leader, mut stranger) = (holder(&fenced, 1), fenced.login_as("app"));
    ok(&mut leader, "INSERT INTO items VALUES (1)");
    take_control_away(&fenced);
    fenced.postgres.sql("CREATE VIEW later AS SELECT note() AS n; GRANT ALL ON later TO app");
    for sql in ["SELECT * FROM later", "TABLE later", "COPY (TABLE later) TO STDOUT", "SELECT * FROM later FOR UPDATE"]
    {
        assert_eq!(code(&mut stranger, sql), "LF006", "{sql}");
    }
    ok(&mut stranger, "SELECT count(*) FROM pg_catalog.pg_class, items");
    ok(&mut leader, "INSERT INTO items VALUES (2)");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "2");
}

/// With several resources, each leader can still write its own tables.
#[test]
fn without_a_listener_each_resource_remains_usable() {
    let policy = format!("{POLICY}  - name: other\n    tables: [public.plain]\n");
    let fenced = fenced_by(&policy);
    let mut leader = holder(&fenced, 1);
    ok(&mut leader, "SET lease.fence = 'jobs=1'");
    ok(&mut leader, "INSERT INTO items VALUES (1)");
    take_control_away(&fenced);
    ok(&mut leader, "INSERT INTO items VALUES (2)");
    assert_eq!(code(&mut leader, "INSERT INTO listed VALUES (2)"), "LF006");
    // An unread change may affect these tables too.
    ok(&mut leader, "CREATE VIEW later AS SELECT * FROM items");
    assert_eq!(code(&mut leader, "INSERT INTO items VALUES (3)"), "LF006");
}

/// No process has ever been admitted in a database without the schema `fencegate`.
#[test]
fn without_a_listener_a_database_without_the_schema_remains_usable() {
    let fenced = fenced();
    fenced.postgres.sql("CREATE DATABASE other");
    fenced.postgres.sql_in("other", "CREATE TABLE plain (id int); GRANT ALL ON plain TO app");
    let mut stranger = Wire::login(&fenced.proxy.address(), "app", "other");
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    end_control(&fenced.postgres);
    for sql in ["INSERT INTO plain VALUES (2)", "DO $$ BEGIN END $$"] {
        ok(&mut stranger, sql);
    }
}

#[test]
fn an_unread_change_may_be_anything() {
    let fenced = fenced();
    let (mut leader, mut stranger) = (holder(&fenced, 1), fenced.login_as("app"));
    ok(&mut leader, "INSERT INTO items VALUES (1)");
    take_control_away(&fenced);
    ok(&mut stranger, "CREATE VIEW later AS SELECT * FROM items");
    for sql in [
        "INSERT INTO plain VALUES (1)",
        "INSERT INTO later VALUES (1)",
        "ALTER TABLE plain ADD COLUMN n int",
        "TRUNCATE plain",
        "DROP TABLE plain CASCADE",
    ] {
        let error = stranger.rows(sql).expect_err(sql);
        let why = "cannot determine whether this statement writes to a fenced table: the catalog cannot be read: \
            cannot open the control connection: the server does not permit its role to log in";
        assert_eq!((error.code(), error.message()), ("LF006", why), "{sql}");
    }
    // Only the log names the role.
    let told = |line: &str| line.contains("write_rejected") && line.contains("not permitted to log in");
    assert!(fenced.proxy.log().lines().any(told), "{}", fenced.proxy.log());
    // A write to `items` needs every token anyway, so an unread change cannot add another.
    ok(&mut leader, "INSERT INTO items VALUES (2)");
    assert_eq!(code(&mut leader, "INSERT INTO plain VALUES (2)"), "LF006");
    ok(&mut stranger, "SELECT * FROM plain FOR UPDATE");
    ok(&mut stranger, "CREATE TABLE made (id int)");
    assert_eq!(code(&mut stranger, "INSERT INTO made VALUES (2)"), "LF006");
    fenced.postgres.sql("ALTER ROLE fencer LOGIN");
    wait_until("the catalog is read again", DEADLINE, || code(&mut stranger, "INSERT INTO made VALUES (1)").is_empty());
    ok(&mut leader, "INSERT INTO plain VALUES (2)");
}

/// The leader has every token, so its writes do not depend on the catalog.
#[test]
fn a_write_that_needs_every_token_does_not_wait_for_a_reading() {
    let fenced = fenced();
    let (mut leader, mut stranger) = (holder(&fenced, 1), fenced.login_as("app"));
    ok(&mut leader, "INSERT INTO items VALUES (1)");
    let control = fenced.postgres.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'fencer'");
    let signal = |name: &str| {
        let pids = control.iter().flatten().flatten();
        let sent = Command::new("kill").arg(format!("-{name}")).args(pids).status().expect("kill runs");
        assert!(sent.success(), "{name}");
    };
    signal("STOP");
    ok(&mut stranger, "CREATE VIEW later AS SELECT * FROM items");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| code(&mut stranger, "INSERT INTO plain VALUES (1)"));
        for number in 0..10 {
            ok(&mut leader, &format!("INSERT INTO items VALUES ({number})"));
        }
        assert!(!waiting.is_finished(), "the reading has ended");
        signal("CONT");
        assert_eq!(waiting.join().expect("the write is answered"), "");
    });
}

/// The catalog is known, but the dependents that CASCADE includes cannot be read.
#[test]
fn while_dependencies_cannot_be_read_cascade_is_retryable() {
    let fenced = fenced();
    let mut owner = fenced.login();
    ok(&mut owner, "INSERT INTO plain VALUES (1)");
    fenced.postgres.sql("REVOKE SELECT ON pg_depend FROM public");
    assert_eq!(code(&mut owner, "DROP TABLE plain CASCADE"), "LF006");
    ok(&mut owner, "INSERT INTO plain VALUES (2)");
    fenced.postgres.sql("GRANT SELECT ON pg_depend TO public");
    wait_until("it can be read again", DEADLINE, || code(&mut owner, "DROP TABLE plain CASCADE").is_empty());
}

#[test]
fn an_unread_catalog_may_contain_anything() {
    let fenced = fenced();
    take_control_away_before_any_session(&fenced.postgres);
    let mut stranger = fenced.login_as("app");
    assert_eq!(code(&mut stranger, "INSERT INTO plain VALUES (1)"), "LF006");
    ok(&mut stranger, "SELECT * FROM plain");
    fenced.postgres.sql("ALTER ROLE fencer LOGIN");
    wait_until("the catalog is read", DEADLINE, || code(&mut stranger, "INSERT INTO plain VALUES (1)").is_empty());
}

fn take_control_away_before_any_session(postgres: &Postgres) {
    postgres.sql("ALTER ROLE fencer NOLOGIN");
}

/// The proxy does not need the catalog of a database without policies.
#[test]
fn other_databases_go_on() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE plain (id int)");
    let options = ProxyOptions::default().policies(&format!("{POLICY}databases: [app]\n"));
    let proxy = Proxy::start_with(&postgres, &options.control("postgres://nobody@127.0.0.1:1/"));
    ok(&mut Wire::login(&proxy.address(), "postgres", "postgres"), "INSERT INTO plain VALUES (1)");
}

/// The catalog can be read without `fencegate init`.
#[test]
fn a_database_without_the_schema_is_read() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE plain (id int)");
    let proxy = Proxy::start(&postgres, POLICY, &[]);
    ok(&mut Wire::login(&proxy.address(), "postgres", "postgres"), "INSERT INTO plain VALUES (1)");
}

/// Catalog data of a dropped database does not apply to a new one of the same name, whether or not the proxy noticed
/// the gap.
#[test]
fn a_recreated_database_is_a_different_one() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, POLICY, &[]);
    let login = |database: &str| Wire::login(&proxy.address(), "postgres", database);
    let mut console = login("fencegate");
    for is_missed in [false, true, false, true] {
        postgres.sql("CREATE DATABASE passing");
        let mut session = login("passing");
        ok(&mut session, "CREATE TABLE items (id int)");
        assert_eq!(code(&mut session, "DO 'BEGIN END'"), "LF004");
        drop(session);
        postgres.sql("CREATE DATABASE next");
        wait_until("it can be dropped", DEADLINE, || postgres.try_sql("postgres", "DROP DATABASE passing").is_ok());
        if is_missed {
            assert_eq!(code(&mut console, "FENCE RESET jobs IN DATABASE passing TO 7"), "3D000");
        }
        postgres.sql("ALTER DATABASE next RENAME TO passing");
        ok(&mut login("passing"), "DO 'BEGIN END'");
        wait_until("it can be dropped", DEADLINE, || postgres.try_sql("postgres", "DROP DATABASE passing").is_ok());
    }
}

/// ALTER VIEW locks the view. The lock must not block reading the catalog.
#[test]
fn a_view_that_is_being_altered_blocks_no_session() {
    let fenced = fenced();
    fenced.postgres.sql("CREATE VIEW counted AS SELECT count(*) FROM items");
    let mut owner = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    ok(&mut owner, "BEGIN; LOCK TABLE counted");
    let mut stranger = fenced.login_as("app");
    ok(&mut stranger, "CREATE TABLE made (id int)");
    ok(&mut stranger, "INSERT INTO made VALUES (1)");
    assert_eq!(code(&mut stranger, "INSERT INTO listed VALUES (1)"), "LF002");
    // The proxy cannot know that the server would refuse this.
    assert_eq!(code(&mut stranger, "DELETE FROM counted"), "LF002");
}

/// Proxies learn of each other's DDL without a new session.
#[test]
fn other_proxies_are_notified() {
    let fenced = fenced();
    let control = fenced.postgres.control_url().replace("postgres@", "fencer@");
    let other = Proxy::start_with(&fenced.postgres, &ProxyOptions::default().policies(POLICY).control(&control));
    let mut there = Wire::login(&other.address(), "app", "postgres");
    assert_eq!(code(&mut there, "INSERT INTO listed VALUES (1)"), "LF002");
    let mut here = fenced.login_as("app");
    ok(&mut here, "CREATE VIEW later AS SELECT * FROM items; GRANT ALL ON later TO app");
    // Rolled back, so that no write persists before the proxy knows the view.
    wait_until("the other proxy knows the view", DEADLINE, || {
        let code = code(&mut there, "BEGIN; INSERT INTO later VALUES (1)");
        ok(&mut there, "ROLLBACK");
        code == "LF002"
    });
}

/// A session may be terminated before its proxy announces its definition. Here nothing is announced, and no session
/// starts.
#[test]
fn an_unannounced_definition_is_found_by_long_sessions() {
    let fenced = fenced();
    let mut stranger = fenced.login_as("app");
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    fenced.postgres.sql("CREATE VIEW around AS SELECT * FROM items; GRANT ALL ON around TO app");
    wait_until("the proxy knows the view", Duration::from_secs(20), || {
        let code = code(&mut stranger, "BEGIN; INSERT INTO around VALUES (1)");
        ok(&mut stranger, "ROLLBACK");
        code == "LF002"
    });
}

/// Event triggers may send this notification for DDL that bypasses the proxies.
#[test]
fn forged_catalog_notifications_cause_little_work() {
    let fenced = fenced();
    let mut stranger = fenced.login_as("app");
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    fenced
        .postgres
        .sql("CREATE VIEW around AS SELECT * FROM items; GRANT ALL ON around TO app; NOTIFY fencegate, '{catalogue}'");
    wait_until("the proxy knows the view", DEADLINE, || {
        let code = code(&mut stranger, "BEGIN; INSERT INTO around VALUES (1)");
        ok(&mut stranger, "ROLLBACK");
        code == "LF002"
    });
    let mut anybody = Wire::login(&fenced.postgres.address(), "app", "postgres");
    for number in 0..200 {
        ok(&mut anybody, "NOTIFY fencegate, '{catalogue}'");
        ok(&mut stranger, &format!("INSERT INTO plain VALUES ({number})"));
    }
    assert_eq!(code(&mut stranger, "INSERT INTO around VALUES (1)"), "LF002");
}
