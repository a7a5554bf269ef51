//! Whether a session's role may do what would raise a fence, as the server would decide it.
//!
//! Owns the question alone. Must never let a write pass: a yes only lets the token be raised, and after a no the statement
//! is rejected, not forwarded.

use super::database::Database;
use super::refusal::{Refusal, about};
use super::session::Token;
use crate::policy::{QualifiedName, Resource};
use crate::statement::{Operation, RelationName};
use std::sync::Arc;

/// One thing that a statement does, and by which it touches a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Deed {
    /// It writes or locks the relation, as it names it.
    Write(RelationName, Operation),
    /// It calls the function.
    Call(QualifiedName),
}

/// As whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// As the session's current role.
    Current(String),
    /// As any role that this login role is a member of: the session may become another before it runs.
    AnyOf(String),
}

/// On what ground a session may raise a fence.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What it is about to do.
    pub deeds: Arc<[Deed]>,
    /// As whom; None: that has to be found out where something would be raised.
    pub role: Option<Role>,
}

impl Database {
    /// The server would let the role do all that the claim says. What other transactions have not committed does not count.
    /// 42501 where it would not; LF006; or that the role has to be found out. Cancel-safe.
    pub async fn permits(self: &Arc<Self>, claim: &Claim, resource: &Resource, token: Token) -> Result<(), Refusal> {
        let Some(role) = &claim.role else { return Err(Refusal::RoleUnknown { resource: resource.name.clone() }) };
        if claim.deeds.is_empty() {
            // What it names was a way to the resource when it was judged.
            return Err(Refusal::unavailable(&resource.name, "the catalogue has changed meanwhile"));
        }
        match about(resource, self.store().denied(resource, &claim.deeds, role).await)? {
            None => Ok(()),
            Some(what) => Err(Refusal::Denied { resource: resource.name.clone(), presented: token, what }),
        }
    }
}
