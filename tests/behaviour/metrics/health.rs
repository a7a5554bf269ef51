//! `/healthz` and `/readyz`.

use crate::metrics::page::{ask, get};
use crate::metrics::world::http_address;
use crate::support::fenced::{init, ok};
use crate::support::guardian::Port;
use crate::support::programs::run;
use crate::support::proxy::{NO_POLICIES, fencegate};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

fn start() -> (Postgres, Proxy, SocketAddr) {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| proxy.log());
    (postgres, proxy, address)
}

#[test]
fn healthcheck_reports_readiness_in_its_exit_code() {
    let (mut postgres, _proxy, address) = start();
    wait_until_ready(address);
    let check = |address: SocketAddr| {
        let output = fencegate().args(["healthcheck", "--http", &address.to_string()]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(check(address), (Some(0), "ok\n".to_owned(), String::new()));
    postgres.stop();
    wait_until("it is not ready", DEADLINE, || get(address, "/readyz").status == 503);
    let (code, _, error) = check(address);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains(": 503 cannot open the control connection: "), "{error}");

    // A server of another protocol.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_address = other.local_addr().unwrap();
    let answer = thread::spawn(move || {
        let mut stream = other.accept().unwrap().0;
        let request = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"SSH 200 x\r\n\r\nok\n").unwrap();
        request
    });
    assert_eq!(
        check(other_address),
        (Some(1), String::new(), format!("fencegate: {other_address}: no HTTP response\n"))
    );
    assert_ne!(answer.join().unwrap(), 0);
    // A server that never answers, and then one that has stopped listening.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    assert_eq!(check(address).0, Some(1));
    drop(silent);
    assert_eq!(check(address).0, Some(1));
    assert_eq!(fencegate().args(["healthcheck", "--http", "db"]).output().unwrap().status.code(), Some(2));
}

/// A check of the server that takes 2 s reports "not ready".
fn wait_until_ready(address: SocketAddr) {
    wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
    assert_eq!(get(address, "/readyz").body, "ok\n");
}

#[test]
fn each_page_answers_get_and_head_and_nothing_else() {
    let (_postgres, _proxy, address) = start();
    wait_until_ready(address);
    for path in ["/", "/metrics", "/healthz", "/readyz"] {
        let page = get(address, path);
        assert_eq!(page.status, 200, "{page:?}");
        let head = ask(address, "HEAD", path);
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            let refused = ask(address, method, path);
            assert!(refused.status == 405 && refused.head.contains("allow: get, head"), "{refused:?}");
        }
    }
    assert!(get(address, "/metrics").head.contains("content-type: text/plain; version=0.0.4"));
    for path in ["/metrics/", "/metric", "/../metrics", "//metrics"] {
        let page = get(address, path);
        assert_eq!(
            (page.status, page.body.as_str()),
            (404, "page not found; available pages: /, /metrics, /healthz, /readyz\n")
        );
    }
    assert_eq!(get(address, "/metrics?all=1").status, 200);
}

#[test]
fn a_proxy_with_a_working_control_connection_is_ready() {
    let (mut postgres, _proxy, address) = start();
    wait_until_ready(address);
    postgres.stop();
    wait_until("it is not ready", DEADLINE, || get(address, "/readyz").status == 503);
    let page = get(address, "/readyz");
    assert!(page.body.starts_with("cannot open the control connection: "), "{page:?}");
    assert_eq!(get(address, "/healthz").status, 200);
    assert!(get(address, "/metrics").body.contains("\nfencegate_ready 0\n"));
    postgres.start_again();
    wait_until("it is ready again", DEADLINE, || get(address, "/readyz").status == 200);
    assert!(get(address, "/metrics").body.contains("\nfencegate_ready 1\n"));
}

#[test]
fn a_proxy_of_a_standby_is_not_ready() {
    let (mut postgres, _proxy, address) = start();
    postgres.restart_as_standby();
    wait_until("it is reported", DEADLINE, || get(address, "/readyz").body.contains("a standby accepts no writes"));
    assert_eq!(get(address, "/readyz").status, 503);
    postgres.sql("SELECT pg_promote()");
    wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
}

#[test]
fn a_stopping_proxy_is_not_ready_and_can_be_scraped() {
    let (_postgres, mut proxy, address) = start();
    let mut open = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut open, "BEGIN");
    proxy.signal("TERM");
    wait_until("it is not ready", DEADLINE, || get(address, "/readyz").status == 503);
    assert_eq!(get(address, "/readyz").body, "the proxy is stopping\n");
    let page = get(address, "/metrics");
    assert!(page.status == 200 && page.body.contains("\nfencegate_sessions 1\n"), "{page:?}");
    ok(&mut open, "COMMIT");
    assert_eq!(proxy.wait(), 0);
}

