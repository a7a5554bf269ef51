//! What a statement runs that another one has named: EXECUTE, FETCH.
//!
//! Must never take a name for what it meant before replies that are still to come.

use super::super::names::{Meaning, Names};
use crate::statement::{ParameterEffect, PreparedEffect, Statement};
use std::collections::HashMap;
use std::sync::Arc;

/// What the statements of one message that EXECUTE or FETCH others may come to, in bytes: what each runs is in memory as
/// often as it is run.
const HEAVIEST: usize = 4 << 20;

/// Looks up what EXECUTE runs, also for names that the same statements PREPARE first, and what FETCH runs.
///
/// None when that depends on replies that are still to come.
pub fn resolve(
    statements: &[Arc<Statement>],
    names: &Names,
    portals: &Names,
    batch: u64,
) -> Option<Vec<Arc<Statement>>> {
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
                None => match names.meaning(name.as_bytes(), batch) {
                    Meaning::Certain(inner) => run(&inner),
                    Meaning::Unsettled => return None,
                    Meaning::Unknown => Arc::new(statement.executing(None)),
                },
            },
            PreparedEffect::Fetch { name } => match portals.meaning(name.as_bytes(), batch) {
                Meaning::Certain(inner) => run(&inner),
                Meaning::Unsettled => return None,
                // What DECLARE made was judged then, and can only read or call functions.
                Meaning::Unknown if portals.is_complete() => statement.clone(),
                Meaning::Unknown => Arc::new(statement.executing(None)),
            },
            _ => statement.clone(),
        };
        resolved.push(runs);
    }
    Some(resolved)
}

/// A statement of which nothing is known but why.
pub fn opaque(kind: &'static str, why: &'static str) -> Arc<Statement> {
    Arc::new(Statement { kind, opaque: Some(why), parameter: ParameterEffect::Unknown, ..Statement::default() })
}
