//! Names and labels of all metrics match the contract with users.

use crate::metrics::page::{Sample, get, samples, sum};
use crate::metrics::world::{ELECTION, World};
use crate::support::fenced::ok;
use crate::support::wait::wait_for;
use crate::support::wire::message::{bind_text, close_portal, execute, flush, parse, sync};
use crate::support::wire::rows_in;
use crate::support::{DEADLINE, Wire, wait_until};
use fencegate::metrics::{METRICS, MetricKind, VERDICTS};
use std::collections::{BTreeMap, BTreeSet};

/// The contract with users. The order of labels does not matter.
const PROMISED: &str = "
fencegate_writes_total{database,resource,verdict,mode}
fencegate_fence_token{database,resource}
fencegate_advances_total
fencegate_drain_seconds
fencegate_drained_sessions_total{how}
fencegate_admissions_total
fencegate_sessions
fencegate_relayed_bytes_total{direction}
fencegate_queries_total
fencegate_leader{election}
fencegate_leader_transitions_total{election}
fencegate_lease_renew_seconds
fencegate_lease_losses_total{election,reason}
fencegate_etcd_up
fencegate_upstream_up
fencegate_upstream_role{host}
fencegate_upstream_timeline{host}
fencegate_election_token{election}
fencegate_lease_token{database,lease}
fencegate_policies_superseded{database}
fencegate_policy_tables{state}
fencegate_notification_queue_usage
";
const PROMISED_VERDICTS: &str = "admitted, stale, missing, invalid, unverifiable, unissued, unavailable, exempt";

type Names = BTreeMap<String, BTreeSet<String>>;

fn promised() -> Names {
    let read = |line: &str| {
        let (name, labels) = line.split_once('{').unwrap_or((line, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        (name.to_owned(), labels.map(str::to_owned).collect())
    };
    PROMISED.trim().lines().map(read).collect()
}

/// Histograms have three names, one of them with a label for the bound.
fn served(samples: &[Sample]) -> Names {
    let mut names = Names::new();
    for sample in samples {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| sample.name.strip_suffix(end));
        let labels = sample.labels.iter().map(|(label, _)| label.clone()).filter(|label| label != "le");
        names.entry(name.unwrap_or(&sample.name).to_owned()).or_default().extend(labels);
    }
    names
}

/// Total of all series of each metric. For a histogram, the number of observations.
fn totals(samples: &[Sample]) -> BTreeMap<&'static str, f64> {
    let total = |metric: &fencegate::metrics::Described| {
        let counted =
            if metric.kind == MetricKind::Histogram { format!("{}_count", metric.name) } else { metric.name.into() };
        (metric.name, sum(samples, &counted, &[]))
    };
    METRICS.iter().map(total).collect()
}

#[test]
fn every_metric_moves_and_is_called_as_promised() {
    let mut world = World::start();
    let before = totals(&samples(&get(world.of_proxy(), "/metrics").body));
    world.elect();
    let _open = Wire::login(&world.proxy.address(), "postgres", "postgres");
    world.move_everything(1);
    wait_until("writes to observing fences are counted", DEADLINE, || {
        sum(&world.samples(), "fencegate_writes_total", &[("mode", "observe"), ("verdict", "stale")]) > 0.0
    });
    // A check of the server that takes 2 s reports that the proxy is not ready.
    let samples = wait_for("it is ready, etcd answers, and the queue of notifications is measured", DEADLINE, || {
        let samples = world.samples();
        let is_up = ["fencegate_ready", "fencegate_etcd_up"].iter().all(|name| sum(&samples, name, &[]) == 1.0);
        // Measured some seconds after the first session has started.
        let is_measured = samples.iter().any(|sample| sample.name == "fencegate_notification_queue_usage");
        (is_up && is_measured).then_some(samples)
    });
    let names = served(&samples);
    let described: Names =
        METRICS.iter().map(|it| (it.name.into(), it.labels.iter().map(|&it| it.into()).collect())).collect();
    assert_eq!(names, described);
    for (name, labels) in promised() {
        assert_eq!(names.get(&name), Some(&labels), "{name}");
    }
    for (name, after) in totals(&samples) {
        // Metrics that do not change in this world.
        const STILL: [&str; 5] = [
            "fencegate_policies_superseded",
            "fencegate_notification_queue_usage",
            "fencegate_tokens_gone_back",
            "fencegate_lease_losses_total",
            "fencegate_log_lines_dropped_total",
        ];
        if STILL.contains(&name) {
            continue;
        }
        // Metrics for readiness, reloads, version, server and tables are set from the start.
        let was = if ["_ready", "_successful", "_up", "_role", "_timeline", "_policy_tables"]
            .iter()
            .any(|end| name.ends_with(end))
            || name.ends_with("_info")
        {
            0.0
        } else {
            before[name]
        };
        assert!(after > was, "{name}: {was}, then {after}");
    }
    for verdict in PROMISED_VERDICTS.split(", ") {
        assert!(VERDICTS.contains(&verdict));
        assert!(
            sum(&samples, "fencegate_writes_total", &[("verdict", verdict), ("mode", "enforce")]) > 0.0,
            "{verdict}"
        );
    }
    assert_eq!(sum(&samples, "fencegate_fence_token", &[("resource", "jobs"), ("database", "postgres")]), 13.0);
    assert_eq!(sum(&samples, "fencegate_leader", &[("election", ELECTION)]), 1.0);
}

