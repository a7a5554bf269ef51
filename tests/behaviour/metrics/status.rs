//! The status page: its content, its restrictions in a browser, and its cost.

use crate::metrics::page::{ask, get};
use crate::metrics::world::World;
use crate::support::fenced::{code, ok};
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Wire, wait_until};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| format!(">{cell}</td>")).collect()
}

/// True if one line of the page has these texts in this order.
fn has(html: &str, cells: &[String]) -> bool {
    html.lines().any(|line| cells.iter().try_fold(line, |rest, it| Some(rest.split_once(it.as_str())?.1)).is_some())
}

/// No client has connected, and nothing has happened yet.
#[test]
fn a_restarted_proxy_shows_the_leaders() {
    let world = World::start();
    let leader = format!("token {} (/metrics/policy)", world.elect());
    let expected = [row(&["", "jobs", "", "", "enforce"]), row(&["", "led", "", &leader, "enforce"])];
    let shown = || get(world.of_proxy(), "/").body;
    wait_until("the leader is shown", DEADLINE, || expected.iter().all(|cells| has(&shown(), cells)));
}

#[test]
fn the_page_shows_events_and_escapes_them() {
    let world = World::start();
    let address = world.of_proxy();
    let writer = |token: &str| {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        let options = format!("-c lease.fence={token}");
        let name = "<script>alert(1)</script>";
        wire.start(&[("user", "postgres"), ("application_name", name), ("options", &options)], "");
        wire
    };
    let (mut old, mut new) = (writer("46"), writer("47"));
    ok(&mut old, "INSERT INTO jobs VALUES (1)");
    ok(&mut new, "INSERT INTO jobs VALUES (2)");
    assert_eq!(code(&mut old, "INSERT INTO jobs VALUES (31337)"), "LF001");
    let shown = || get(address, "/").body;
    let expected = [
        row(&["postgres", "jobs", "47", "", "enforce"]),
        row(&["postgres", "led", "", "no leader (/metrics/policy)", "enforce"]),
        row(&["postgres", "shard/{shard}", "one for each key", "", "enforce"]),
        row(&["postgres", "jobs", "LF001", "46", "47", "INSERT jobs", "postgres"]),
        row(&["postgres", "jobs", "46", "47"]),
        row(&["&lt;script&gt;alert(1)&lt;/script&gt;", "47", "jobs=47"]),
    ];
    let good = "<span class=\"good\">ready</span>, etcd answers";
    let html = wait_for("all of it is shown", DEADLINE, || {
        let html = shown();
        (html.contains(good) && expected.iter().all(|cells| has(&html, cells))).then_some(html)
    });
    for text in [
        "<svg class=\"wide\"",
        "<svg class=\"narrow\"",
        "<title>jobs: the highest token is 47</title>",
        "<title>jobs: token 47</title>",
        "<title>INSERT, jobs, token 46: admitted",
        "<title>LF001: INSERT, jobs, token 46: the highest is 47</title>",
        "<text class=\"name\" x=\"10.0\" y=\"40.0\">&lt;script&gt;alert(1)&lt;/script&gt;</text>",
    ] {
        assert!(html.contains(text), "{text} in {html}");
    }
    for never in ["<script", "31337", "<form", "<a ", "http://", "https://"] {
        assert!(!html.contains(never), "{never} in {html}");
    }
}

#[test]
fn the_page_begins_with_an_unreachable_etcd_and_server() {
    let mut world = World::start();
    let address = world.of_proxy();
    let shown = || get(address, "/").body;
    wait_until("nothing needs attention", DEADLINE, || {
        let html = shown();
        html.contains(", etcd answers") && !html.contains("Needs attention")
    });
    world.etcd.kill9();
    wait_until("etcd needs attention", DEADLINE, || shown().contains("<li>etcd does not answer: "));
    world.postgres.stop();
    let expected = ["<li>not ready: the server at ", " cannot be reached: "];
    let html = wait_for("the server needs attention", DEADLINE, || {
        Some(shown()).filter(|html| expected.iter().all(|text| html.contains(text)))
    });
    assert!(html.find("Needs attention") < html.find("<h2>Fences</h2>"), "{html}");
}

#[test]
fn a_browser_may_only_display_the_page() {
    let world = World::start();
    let page = get(world.of_proxy(), "/");
    let expected = [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|it| !page.head.contains(it)).collect();
    assert_eq!((page.status, missing), (200, Vec::new()), "{}", page.head);
    assert_eq!(ask(world.of_proxy(), "POST", "/").status, 405);
    // A leader has no status page.
    let page = get(world.of_lead(), "/");
    assert_eq!(
        (page.status, page.body.as_str()),
        (404, "page not found; available pages: /metrics, /healthz, /readyz\n")
    );
}

/// Each check of the server opens a connection to the database in --control.
#[test]
fn the_server_is_queried_once_per_second_for_any_number_of_requests() {
    let world = World::start();
    let address = world.of_proxy();
    let looks = || -> u64 {
        let count = "SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'";
        world.postgres.sql_in("unprepared", count)[0][0].as_ref().unwrap().parse().unwrap()
    };
    get(address, "/");
    let (before, start) = (looks(), Instant::now());
    while start.elapsed() < Duration::from_secs(2) {
        get(address, "/");
        get(address, "/readyz");
    }
    // When all places are taken, a new request ends an older one, even during a check.
    let mut waiting = VecDeque::new();
    while start.elapsed() < Duration::from_secs(5) {
        let mut one_more = TcpStream::connect(address).unwrap();
        one_more.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        waiting.push_back(one_more);
        waiting.drain(..waiting.len().saturating_sub(100));
    }
    drop(waiting);
    get(address, "/");
    let most = start.elapsed().as_secs() + 2;
    // The server counts a connection when it ends.
    wait_until("they are counted", DEADLINE, || looks() > before);
    let made = looks() - before;
    assert!(made <= most, "{made} checks, expected at most {most}");
}
