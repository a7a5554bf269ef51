//! The alerts and the dashboard in `deploy/`, evaluated by a real Prometheus.

use crate::metrics::world::{POLICIES, Scraper, World};
use crate::support::Wire;
use crate::support::programs::run;
use crate::support::wait::wait_for;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    expr: String,
}

fn rules() -> Vec<Rule> {
    let rules: Rules = serde_saphyr::from_str(&fs::read_to_string(deployed("prometheus/alerts.yml")).unwrap()).unwrap();
    rules.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// Parses the dashboard as YAML, because JSON is a subset of YAML.
fn panels() -> Vec<Panel> {
    let text = fs::read_to_string(deployed("grafana/fencegate.json")).unwrap();
    serde_saphyr::from_str::<Dashboard>(&text).unwrap().panels
}

/// The left side of an alert's comparison.
fn compared(rule: &Rule) -> &str {
    let parts = [" == ", " < ", " > "].iter().find_map(|comparison| rule.expr.rsplit_once(comparison));
    let (left, right) = parts.unwrap_or_else(|| panic!("{}: no comparison", rule.alert));
    assert!(right.parse::<f64>().is_ok(), "{}: {right}", rule.alert);
    left
}

#[test]
fn promtool_accepts_the_rules_and_each_has_advice() {
    let checked = run(Command::new("promtool").args(["check", "rules"]).arg(deployed("prometheus/alerts.yml")));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("SUCCESS"));
    for rule in rules() {
        for annotation in ["summary", "runbook"] {
            assert!(rule.annotations.contains_key(annotation), "{}: {annotation}", rule.alert);
        }
    }
}

#[test]
fn every_query_finds_data() {
    let mut world = World::start();
    world.elect();
    // The proxy follows leases while it has a session.
    let _open = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let scraper = Scraper::start(&world);
    let alerts = rules();
    let mut queries: Vec<(String, String)> =
        alerts.iter().map(|rule| (rule.alert.clone(), compared(rule).to_owned())).collect();
    for panel in panels() {
        let of_panel = panel.targets.iter().map(|it| it.expr.replace("$__rate_interval", "1m"));
        queries.extend(of_panel.map(|query| (panel.title.clone(), query)));
    }
    assert!(queries.len() > 30, "{} queries", queries.len());
    let mut round = 0;
    // Rates need two scrapes with a change in between.
    wait_for("every query finds data", Duration::from_secs(300), || {
        round += 1;
        world.move_everything(round);
        queries.retain(|(_, query)| {
            let values = scraper.query(query);
            values.is_empty() || values.iter().any(|value| value == "NaN")
        });
        println!("after {round} rounds, without data: {queries:?}");
        queries.is_empty().then_some(())
    });
}

#[test]
fn alerts_fire() {
    let mut world = World::start();
    let scraper = Scraper::start(&world);
    let alerts = rules();
    let fires = |name: &str| {
        let rule = alerts.iter().find(|rule| rule.alert == name).unwrap_or_else(|| panic!("{name}"));
        !scraper.query(&rule.expr).is_empty()
    };
    let mut round = 0;
    wait_for("writes are rejected", Duration::from_secs(60), || {
        round += 1;
        world.move_everything(round);
        let rejections = [
            "FencegateStaleWrites",
            "FencegateWritesUnavailable",
            "FencegateWritesWithoutToken",
            "FencegateUnverifiableWrites",
            "FencegateUnissuedTokens",
            "FencegateWouldReject",
        ];
        rejections.iter().all(|name| fires(name)).then_some(())
    });
    for quiet in [
        "FencegateDown",
        "FencegateNotReady",
        "FencegateNoLeader",
        "FencegateNoCandidate",
        "FencegateSeveralLeaders",
        "FencegateReloadFailed",
        "FencegateUpstreamDown",
        "FencegatePoliciesSuperseded",
        "FencegateEtcdDown",
        "FencegateTokensGoneBack",
    ] {
        wait_for(quiet, Duration::from_secs(60), || (!fires(quiet)).then_some(()));
    }
    world.proxy.write_policies("version: 1\nresources: 7\n");
    world.proxy.sighup();
    wait_for("a failed reload", Duration::from_secs(60), || fires("FencegateReloadFailed").then_some(()));
    world.proxy.write_policies(POLICIES);
    world.proxy.sighup();
    wait_for("the alert ends", Duration::from_secs(60), || (!fires("FencegateReloadFailed")).then_some(()));
    world.stop_lead();
    let open = Wire::login(&world.proxy.address(), "postgres", "postgres");
    wait_for("a vacant lease", Duration::from_secs(60), || fires("FencegateLeaseVacant").then_some(()));
    drop(open);
    world.postgres.stop();
    wait_for("a vacant election", Duration::from_secs(60), || fires("FencegateElectionVacant").then_some(()));
    world.etcd.kill9();
    let down =
        ["FencegateNotReady", "FencegateDown", "FencegateNoCandidate", "FencegateUpstreamDown", "FencegateEtcdDown"];
    for loud in down {
        wait_for(loud, Duration::from_secs(60), || fires(loud).then_some(()));
    }
}
