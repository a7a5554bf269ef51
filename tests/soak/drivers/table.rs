//! The table of drivers in docs/reference/compatibility.md matches the results of the tests.

use crate::drivers::steps::{OFFERED, Report};

const COMPATIBILITY: &str = include_str!("../../../docs/reference/compatibility.md");

/// Drivers installed by the system. The table has their tested version, but other versions are permitted.
const OF_THE_SYSTEM: &[&str] = &["psql", "JDBC"];

#[test]
fn every_row_has_a_test() {
    let (_, table) = COMPATIBILITY.split_once("| driver | version |").expect("the table");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with("| ")).collect();
    assert_eq!(rows.len(), include_str!("mod.rs").matches("fn with_").count(), "{rows:#?}");
}

#[track_caller]
pub fn assert_row(driver: &str, report: &Report) {
    let shown = COMPATIBILITY.lines().find(|line| line.starts_with(&format!("| {driver} | ")));
    let shown = shown.unwrap_or_else(|| {
        panic!("docs/reference/compatibility.md has no row for {driver}: {}", row(driver, "", report))
    });
    let version = match report.result("version") {
        Some(version) if !OF_THE_SYSTEM.contains(&driver) => version,
        _ => shown.split('|').nth(2).unwrap_or_default().trim(),
    };
    assert_eq!(shown, row(driver, version, report), "in docs/reference/compatibility.md");
}

fn row(driver: &str, version: &str, report: &Report) -> String {
    let offered = OFFERED.iter().map(|(step, _)| if report.result(step).is_some() { "✓" } else { "–" });
    let classes = [report.class("is_refused"), report.class("is_cut_off")].map(|class| format!("`{class}`"));
    let cells: Vec<&str> =
        [driver, version].into_iter().chain(offered).chain(classes.iter().map(String::as_str)).collect();
    format!("| {} |", cells.join(" | "))
}
