//! A proxy whose policies another proxy has superseded reports this and is not ready.

use crate::metrics::page::get;
use crate::metrics::world::http_address;
use crate::support::fenced::{code, init, ok};
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, wait_until};

const OLD: &str = "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\n";
const NEW: &str = "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs, public.more]}\n";

#[test]
fn a_proxy_with_older_policies_reports_it_until_its_reload() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (n int); CREATE TABLE more (n int)");
    init(&postgres, "postgres");
    let mut old = Proxy::start(&postgres, OLD, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| old.log());
    let login = |proxy: &Proxy| {
        let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
        ok(&mut wire, "SET lease.fence = 7");
        wire
    };
    let mut admitted = login(&old);
    ok(&mut admitted, "INSERT INTO jobs VALUES (1)");
    let mut next = login(&old);
    let superseded = |is_so| {
        let line = format!("fencegate_policies_superseded{{database=\"postgres\"}} {is_so}");
        get(address, "/metrics").body.lines().any(|it| it == line)
    };
    wait_until("nothing is wrong", DEADLINE, || superseded(0) && get(address, "/readyz").status == 200);

    let new = Proxy::start(&postgres, NEW, &[]);
    ok(&mut login(&new), "INSERT INTO more VALUES (1)");
    // The proxy reports this before any session writes.
    old.wait_for_log("policies_superseded", DEADLINE);
    wait_until("it is not ready", DEADLINE, || {
        let page = get(address, "/readyz");
        page.status == 503 && page.body.contains("another proxy has since loaded different policies of jobs")
    });
    assert!(superseded(1));
    let attention = "<li>not ready: database postgres: another proxy has since loaded different policies of jobs";
    wait_until("the status page shows it", DEADLINE, || get(address, "/").body.contains(attention));
    let mut console = Wire::login(&old.address(), "postgres", "fencegate");
    assert_eq!(console.rows("SHOW POLICIES").unwrap()[0][9].as_deref(), Some("superseded"));
    assert_eq!(code(&mut next, "INSERT INTO jobs VALUES (1)"), "LF006");
    assert_eq!(code(&mut login(&old), "INSERT INTO jobs VALUES (1)"), "LF006");
    assert_eq!(old.log().matches("policies_superseded").count(), 1, "{}", old.log());

    // The proxy stays not ready after its sessions have ended and no session queries the policies.
    drop((admitted, next));
    wait_until("they have ended", DEADLINE, || console.rows("SHOW SESSIONS").unwrap().is_empty());
    assert_eq!(get(address, "/readyz").status, 503);
    old.write_policies(NEW);
    old.sighup();
    wait_until("the proxy is ready again", DEADLINE, || get(address, "/readyz").status == 200 && superseded(0));
    ok(&mut login(&old), "INSERT INTO more VALUES (1)");
}