#[test]
fn every_value_of_a_bounded_label_moves() {
    /// Names chosen by users, and the program's version.
    const UNBOUNDED: [&str; 6] = ["host", "database", "resource", "election", "lease", "version"];
    let mut world = World::start();
    world.elect();
    world.move_everything(1);
    Wire::connect(&world.proxy.address()).unwrap().start(&[("user", "postgres"), ("database", "nowhere")], "");
    world.proxy.write_policies("version: 1\nresources: 7\n");
    world.proxy.sighup();
    let count = |name, labels: &[_]| sum(&samples(&get(world.of_proxy(), "/metrics").body), name, labels);
    let has_failed = || count("fencegate_policy_reloads_total", &[("result", "failed")]) > 0.0;
    wait_until("a reload has failed", DEADLINE, has_failed);
    world.postgres.stop();
    Wire::connect(&world.proxy.address()).unwrap().start(&[("user", "postgres"), ("database", "postgres")], "");
    let unmoved = || {
        let samples = samples(&get(world.of_proxy(), "/metrics").body);
        let series =
            samples.iter().flat_map(|sample| sample.labels.iter().map(|(label, value)| (&sample.name, label, value)));
        let bounded = series.filter(|(_, label, _)| label.as_str() != "le" && !UNBOUNDED.contains(&label.as_str()));
        // A table has one state, and all tables of this world exist.
        let bounded = bounded.filter(|(name, ..)| name.as_str() != "fencegate_policy_tables");
        let stands = |(name, label, value): &(&String, &String, &String)| sum(&samples, name, &[(label, value)]) == 0.0;
        bounded.filter(stands).map(|(name, label, value)| format!("{name}{{{label}={value}}}")).collect::<BTreeSet<_>>()
    };
    wait_until("every value has moved", DEADLINE, || {
        let unmoved = unmoved();
        println!("unmoved: {unmoved:?}");
        unmoved.is_empty()
    });
}

#[test]
fn each_event_is_counted_once() {
    let world = World::start();
    let count =
        |verdict, mode| sum(&world.samples(), "fencegate_writes_total", &[("verdict", verdict), ("mode", mode)]);
    let mut wire = Wire::login(&world.proxy.address(), "postgres", "postgres");
    assert_eq!(count("admitted", "enforce"), 0.0, "the series exist before the first write");
    // Held back until the parameter has been read, and then until the session is admitted.
    let script = "SELECT set_config('lease.fence', (3 + 4)::text, false)";
    ok(&mut wire, script);
    ok(&mut wire, "INSERT INTO jobs VALUES (1); INSERT INTO watched VALUES (1)");
    wait_until("the write to the observing fence is counted", DEADLINE, || count("admitted", "observe") > 0.0);
    assert_eq!((count("admitted", "enforce"), count("admitted", "observe")), (1.0, 1.0));
    ok(&mut wire, "RESET lease.fence");
    ok(&mut wire, "INSERT INTO watched VALUES (1)");
    assert_eq!(count("missing", "observe"), 1.0);
    let queries = sum(&world.samples(), "fencegate_queries_total", &[]);
    assert_eq!(queries, 4.0);
    let sessions = || sum(&world.samples(), "fencegate_sessions", &[]);
    assert_eq!(sessions(), 1.0);
    drop(wire);
    wait_until("the session is gone", DEADLINE, || sessions() == 0.0);
    assert_eq!(count("admitted", "observe"), 1.0, "counted once, although it waited for the other fence");
}

#[test]
fn a_portal_that_is_fetched_in_parts_is_counted_once() {
    const ROWS: &str = "INSERT INTO jobs SELECT generate_series(1, 5) RETURNING n";
    const OBSERVED: &str = "INSERT INTO watched SELECT generate_series(1, 5) RETURNING n";
    let world = World::start();
    let fetch_in_parts = |wire: &mut Wire, sql: &str| {
        ok(wire, "BEGIN");
        wire.exchange(&[parse("s", sql, &[]), sync()].concat());
        for portal in ["p", "p", ""] {
            let parts = [execute(portal, 2), flush(), execute(portal, 2), execute(portal, 0)].concat();
            let close = if portal == "p" { close_portal(portal) } else { Vec::new() };
            let frames = wire.exchange(&[bind_text(portal, "s", &[]), parts, close, sync()].concat());
            assert_eq!(rows_in(&frames).len(), 5, "{frames:?}");
        }
        ok(wire, "COMMIT; DEALLOCATE s");
    };
    let count = |verdict| sum(&world.samples(), "fencegate_writes_total", &[("verdict", verdict)]);
    let [mut holder, mut migrator] =
        ["postgres", "migrator"].map(|user| Wire::login(&world.proxy.address(), user, "postgres"));
    fetch_in_parts(&mut migrator, ROWS);
    assert_eq!(count("exempt"), 3.0);
    fetch_in_parts(&mut holder, OBSERVED);
    assert_eq!(count("missing"), 3.0);
    ok(&mut holder, "SET lease.fence = 7");
    fetch_in_parts(&mut holder, ROWS);
    assert_eq!(count("admitted"), 3.0);
}

#[test]
fn statements_of_exempt_roles_are_counted() {
    let world = World::start();
    let mut wire = Wire::login(&world.proxy.address(), "migrator", "postgres");
    ok(&mut wire, "DO $$BEGIN END$$");
    ok(&mut wire, "SELECT 1");
    let exempt = [("verdict", "exempt"), ("resource", "")];
    assert_eq!(sum(&world.samples(), "fencegate_writes_total", &exempt), 1.0);
    assert!(world.proxy.log().contains("exempt_write"), "{}", world.proxy.log());
}