#[test]
fn a_proxy_that_cannot_admit_new_tokens_is_not_ready() {
    const GRANTS: &str = "GRANT pg_read_all_stats TO warden; GRANT pg_signal_backend TO warden";
    let postgres = Postgres::start(Options::default());
    postgres.sql(
        "CREATE ROLE warden LOGIN; CREATE ROLE writer LOGIN; CREATE TABLE jobs (n int); GRANT ALL ON jobs TO writer",
    );
    let options = ProxyOptions::default()
        .policies("version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\ndatabases: [postgres]\n")
        .control(&postgres.control_url().replace("postgres@", "warden@"))
        .arguments(&["--http", "127.0.0.1:0"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let address = http_address(|| proxy.log());
    let refused = |why: &str| wait_until(why, DEADLINE, || get(address, "/readyz").body.contains(why));
    // Until then, a write fails with LF006, and its hint names the remedy.
    let meets = |wire: &mut Wire, why: &str, hint: &str| {
        wait_until(why, DEADLINE, || {
            let error = wire.rows("INSERT INTO jobs VALUES (1)").expect_err(why);
            assert_eq!(error.code(), "LF006", "{error:?}");
            error.message().contains(why)
                && error.hint().starts_with("Nothing was written. ")
                && error.hint().contains(hint)
        });
    };
    let is_ready = || wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
    refused("the control role warden lacks a privilege: GRANT pg_read_all_stats TO warden");
    proxy.wait_for_log("control_unusable", DEADLINE);
    postgres.sql(GRANTS);
    is_ready();
    // Until now, no session was in a database with fences.
    let mut wire = Wire::login(&proxy.address(), "writer", "postgres");
    ok(&mut wire, "SET lease.fence = 7");
    refused("database postgres has no fencegate schema: run `fencegate init`");
    meets(&mut wire, "database postgres has no fencegate schema", "fencegate init --control URL --role ROLE");
    init(&postgres, "postgres");
    postgres.sql("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 1'");
    refused("the schema fencegate of database postgres is \"fencegate schema version 1\"");
    init(&postgres, "postgres");
    // The superuser owns the schema, and the control role has no privileges in it.
    refused("the control role warden lacks privileges in the schemas of fencegate in database postgres (");
    assert!(get(address, "/readyz").body.contains("run `fencegate init --role warden` there"));
    let lacking =
        "the control role lacks privileges in the schemas of fencegate in database postgres (DELETE on admission";
    meets(&mut wire, lacking, "fencegate init --control URL --role ROLE");
    let database = postgres.control_url() + "postgres";
    run(fencegate().args(["init", "--control", &database, "--role", "warden"]));
    is_ready();
    wait_until("it may write", DEADLINE, || wire.rows("INSERT INTO jobs VALUES (1)").is_ok());
    // Revoked while the proxy runs.
    postgres.sql("REVOKE UPDATE ON fencegate_state.epoch FROM warden");
    refused("in the schemas of fencegate in database postgres (UPDATE on epoch)");
    ok(&mut wire, "SET lease.fence = 8");
    meets(&mut wire, "in database postgres (UPDATE on epoch)", "fencegate init --control URL --role ROLE");
    postgres.sql("GRANT UPDATE ON fencegate_state.epoch TO warden; REVOKE pg_signal_backend FROM warden");
    refused("the control role warden lacks a privilege: GRANT pg_signal_backend TO warden");
    meets(&mut wire, "GRANT pg_signal_backend TO the role", "Run the GRANT as a superuser");
    postgres.sql("GRANT pg_signal_backend TO warden");
    is_ready();
    let mut superuser = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut superuser, "SET lease.fence = 7");
    meets(&mut superuser, "a superuser's session needs", "Give the proxy a superuser as its control role");
}

#[test]
fn a_missing_password_is_reported_with_its_setting() {
    const WHERE: &str = "the server requires a password, and none is set: set it in the URL, in PGPASSWORD, \
        or in the file that PGPASSFILE names";
    let postgres = Postgres::start(Options::default().hba("host all warden all scram-sha-256"));
    postgres.sql("CREATE ROLE warden LOGIN PASSWORD 'secret'; CREATE TABLE jobs (n int); CREATE TABLE free (n int)");
    let control = postgres.control_url().replace("postgres@", "warden@");
    let options = ProxyOptions::default()
        .policies("version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\n")
        .control(&control)
        .arguments(&["--http", "127.0.0.1:0"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let address = http_address(|| proxy.log());
    proxy.wait_for_log("control_unusable", DEADLINE);
    assert!(
        proxy.log().lines().any(|line| line.contains("control_unusable") && line.contains(WHERE)),
        "{}",
        proxy.log()
    );
    let page = get(address, "/readyz");
    assert!(page.status == 503 && page.body.contains(WHERE), "{page:?}");
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    let error = wire.rows("INSERT INTO free VALUES (1)").unwrap_err();
    assert_eq!(error.code(), "LF006");
    let why = format!("the catalog cannot be read: cannot open the control connection: {WHERE}");
    assert!(error.message().contains(&why) && error.hint().contains("`control` setting and its password"), "{error:?}");
    let init = fencegate().args(["init", "--control", &(control + "postgres")]).output().unwrap();
    assert!(String::from_utf8_lossy(&init.stderr).contains(WHERE), "{init:?}");
}

/// Every role with CREATEDB can create a database with a table of a fenced name.
#[test]
fn creating_a_database_keeps_the_proxy_ready() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE maker LOGIN CREATEDB; CREATE TABLE jobs (n int)");
    init(&postgres, "postgres");
    let policies = "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\n";
    let proxy = Proxy::start(&postgres, policies, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| proxy.log());
    let _prepared = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut Wire::login(&proxy.address(), "maker", "postgres"), "CREATE DATABASE trap");
    postgres.sql_in("trap", "CREATE TABLE jobs (n int)");
    let mut trap = Wire::login(&proxy.address(), "maker", "trap");
    assert_eq!(trap.rows("INSERT INTO jobs VALUES (1)").unwrap_err().code(), "LF002");
    proxy.wait_for_log("policies_not_recorded", DEADLINE);
    wait_until_ready(address);
    // A database that has had the schema counts.
    postgres.sql("DROP SCHEMA fencegate CASCADE");
    wait_until("it is not ready", DEADLINE, || {
        get(address, "/readyz").body.contains("database postgres has no fencegate")
    });
}

#[test]
fn an_unreachable_server_is_reported_before_the_first_client() {
    let postgres = Postgres::start(Options::default());
    let port = Port::claim();
    let closed = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let options =
        ProxyOptions::default().upstream(&format!("postgres://{closed}")).arguments(&["--http", "127.0.0.1:0"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let address = http_address(|| proxy.log());
    proxy.wait_for_log("upstream_unreachable", DEADLINE);
    let page = get(address, "/readyz");
    assert!(page.status == 503 && page.body.contains(&format!("the server at {closed} cannot be reached")), "{page:?}");
    assert!(get(address, "/metrics").body.contains("\nfencegate_upstream_up 0\n"));
    // Many refused clients cause at most ten lines per second.
    wait_until("the others are counted", DEADLINE, || {
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let mut wire = Wire::connect(&proxy.address()).unwrap();
                    wire.start(&[("user", "postgres"), ("database", "postgres")], "");
                });
            }
        });
        proxy.log().lines().any(|it| it.contains("lines_left_out") && it.contains("upstream_unreachable"))
    });
}

