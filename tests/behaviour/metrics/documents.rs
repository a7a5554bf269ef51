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
    let text = document("docs/operations.md");
    let (_, metrics) = text.split_once("\n## Metrics and health\n").unwrap();
    let metrics = metrics.split("\n## ").next().unwrap();
    let table: Vec<&str> = metrics.lines().filter(|line| line.starts_with("| `fencegate_")).collect();
    let expected: Vec<String> = METRICS.iter().map(row).collect();
    assert_eq!(table, expected, "expected:\n{}", expected.join("\n"));
}

#[test]
fn every_alert_has_an_entry() {
    let (text, alerts) = (document("docs/operations.md"), document("deploy/prometheus/alerts.yml"));
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<&str> = names.filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, Vec::<&str>::new());
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
