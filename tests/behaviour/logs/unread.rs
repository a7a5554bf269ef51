//! Standard error is a full pipe that is not read.

use crate::logs::line::{POLICIES, SCHEMA, events, lines};
use crate::metrics::page::{get, samples, sum};
use crate::support::fenced::{Fenced, code, ok};
use crate::support::full_pipe::FullPipe;
use crate::support::guardian::{Folder, Port};
use crate::support::{DEADLINE, Options, ProxyOptions, wait_until};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

#[test]
fn sessions_go_on_and_dropped_lines_are_counted_and_reported() {
    let (folder, http) = (Folder::new("unread"), Port::claim());
    let pipe = FullPipe::make(&folder.join("pipe"));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, http.number()));
    let options = ProxyOptions::default().policies(POLICIES).log_to(pipe.path.as_ref());
    let options = options.arguments(&["--log-format", "json", "--http", &address.to_string()]);
    let mut fenced = Fenced::start_with(Options::default(), SCHEMA, &options);
    let mut established = fenced.holder(2);
    ok(&mut established, "INSERT INTO jobs VALUES (1)");
    assert_eq!(code(&mut fenced.holder(1), "INSERT INTO jobs VALUES (2)"), "LF001");

    // A reload logs every fault of the files.
    let mut faults = "version: 1\nresources:\n".to_owned();
    for number in 0..2000 {
        writeln!(faults, "  - {{name: fault{number}, unknown_key: {}}}", "x".repeat(100)).unwrap();
    }
    fenced.proxy.write_policies(&faults);
    let dropped = || sum(&samples(&get(address, "/metrics").body), "fencegate_log_lines_dropped_total", &[]);
    assert_eq!(dropped(), 0.0);
    wait_until("lines are dropped", DEADLINE, || {
        fenced.proxy.sighup();
        ok(&mut established, "INSERT INTO jobs SELECT max(n) + 1 FROM jobs");
        ok(&mut fenced.login(), "SELECT 1");
        dropped() > 0.0
    });

    let reader = pipe.read();
    fenced.proxy.write_policies(POLICIES);
    // The line of the reload follows all lines in the queue.
    wait_until("the queue is empty", DEADLINE, || {
        fenced.proxy.sighup();
        reader.so_far().contains("policies_loaded")
    });
    let dropped = dropped();
    assert_eq!(fenced.proxy.terminate(), 0);
    let log = reader.end();
    // Every line is complete, including the last one.
    assert!(lines(&log).iter().any(|line| line.get("event").is_some_and(|event| event == "stopped")));
    let reported =
        events(&log, "log_lines_dropped").iter().map(|line| line["dropped"].parse::<f64>().unwrap()).sum::<f64>();
    assert_eq!(reported, dropped);
}
