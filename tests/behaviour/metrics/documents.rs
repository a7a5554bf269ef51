//! The documentation lists exactly the existing metrics.

use fencegate::metrics::METRICS;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn the_table_of_metrics_is_that_of_the_program() {
    let row = |metric: &fencegate::metrics::Described| {
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let by = metric.served_by.join(", ");
        format!("| `{}` | {} | {labels} | {by} | {} |", metric.name, metric.kind.name(), metric.help)
    };
    let text = document("docs/reference/metrics.md");
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with("| `fencegate_")).collect();
    let expected: Vec<String> = METRICS.iter().map(row).collect();
    assert_eq!(table, expected, "expected:\n{}", expected.join("\n"));
}

#[test]
fn every_alert_is_documented_with_its_severity() {
    let (text, alerts) = (document("docs/run/alerts.md"), document("deploy/prometheus/alerts.yml"));
    let rules = alerts.split("- alert: ").skip(1).map(|rule| {
        let severity = rule.split_once("severity: ").unwrap().1.split('}').next().unwrap();
        (rule.lines().next().unwrap(), severity)
    });
    let row = |(name, severity): (&str, &str)| format!("| `{name}` | {severity} | ");
    let missing: Vec<String> = rules.map(row).filter(|row| !text.contains(row)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn the_dashboard_shows_every_metric() {
    let dashboard = document("deploy/grafana/fencegate.json");
    let queries = dashboard.lines().filter(|line| line.contains("\"expr\":"));
    let words = queries.flat_map(|line| line.split(|it: char| !it.is_alphanumeric() && it != '_'));
    let shown: BTreeSet<&str> = words.map(|word| word.trim_end_matches("_bucket")).collect();
    let is_shown = |name: &str| shown.contains(name);
    let missing: Vec<&str> = METRICS.iter().map(|metric| metric.name).filter(|name| !is_shown(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
