//! Checks whether the server would permit the session's role to run the statement that would raise a fence.
//!
//! Owns this check only. Must never permit a write: a positive result only permits raising the token. After a negative result
//! the proxy rejects the statement instead of forwarding it.

use super::claim::{Claim, RequiredPrivilege};
use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::Token;
use super::step::Context;
use fencegate_policy::Resource;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which a positive result is valid for first tokens, and maximum number of remembered results.
const PERMITTED_FOR: Duration = Duration::from_secs(1);
const MOST_PERMITTED: usize = 1024;

/// Recent positive results.
#[derive(Debug, Default)]
pub(super) struct Permitted(Mutex<HashMap<PermittedClaim, Instant>>);

/// The family of resources, privileges, [`Claim::one_suffices`] and login.
type PermittedClaim = (String, Arc<[RequiredPrivilege]>, bool, String);

impl Permitted {
    /// As [`permits`], but accepts a positive result of any session of the same login that is at most a second old.
    /// Used for the first tokens of many keys of a family. A session that has lost the privilege within that second, or currently
    /// acts as a role without it, may therefore raise the fence of a key that has no epoch. Cancel-safe.
    pub(super) async fn permits(
        &self,
        context: Context<'_>,
        claim: &Claim,
        resource: &Resource,
        token: Token,
    ) -> Result<(), FenceError> {
        let key = (resource.lock_name().to_owned(), claim.privileges.clone(), claim.one_suffices, claim.login.clone());
        if self.0.lock().get(&key).is_some_and(|since| since.elapsed() < PERMITTED_FOR) {
            return Ok(());
        }
        let since = Instant::now();
        permits(context, claim, resource, token).await?;
        let mut permitted = self.0.lock();
        if permitted.len() >= MOST_PERMITTED {
            permitted.clear();
        }
        permitted.insert(key, since);
        Ok(())
    }
}

/// Returns Ok if the server would permit the claim to the role. Ignores uncommitted changes of other transactions.
/// Cancel-safe.
pub(super) async fn permits(
    context: Context<'_>,
    claim: &Claim,
    resource: &Resource,
    token: Token,
) -> Result<(), FenceError> {
    let Some(role) = &claim.role else { return Err(FenceError::RoleUnknown { resource: resource.name.clone() }) };
    if claim.privileges.is_empty() {
        // The statement affected the resource when it was judged, but the catalog has changed since.
        return Err(FenceError::unavailable(&resource.name, Obstacle::CatalogChanged));
    }
    let together = if claim.one_suffices { 1 } else { claim.privileges.len() };
    let mut denied = String::new();
    for privileges in claim.privileges.chunks(together) {
        match about(resource, context.store().denied(resource, privileges, role).await)? {
            None => return Ok(()),
            Some(what) => denied = what,
        }
    }
    Err(FenceError::Denied { resource: resource.name.clone(), presented: token, what: denied })
}
