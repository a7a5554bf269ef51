//! Leases of the fenced database, for resources whose policy names one: docs/lead/leases.md.
//!
//! Owns the check of the lease before a fence is raised, and the observation of lease changes. Must never let a token raise a
//! fence because of earlier knowledge: Publish reads the lease again, and observed leases are only a reason to query.

use super::fence_error::{FenceError, Issued, about};
use super::session::{Epoch, Token};
use super::step::Context;
use super::store::{LeaseState, StoreError, StoredLease};
use super::watcher::Leased;
use fencegate_policy::Resource;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Reads the current leases of those resources whose policies name one. Cancel-safe.
pub(super) async fn read(context: Context<'_>, resources: &[Arc<Resource>]) -> Result<Leased, StoreError> {
    let names: BTreeSet<&str> = resources.iter().filter_map(|it| it.lease()).collect();
    if names.is_empty() {
        return Ok(Leased::new());
    }
    let leases = context.store().leases(&names.into_iter().collect::<Vec<_>>()).await?;
    let in_force = leases.iter().filter(|it| it.state == LeaseState::InForce);
    let tokens: HashMap<&str, Token> = in_force.map(|it| (it.election.as_str(), it.token)).collect();
    let of = |it: &Arc<Resource>| Some((it.name.clone(), tokens.get(it.lease()?).copied()));
    Ok(resources.iter().filter_map(of).collect())
}

/// Checks that the token is that of the lease and that the lease is in force. Cancel-safe.
///
/// The lease may end between the answer and the Publish, which checks it again, or after the Publish. Both are harmless: the
/// fence is raised to a token that was issued, and a newer token raises it further.
///
/// # Errors
/// LF001 if the lease has a higher token; LF005 if it has a lower one, or is not in force; LF006 if it cannot be read.
pub(super) async fn confirm(
    context: Context<'_>,
    resource: &Resource,
    lease: &str,
    target: Epoch,
) -> Result<(), FenceError> {
    let found = about(resource, context.store().leases(&[lease]).await)?.pop();
    let presented = target.token;
    let issued = match found {
        Some(StoredLease { token, .. }) if token > presented => {
            let (resource, highest) = (resource.name.clone(), Epoch { token, ..target });
            return Err(FenceError::Stale { resource, presented, highest });
        }
        Some(StoredLease { token, state: LeaseState::InForce, .. }) if token == presented => return Ok(()),
        Some(StoredLease { token, state: LeaseState::InForce, .. }) => Issued::ToLeader(token),
        Some(StoredLease { token, state: LeaseState::Released, .. }) => Issued::Released(token),
        Some(StoredLease { token, state: LeaseState::Expired, .. }) => Issued::Expired(token),
        None => Issued::ToNobody,
    };
    Err(FenceError::unissued(resource, presented, issued))
}

/// Reads the observed leases again if `changed` names one of them, or is None.
pub(super) async fn follow(context: Context<'_>, changed: Option<&BTreeSet<String>>) {
    let followed = followed(context);
    let concerns =
        |changed: &BTreeSet<String>| followed.iter().any(|it| it.lease().is_some_and(|it| changed.contains(it)));
    if changed.is_some_and(|changed| !concerns(changed)) {
        return;
    }
    let leased = match read(context, &followed).await {
        Ok(leased) => {
            log_leaders(context, &leased);
            leased
        }
        Err(error) => {
            tracing::debug!(database = context.environment.name, %error, "leases cannot be read");
            Leased::new()
        }
    };
    context.watcher.set_leased(leased);
}

/// The resources whose leases are observed. Of keys, only those to which a session of this proxy is admitted, because there
/// may be any number of keys.
fn followed(context: Context<'_>) -> Vec<Arc<Resource>> {
    let mut followed = context.policies.leased();
    if context.policies.has_such(Resource::has_leases_of_keys) {
        followed.extend(context.keys_in_use().into_iter().filter(|it| it.lease().is_some()));
    }
    followed
}

/// Logs the changes since the leases were last read.
fn log_leaders(context: Context<'_>, now: &Leased) {
    let database = context.environment.name.as_str();
    for (resource, token) in context.watcher.changed_leaders(now) {
        match token {
            Some(token) => tracing::info!(database, resource, token, "leader_observed"),
            None => tracing::info!(database, resource, "leader_gone"),
        }
    }
}
