//! What stands before a statement in the same string: it runs first, if the statement does.
//!
//! Owns what it adds up to. Must never reject by a fence that only observes.

use super::super::audit::PassedWrite;
use super::super::rejection::Rejection;
use super::super::suspects::Suspects;
use super::{Need, Stop};
use crate::policy::{Mode, Resource};
use std::sync::Arc;

/// What stands before a statement in the same string.
#[derive(Default)]
pub(super) struct Earlier {
    pub(super) needs: Vec<Need>,
    /// What fences that only observe would reject.
    pub(super) passed: Vec<PassedWrite>,
    pub(super) ended_transaction: bool,
    pub(super) suspects: Suspects,
    /// What they run may change the search path.
    pub(super) may_set_path: bool,
    /// They may make what stands before the catalogue's own operators and types.
    pub(super) shadow_keys: bool,
    /// The kind of the statement at hand.
    pub(super) kind: &'static str,
}

impl Earlier {
    /// A fence that only observes rejects nothing.
    pub(super) fn observed_or(&mut self, resource: &Arc<Resource>, rejection: Rejection) -> Result<(), Stop> {
        if resource.mode == Mode::Enforce {
            return Err(rejection.into());
        }
        let resource = Some(resource.clone());
        self.passed.push(PassedWrite { resource, statement: self.kind, observed: Some(rejection) });
        Ok(())
    }
}
