//! The statements that EXECUTE and FETCH run, by name.
//!
//! Must never resolve a name by its meaning before replies that are still to come.

use crate::names::{Meaning, Names};
use fencegate_statement::{OpaqueReason, ParameterEffect, PreparedEffect, Statement, StatementKind};
use std::collections::HashMap;
use std::sync::Arc;

/// Limit on the expansion of one message by EXECUTE and FETCH, in bytes: each execution holds its statement in memory
/// again.
const HEAVIEST: usize = 4 << 20;

/// Resolves EXECUTE, including names that the same statements PREPARE first, and FETCH.
///
/// None if the result depends on pending replies.
pub fn resolve(statements: &[Arc<Statement>], names: &Names, batch: u64) -> Option<Vec<Arc<Statement>>> {
    let mut prepared: HashMap<&str, Arc<Statement>> = HashMap::new();
    let mut resolved = Vec::with_capacity(statements.len());
    let mut room = HEAVIEST;
    for statement in statements {
        let mut run = |inner: &Statement| match room.checked_sub(statement.weight() + inner.weight()) {
            Some(left) => {
                room = left;
                Arc::new(statement.executing(Some(inner)))
            }
            None => Arc::new(statement.executing_too_much()),
        };
        let runs = match &statement.prepared {
            PreparedEffect::Prepare { name, statement: inner } => {
                prepared.insert(name, inner.clone());
                statement.clone()
            }
            PreparedEffect::Execute { name, .. } => match prepared.get(name.as_str()) {
                Some(inner) => run(inner),
                None => match names.statements.meaning(name.as_bytes(), batch) {
                    Meaning::Certain(inner) => run(&inner),
                    Meaning::Unsettled => return None,
                    Meaning::Unknown => Arc::new(statement.executing(None)),
                },
            },
            PreparedEffect::Fetch { name } => match names.portals.meaning(name.as_bytes(), batch) {
                Meaning::Certain(inner) => run(&inner),
                Meaning::Unsettled => return None,
                // A cursor was judged at its DECLARE, and can only read or call functions.
                Meaning::Unknown if names.portals.is_complete() => statement.clone(),
                Meaning::Unknown => Arc::new(statement.executing(None)),
            },
            _ => statement.clone(),
        };
        resolved.push(runs);
    }
    Some(resolved)
}

/// A statement about which only the reason for its opacity is known.
pub fn opaque(kind: StatementKind, why: OpaqueReason) -> Arc<Statement> {
    Arc::new(Statement { kind, opaque: Some(why), parameter: ParameterEffect::Unknown, ..Statement::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
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
        assert!(weight < 2 * HEAVIEST, "{weight}");
        // Statements beyond the limit may do anything.
        let (first, last) = (&resolved[1], &resolved[2_000]);
        assert!(first.functions.len() == 1_000 && first.opaque.is_none());
        assert!(last.functions.is_empty() && last.opaque.is_some());
        assert_eq!(last.parameter, ParameterEffect::Unknown);
    }
}