#[test]
fn readiness_checks_leave_nothing_at_the_server() {
    let (postgres, _proxy, address) = start();
    postgres.sql("SELECT pg_stat_force_next_flush()");
    let sessions = || postgres.value("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'").parse::<i64>();
    let before = sessions().unwrap();
    for _ in 0..50 {
        wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
    }
    wait_until("its sessions have ended", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") == "1"
    });
    let asked = sessions().unwrap() - before;
    // Includes this test's own sessions, one for each query.
    assert!(asked < 25, "{asked} sessions for 50 requests");
}

#[test]
fn an_address_in_use_ends_the_proxy_before_it_admits_clients() {
    let postgres = Postgres::start(Options::default());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = crate::support::guardian::Folder::new("http");
    std::fs::write(folder.join("policies.yaml"), NO_POLICIES).unwrap();
    let output = fencegate()
        .args(["proxy", "--listen", "127.0.0.1:0", "--upstream", &postgres.url()])
        .args(["--control", &postgres.control_url(), "--http", &address])
        .arg("--policies")
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}: Address already in use")), "{said}");
    assert!(!said.contains("listening"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_leader_whose_address_is_in_use_does_not_campaign() {
    let etcd = crate::support::Etcd::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = fencegate()
        .args(["lead", "--etcd", &etcd.url(), "--election", "/taken", "--http", &address, "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}: ")) && said.lines().count() == 1, "{said}");
    let keys = run(&mut etcd.etcdctl(&["get", "--prefix", "/taken"]));
    assert_eq!(keys.stdout, b"");
}
