//! The combined effect of the statements before another one in the same string: they run first, if it runs.
//!
//! Must never reject by a fence that only observes.

use super::Stop;
use super::need::{Needs, PassedWrite};
use crate::pending_definitions::PendingDefinitions;
use crate::rejection::Rejection;
use fencegate_policy::{Mode, Resource};
use fencegate_statement::{ParameterEffect, Statement, TransactionEffect};
use std::collections::HashSet;
use std::sync::Arc;

/// The effects of the statements before another one in the same string.
#[derive(Default)]
pub(super) struct Earlier {
    pub(super) needs: Needs,
    /// Writes that fences would reject if they did not only observe.
    pub(super) passed: Vec<PassedWrite>,
    pub(super) ended_transaction: bool,
    pub(super) suspects: PendingDefinitions,
    /// The session's role may be another.
    pub(super) role_changes: bool,
    /// Code that they run may change the search path.
    pub(super) may_set_path: bool,
    /// They may create operators or types that hide the catalog's own.
    pub(super) shadow_keys: bool,
    /// Some may have changed the token unseen, and it is presumed that they have not.
    pub(super) presumes: bool,
    /// The resources whose token the server has checked since.
    pub(super) checked: HashSet<String>,
    /// The statement at hand.
    pub(super) statement: Arc<Statement>,
}

impl Earlier {
    /// An earlier check no longer holds if the statement may set the token or restore an older one.
    pub(super) fn note_token(&mut self, statement: &Statement, is_presumed: bool) {
        self.presumes |= is_presumed;
        if statement.parameter != ParameterEffect::None || statement.transaction != TransactionEffect::None {
            self.checked.clear();
        }
    }

    /// A fence that only observes rejects nothing.
    pub(super) fn observed_or(&mut self, resource: &Arc<Resource>, rejection: Rejection) -> Result<(), Stop> {
        if resource.mode == Mode::Enforce {
            return Err(rejection.into());
        }
        self.observed(Some(resource.clone()), rejection);
        Ok(())
    }

    /// Records a write that enforcing fences would reject. Its resource may be unknown.
    pub(super) fn observed(&mut self, resource: Option<Arc<Resource>>, rejection: Rejection) {
        self.passed.push(PassedWrite { resource, statement: self.statement.clone(), observed: Some(rejection) });
    }
}
