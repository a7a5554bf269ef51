//! The combined effect of the statements before another one in the same string: they run first, if it runs.
//!
//! Must never reject by a fence that only observes.

use super::PassedWrite;
use super::{Need, Stop};
use crate::pending_definitions::PendingDefinitions;
use crate::rejection::Rejection;
use fencegate_fence::session::Token;
use fencegate_policy::{Mode, Resource};
use fencegate_statement::{ParameterEffect, Statement, TransactionEffect};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The needs of statements, in their order. There may be thousands, and each is looked up.
#[derive(Default)]
pub(super) struct Needs {
    list: Vec<Need>,
    /// By the name of the resource, the token that is needed first.
    tokens: HashMap<String, Token>,
}

impl Needs {
    pub(super) fn push(&mut self, need: Need) {
        self.tokens.entry(need.resource.name.clone()).or_insert(need.token);
        self.list.push(need);
    }

    pub(super) fn extend(&mut self, more: Needs) {
        more.list.into_iter().for_each(|need| self.push(need));
    }

    /// The first one whose fence has this mode.
    pub(super) fn first(&self, mode: Mode) -> Option<&Arc<Resource>> {
        self.list.iter().map(|need| &need.resource).find(|resource| resource.mode == mode)
    }

    pub(super) fn token(&self, resource: &str) -> Option<Token> {
        self.tokens.get(resource).copied()
    }

    pub(super) fn into_list(self) -> Vec<Need> {
        self.list
    }
}

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
