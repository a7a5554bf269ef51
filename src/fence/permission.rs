//! Whether a session's role may do what would raise a fence, as the server would decide it.
//!
//! Owns the question alone. Must never let a write pass: a yes only lets the token be raised, and after a no the statement
//! is rejected, not forwarded.

use super::database::Database;
use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::Token;
use crate::policy::{QualifiedName, Resource};
use crate::statement::{Operation, RelationName};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a yes counts for first tokens, and how many are remembered.
const PERMITTED_FOR: Duration = Duration::from_secs(1);
const MOST_PERMITTED: usize = 1024;

/// Families of resources with what some session of a login was found to be allowed to do to them: when the server was asked.
pub(super) type Permitted = HashMap<(String, Arc<[RequiredPrivilege]>, bool, String), Instant>;

/// One thing that a statement does, and by which it touches a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequiredPrivilege {
    /// It writes or locks the relation, as it names it.
    Write(RelationName, Operation),
    /// It calls the function.
    Call(QualifiedName),
}

/// As whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// As the session's current role.
    Current(String),
    /// As any role that this login role is a member of: the session may become another before it runs.
    AnyOf(String),
}

/// On what ground a session may raise a fence.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The privileges that its statement requires.
    pub privileges: Arc<[RequiredPrivilege]>,
    /// It is about to do one of them, and which is not known.
    pub one_suffices: bool,
    /// As whom; None: that has to be found out where something would be raised.
    pub role: Option<Role>,
    /// As whom the session logged in.
    pub login: String,
}

impl Database {
    /// As [`Database::permits`], where a yes is at most a second old, and may be that to another session of the login: for the
    /// first tokens of many keys of a family. Whoever has lost the privilege within that second, or does not act at the moment
    /// as the role that has it, may raise the fence of a key that has none. Cancel-safe.
    pub(super) async fn has_permitted(
        self: &Arc<Self>,
        claim: &Claim,
        resource: &Resource,
        token: Token,
    ) -> Result<(), FenceError> {
        let key = (resource.lock_name().to_owned(), claim.privileges.clone(), claim.one_suffices, claim.login.clone());
        if self.permitted.lock().get(&key).is_some_and(|since| since.elapsed() < PERMITTED_FOR) {
            return Ok(());
        }
        let since = Instant::now();
        self.permits(claim, resource, token).await?;
        let mut permitted = self.permitted.lock();
        if permitted.len() >= MOST_PERMITTED {
            permitted.clear();
        }
        permitted.insert(key, since);
        Ok(())
    }

    /// The server would let the role do what the claim says. What other transactions have not committed does not count.
    /// 42501 where it would not; LF006; or that the role has to be found out. Cancel-safe.
    pub async fn permits(self: &Arc<Self>, claim: &Claim, resource: &Resource, token: Token) -> Result<(), FenceError> {
        let Some(role) = &claim.role else { return Err(FenceError::RoleUnknown { resource: resource.name.clone() }) };
        if claim.privileges.is_empty() {
            // When the statement was judged, it named a way to the resource.
            return Err(FenceError::unavailable(&resource.name, Obstacle::CatalogChanged));
        }
        let together = if claim.one_suffices { 1 } else { claim.privileges.len() };
        let mut denied = String::new();
        for privileges in claim.privileges.chunks(together) {
            match about(resource, self.store().denied(resource, privileges, role).await)? {
                None => return Ok(()),
                Some(what) => denied = what,
            }
        }
        Err(FenceError::Denied { resource: resource.name.clone(), presented: token, what: denied })
    }
}
