//! The tokens that statements need before they may be forwarded, and the writes that pass fences.

use crate::rejection::Rejection;
use fencegate_fence::session::{MOST_AT_ONCE, Token};
use fencegate_policy::{Mode, Resource};
use fencegate_statement::Statement;
use std::collections::HashMap;
use std::sync::Arc;

/// A resource that a statement writes, and the token for it.
#[derive(Clone, Debug)]
pub struct Need {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The token.
    pub token: Token,
    /// True if the token may raise the fence. Otherwise it must already be in force.
    pub may_raise: bool,
    /// The statement that needs the token.
    pub statement: Arc<Statement>,
    /// An earlier statement of the same string may change the session's role.
    pub role_changes: bool,
    /// An earlier statement of the same string may have changed the token, so the server must check it in between.
    pub presumed: bool,
}

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

/// A write that passes a fence and is reported to operators.
#[derive(Clone, Debug)]
pub struct PassedWrite {
    /// None if the resource is unknown.
    pub resource: Option<Arc<Resource>>,
    /// The statement that passes.
    pub statement: Arc<Statement>,
    /// The rejection that enforcing would have caused; None if the role bypasses the fences.
    pub observed: Option<Rejection>,
}

/// The session's writes past fences that only observe. An enforcing fence would take them into account.
#[derive(Debug, Default)]
pub struct ObservedWrites {
    /// The tokens under which the open transaction has written, by resource.
    pub written: HashMap<String, Token>,
    /// A resource to which an enforcing fence would have admitted the session, if any.
    pub admitted: Option<Arc<Resource>>,
}

impl ObservedWrites {
    /// Records a forwarded write, for at most [`MOST_AT_ONCE`] resources. A second token for any further resource goes
    /// unnoticed; an enforcing fence refuses that many resources in one transaction.
    pub fn note(&mut self, resource: &Arc<Resource>, token: Token) {
        if let Some(written) = self.written.get_mut(&resource.name) {
            *written = token;
        } else if self.written.len() < MOST_AT_ONCE {
            self.written.insert(resource.name.clone(), token);
        }
        self.admitted = Some(resource.clone());
    }
}
