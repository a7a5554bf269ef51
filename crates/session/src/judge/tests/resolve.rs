//! Resolution of the names in EXECUTE and FETCH.

use super::super::*;
use fencegate_statement::{Lexing, analyze};

fn resolved(text: &str) -> Vec<Arc<Statement>> {
    let script = analyze(text.as_bytes(), Lexing::USUAL).unwrap();
    resolve(&script.statements, &Names::default(), 1).unwrap()
}

#[test]
fn a_prepared_statement_is_resolved_for_each_execute() {
    let text = format!("PREPARE p AS DELETE FROM t; {}", "EXECUTE p; ".repeat(2_000));
    let resolved = resolved(&text);
    assert!(resolved[1..].iter().all(|statement| statement.writes.len() == 1 && statement.opaque.is_none()));
}

#[test]
fn resolved_statements_have_a_weight_limit() {
    let calls: Vec<_> = (0..1_000).map(|number| format!("f{number}()")).collect();
    let text = format!("PREPARE p AS SELECT {}; {}", calls.join(", "), "EXECUTE p; ".repeat(2_000));
    let resolved = resolved(&text);
    let weight: usize = resolved.iter().map(|statement| statement.weight()).sum();
    assert!(weight < 2 * MAX_WEIGHT, "{weight}");
    // Statements beyond the limit are opaque.
    let (first, last) = (&resolved[1], &resolved[2_000]);
    assert!(first.functions.len() == 1_000 && first.opaque.is_none());
    assert!(last.functions.is_empty() && last.opaque.is_some());
    assert_eq!(last.parameter, ParameterEffect::Unknown);
}
