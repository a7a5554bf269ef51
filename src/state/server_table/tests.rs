//! The choice of the primary, by tables of reports.

use super::*;
use ServerRole::{Primary, Standby, Superseded, Unknown};
use std::time::Duration;

fn table(hosts: usize) -> ServerTable {
    ServerTable::new(&list(0..hosts))
}

fn list(hosts: impl IntoIterator<Item = usize>) -> Upstream {
    Upstream {
        hosts: hosts.into_iter().map(address).collect(),
        target: TargetSession::Primary,
        balances_load: false,
        connect_timeout: Duration::from_secs(3),
    }
}

fn address(number: usize) -> Address {
    Address::Tcp { host: format!("h{number}"), port: 5432 }
}

/// A report from text: `p2` is a primary on timeline 2, `s1` a standby on timeline 1; the prefix `x`
/// means another cluster, and the suffix `'` a restarted postmaster. `-`: the look fails.
fn report(host: usize, text: &str) -> Result<ServerReport, LookError> {
    let (text, restarted) = (text.trim_end_matches('\''), text.ends_with('\''));
    let (cluster, rest) = text.strip_prefix('x').map_or(("1", text), |rest| ("2", rest));
    let timeline = rest
        .get(1..)
        .and_then(|digits| digits.parse().ok())
        .ok_or(LookError::Failed("connection refused".to_owned()))?;
    Ok(ServerReport {
        in_recovery: rest.starts_with('s'),
        system_identifier: cluster.to_owned(),
        postmaster_start: format!("{host}.{}", u8::from(restarted)),
        timeline,
    })
}

fn identity(host: usize, text: &str) -> Identity {
    let report = report(host, text).unwrap();
    Identity {
        pid: 1,
        backend_start: "1".to_owned(),
        system_identifier: report.system_identifier,
        postmaster_start: report.postmaster_start,
    }
}

/// Reports of each host in turn, in rounds.
fn look(table: &mut ServerTable, round: &str) -> Vec<ServerChange> {
    let reports = round.split(' ').enumerate();
    reports.flat_map(|(host, text)| table.report(host, 1, report(host, text))).collect()
}

fn roles(table: &ServerTable) -> Vec<ServerRole> {
    table.hosts().iter().map(|host| host.role).collect()
}

#[test]
fn the_primary_is_the_writable_server_of_the_highest_timeline() {
    for (rounds, expected) in [
        (&["p1 s1"][..], [Primary, Standby]),
        (&["- p1"], [Unknown, Primary]),
        (&["s1 s1"], [Standby, Standby]),
        (&["p1 s1", "- s1"], [Unknown, Standby]),
        // A promotion, and the return of the old primary.
        (&["p1 s1", "- p2"], [Unknown, Primary]),
        (&["p1 s1", "p1 p2"], [Superseded, Primary]),
        (&["p1 p2"], [Superseded, Primary]),
        (&["p1 s1", "- p2", "p1 -"], [Superseded, Unknown]),
        (&["p1 s1", "- p2", "p1 -", "s2 p2"], [Standby, Primary]),
        // A standby has followed a timeline that the old primary does not have.
        (&["p1 s2"], [Superseded, Standby]),
        // Both were promoted to the same timeline.
        (&["p2 p2"], [Superseded, Superseded]),
        (&["p2 s1", "p2 p2"], [Primary, Superseded]),
        // A data directory that another host has started.
        (&["p1 -", "- p1"], [Unknown, Primary]),
        // Another cluster does not take over, unless it has replaced this one.
        (&["p1 xp5"], [Superseded, Superseded]),
        (&["p1 s1", "p1 xp5"], [Primary, Superseded]),
        (&["p1 s1", "- xp5"], [Unknown, Superseded]),
        (&["p1 s1", "xp1 -"], [Primary, Unknown]),
        (&["p1 s1", "xp1 xs1"], [Primary, Standby]),
    ] {
        let mut table = table(2);
        rounds.iter().for_each(|round| drop(look(&mut table, round)));
        assert_eq!(roles(&table), expected, "{rounds:?}");
    }
}

#[test]
fn no_server_is_primary_before_all_have_been_looked_at() {
    let mut waiting = table(2);
    assert_eq!(waiting.report(0, 1, report(0, "p1")), []);
    assert!(waiting.places(TargetSession::Any).is_empty() && waiting.primary().is_none());
    assert_eq!(waiting.settle(), [ServerChange::Primary { old: None, new: 0 }], "the other server does not answer");
    assert_eq!(
        waiting.report(1, 1, report(1, "p2")),
        [ServerChange::Primary { old: Some(0), new: 1 }, ServerChange::Superseded(0)]
    );
}

#[test]
fn each_change_is_reported_once() {
    let mut table = table(2);
    let primary = |old, new| ServerChange::Primary { old, new };
    assert_eq!(look(&mut table, "p1 s1"), [primary(None, 0)]);
    assert_eq!(look(&mut table, "p1' s1"), [], "a restart is not a change");
    assert_eq!(look(&mut table, "- s1"), [ServerChange::NoPrimary]);
    assert_eq!(look(&mut table, "- p2"), [primary(Some(0), 1)]);
    assert_eq!(look(&mut table, "p1 p2"), [ServerChange::Superseded(0)]);
    assert_eq!(look(&mut table, "p1 p2"), []);
    assert_eq!(look(&mut table, "s2 p2"), []);
    assert_eq!(look(&mut table, "- p3"), [primary(Some(1), 1)], "a higher timeline");
}

