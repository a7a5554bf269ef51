//! `/healthz` and `/readyz`.

use crate::page::{ask, get};
use crate::support::fenced::{init, ok};
use crate::support::programs::run;
use crate::support::proxy::{BINARY, NO_POLICIES};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use crate::world::http_address;
use std::net::TcpListener;
use std::process::Command;

fn start() -> (Postgres, Proxy, std::net::SocketAddr) {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| proxy.log());
    (postgres, proxy, address)
}

#[test]
fn each_page_answers_get_and_head_and_nothing_else() {
    let (_postgres, _proxy, address) = start();
    for path in ["/metrics", "/healthz", "/readyz"] {
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
    for path in ["/", "/metrics/", "/metric", "/../metrics", "//metrics"] {
        assert_eq!(get(address, path).status, 404, "{path}");
    }
    assert_eq!(get(address, "/metrics?all=1").status, 200);
}

#[test]
fn it_is_ready_while_the_control_connection_can_be_opened() {
    let (mut postgres, _proxy, address) = start();
    assert_eq!((get(address, "/readyz").status, get(address, "/readyz").body.as_str()), (200, "ok\n"));
    postgres.stop();
    wait_until("it is not ready", DEADLINE, || get(address, "/readyz").status == 503);
    let page = get(address, "/readyz");
    assert!(page.body.starts_with("the control connection cannot be opened: "), "{page:?}");
    assert_eq!(get(address, "/healthz").status, 200);
    assert!(get(address, "/metrics").body.contains("\nfencegate_ready 0\n"));
    postgres.start_again();
    wait_until("it is ready again", DEADLINE, || get(address, "/readyz").status == 200);
    assert!(get(address, "/metrics").body.contains("\nfencegate_ready 1\n"));
}

#[test]
fn in_front_of_a_standby_it_is_not_ready() {
    let (mut postgres, _proxy, address) = start();
    postgres.restart_as_standby();
    wait_until("it knows", DEADLINE, || get(address, "/readyz").body.contains("on a standby nothing fenced"));
    assert_eq!(get(address, "/readyz").status, 503);
    postgres.sql("SELECT pg_promote()");
    wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
}

#[test]
fn while_it_stops_it_is_not_ready_and_can_be_scraped() {
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
fn it_is_not_ready_while_no_new_token_could_be_admitted() {
    const GRANTS: &str = "GRANT pg_read_all_stats TO warden; GRANT pg_signal_backend TO warden";
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE warden LOGIN; CREATE TABLE jobs (n int)");
    let options = ProxyOptions::default()
        .policies("version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\n")
        .control(&postgres.control_url().replace("postgres@", "warden@"))
        .arguments(&["--http", "127.0.0.1:0"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let address = http_address(|| proxy.log());
    let refused = |why: &str| wait_until(why, DEADLINE, || get(address, "/readyz").body.contains(why));
    let is_ready = || wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
    refused("the control role warden lacks a privilege: GRANT pg_read_all_stats TO warden");
    postgres.sql(GRANTS);
    is_ready();
    // Nobody is in a database with fences until now.
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    refused("database postgres has no fencegate schema: run `fencegate init`");
    init(&postgres, "postgres");
    postgres
        .sql("GRANT USAGE ON SCHEMA fencegate TO warden; COMMENT ON SCHEMA fencegate IS 'fencegate schema version 1'");
    refused("the schema fencegate of database postgres is \"fencegate schema version 1\"");
    init(&postgres, "postgres");
    is_ready();
    ok(&mut wire, "SELECT 1");
}

#[test]
fn asking_whether_it_is_ready_leaves_nothing_at_the_server() {
    let (postgres, _proxy, address) = start();
    postgres.sql("SELECT pg_stat_force_next_flush()");
    let sessions = || postgres.value("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'").parse::<i64>();
    let before = sessions().unwrap();
    for _ in 0..50 {
        assert_eq!(get(address, "/readyz").status, 200);
    }
    wait_until("its sessions have ended", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") == "1"
    });
    let asked = sessions().unwrap() - before;
    // Those of this test are counted too: one for each question of its own.
    assert!(asked < 25, "the server was asked {asked} times for 50");
}

#[test]
fn an_address_in_use_ends_the_proxy_before_it_lets_anybody_in() {
    let postgres = Postgres::start(Options::default());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = crate::support::guardian::Folder::new("http");
    std::fs::write(folder.join("policies.yaml"), NO_POLICIES).unwrap();
    let output = Command::new(BINARY)
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
    let output = Command::new(BINARY)
        .args(["lead", "--etcd", &etcd.url(), "--election", "/taken", "--http", &address, "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}: ")) && said.lines().count() == 1, "{said}");
    let keys = run(&mut etcd.etcdctl(&["get", "--prefix", "/taken"]));
    assert_eq!(keys.stdout, b"");
}