#[test]
fn new_sessions_go_to_the_servers_of_their_target() {
    use TargetSession::{Any, PreferStandby};
    let target = TargetSession::Primary;
    for (round, of_target, any, standby, prefer) in [
        ("p1 s1 s1", vec![0], vec![0], vec![1, 2], vec![1, 2]),
        ("- s1 -", vec![], vec![1, 0, 2], vec![1], vec![1]),
        ("p1 - -", vec![0], vec![0], vec![], vec![0]),
        ("p1 p2 -", vec![1], vec![1], vec![], vec![1]),
    ] {
        let mut table = table(3);
        look(&mut table, round);
        let places = [target, Any, TargetSession::Standby, PreferStandby].map(|it| table.places(it));
        assert_eq!(places, [of_target, any, standby, prefer], "{round}");
    }
}

#[test]
fn a_session_is_admitted_only_on_the_primary_or_on_a_standby_where_the_target_allows_it() {
    let mut table = table(3);
    look(&mut table, "p1 p2 s2");
    for (host, text, in_recovery, expected) in [
        (1, "p2", false, [true, true, false]),
        (1, "p2'", false, [false, false, false]),
        (0, "p1", false, [false, false, false]),
        (2, "s2", true, [true, false, true]),
        (2, "xs2", true, [false, false, false]),
        // The server was promoted since the last look, so another look is necessary.
        (2, "p3", false, [false, false, false]),
    ] {
        let targets = [TargetSession::Any, TargetSession::Primary, TargetSession::Standby];
        let admitted = targets.map(|target| table.admits(target, &identity(host, text), in_recovery));
        assert_eq!(admitted, expected, "{host} {text}");
    }
}

#[test]
fn open_sessions_continue_unless_another_server_is_the_primary() {
    let mut table = table(3);
    look(&mut table, "p1 s1 s1");
    let [old, new, standby] = [(0, "p1"), (1, "s1"), (2, "s1")].map(|(host, text)| (host, identity(host, text)));
    let kept = |table: &ServerTable| {
        let keeps = |host: usize, it| (table.keeps(&address(host), Some(it)), table.keeps(&address(host), None));
        [&old, &new, &standby].map(|(host, it)| keeps(*host, it))
    };
    assert_eq!(kept(&table), [(true, true); 3]);
    look(&mut table, "- s1 s1");
    assert_eq!(kept(&table), [(true, true); 3], "no server is primary");
    look(&mut table, "- p2 -");
    assert_eq!(kept(&table), [(false, false), (true, true), (true, true)]);
    look(&mut table, "p1 p2 s2");
    assert_eq!(kept(&table), [(false, false), (true, true), (true, true)]);
    assert!(!table.keeps(&address(1), Some(&identity(1, "p2'"))), "a server that no prober has seen");
}

#[test]
fn a_reload_keeps_what_is_known() {
    let mut table = table(2);
    look(&mut table, "p1 p2");
    let look_at = |host, text| Look { address: address(host), result: report(host, text) };
    // The old primary does not become the primary, even if the new list contains only this server.
    let only = |host| Upstream { target: TargetSession::Primary, ..list([host]) };
    assert_eq!(table.reload(&only(0), vec![look_at(0, "p1")]), [ServerChange::NoPrimary]);
    assert_eq!(roles(&table), [Superseded]);
    assert!(!table.keeps(&address(1), Some(&identity(1, "p2"))) && table.keeps(&address(0), None));
    // Another address of the primary.
    let changes =
        table.reload(&list([2, 0]), vec![look_at(0, "p1"), Look { address: address(2), result: report(1, "p2") }]);
    assert_eq!(changes, [ServerChange::Primary { old: None, new: 0 }]);
    assert!(table.keeps(&address(1), Some(&identity(1, "p2"))), "its server is still the primary");
    // A host that does not answer keeps its last report.
    let silent = Look { address: address(0), result: report(0, "-") };
    assert_eq!(table.reload(&list([0, 2]), vec![silent]), []);
    assert_eq!(roles(&table), [Unknown, Primary]);
    // One server that is not probed.
    let any = Upstream { target: TargetSession::Any, ..list([3]) };
    assert_eq!(table.reload(&any, vec![Look { address: address(3), result: report(1, "p2") }]), []);
    assert_eq!((table.candidates(), table.primary()), (vec![address(3)], None));
    assert!(table.keeps(&address(2), Some(&identity(1, "p2"))) && !table.keeps(&address(0), Some(&identity(0, "p1"))));
}

#[test]
fn control_connections_are_refused_on_other_servers_than_the_primary() {
    let mut table = table(2);
    let is_superseded = |table: &ServerTable, host, text| {
        let it = identity(host, text);
        table.is_superseded(&it.system_identifier, &it.postmaster_start)
    };
    assert!(!is_superseded(&table, 0, "p1"));
    look(&mut table, "p1 p2");
    assert!(is_superseded(&table, 0, "p1") && is_superseded(&table, 0, "p1'") && !is_superseded(&table, 1, "p2"));
    look(&mut table, "p1 -");
    assert!(is_superseded(&table, 0, "p1") && !is_superseded(&table, 1, "p2"));
}

#[test]
fn an_error_names_each_host_and_its_state() {
    let mut table = table(3);
    look(&mut table, "p1 p2 s2");
    look(&mut table, "p1 - s2");
    let expected = "h0:5432 is superseded: cluster 1, timeline 1, highest 2; h1:5432 is unknown: connection refused; h2:5432 is standby";
    assert_eq!(table.summary(true), expected);
    assert!(table.summary(false).contains("h1:5432 is unknown;"));
}
