//! Issuers: the elections and leases whose leaders' tokens may raise fences.
//!
//! Owns the checks before a raise, the check of an epoch on a server that may lack later ones, and the observation of leases. Must
//! never let a token raise a fence because of earlier knowledge: observed leaders are only a reason to query.

use super::authority::Leaders;
use super::fence_error::{FenceError, Issued, about};
use super::session::{Epoch, Identity, Token};
use super::step::Context;
use super::store::{LeaseState, StoreError, StoredLease};
use super::watcher::Leased;
use fencegate_leader::etcd::EtcdError;
use fencegate_policy::{Issuer, Resource};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Why the leader of an issuer is unknown.
#[derive(Debug, thiserror::Error)]
pub enum UnknownLeader {
    /// The leases cannot be read.
    #[error(transparent)]
    Lease(#[from] StoreError),
    /// The election cannot be read.
    #[error(transparent)]
    Election(#[from] EtcdError),
    /// The issuer is an election, and the proxy has no etcd.
    #[error("no etcd is set")]
    NoEtcd,
}

/// The token of the resource's observed leader. Some(None): there is no leader. None: the leader is unknown, or the policy
/// names no issuer.
pub fn followed_leader(resource: &Resource, leaders: &Leaders, leased: &Leased) -> Option<Option<Token>> {
    match resource.issuer.as_ref()? {
        Issuer::Election(election) => leaders.get(election).copied(),
        Issuer::Lease(_) => leased.get(&resource.name).copied(),
    }
}

/// Checks whether the token may raise the resource's fence. If the policy names no issuer, any token may. Cancel-safe.
/// Returns LF001, LF005 or LF006 if the token may not.
pub(super) async fn may_raise(context: Context<'_>, resource: &Resource, target: Epoch) -> Result<(), FenceError> {
    match &resource.issuer {
        None => Ok(()),
        Some(Issuer::Lease(lease)) => confirm_lease(context, resource, lease.as_str(), target).await,
        Some(Issuer::Election(election)) => context.environment.authority.confirm(resource, election, target).await,
    }
}

/// Checks whether the current epoch can be trusted. A promoted standby and a restored backup may lack later epochs, which the
/// issuer still knows. Queries the issuer once for each resource, proxy process and start of the server. The caller's Admit
/// has seen that the server of `identity` accepts writes. Cancel-safe.
///
/// # Errors
/// LF001 if the issuer has issued a higher token; LF005 if the election has no leader or a lower one; LF006 if the issuer does
/// not answer.
pub(super) async fn confirm_epoch(
    context: Context<'_>,
    identity: &Identity,
    resource: &Resource,
    epoch: Epoch,
) -> Result<(), FenceError> {
    if context.memory.confirmed.covers(identity, resource, epoch) {
        return Ok(());
    }
    match may_raise(context, resource, epoch).await {
        // A lease that has ended, or has a lower token, shows no later leader. The current leader may outlive its lease.
        Err(FenceError::Unissued { .. }) if resource.lease().is_some() => {}
        answer => answer?,
    }
    context.memory.confirmed.confirm(identity, resource, epoch);
    Ok(())
}

/// If a stale token is the current leader's, reports that tokens have gone back. Queries the leader after the epoch was read:
/// a predecessor of the leader that raised the epoch cannot lead again with its token. Cancel-safe.
pub(super) async fn explained(context: Context<'_>, resource: &Resource, refusal: FenceError) -> FenceError {
    let Some(issuer) = &resource.issuer else { return refusal };
    match refusal {
        FenceError::Stale { resource: name, presented, highest }
            if leads(context, resource, presented)
                && may_raise(context, resource, Epoch { token: presented, ..highest }).await.is_ok() =>
        {
            FenceError::GoneBack { resource: name, presented, highest, issuer: issuer.clone() }
        }
        refusal => refusal,
    }
}

/// Returns true if the token is that of the resource's observed leader.
pub(super) fn leads(context: Context<'_>, resource: &Resource, token: Token) -> bool {
    match &resource.issuer {
        Some(Issuer::Lease(_)) => context.watcher.is_leased(&resource.name, token),
        Some(Issuer::Election(election)) => context.environment.authority.leads(election, token),
        None => false,
    }
}

/// Queries the token of the issuer's current leader. None: there is no leader. Cancel-safe.
pub(super) async fn leader(context: Context<'_>, issuer: &Issuer) -> Result<Option<Token>, UnknownLeader> {
    match issuer {
        Issuer::Lease(name) => {
            let leases = context.store().leases(&[name.as_str()]).await?;
            let in_force = leases.iter().find(|it| it.state == LeaseState::InForce);
            Ok(in_force.map(|it| it.token))
        }
        Issuer::Election(name) => {
            let elections = context.environment.authority.elections().ok_or(UnknownLeader::NoEtcd)?;
            Ok(elections.leader(name).await?)
        }
    }
}

/// Follows the elections of the keys to which a session is admitted.
pub(super) fn follow_elections_of_keys(context: Context<'_>) {
    let has_such = context.policies.has_such(Resource::has_elections_of_keys);
    let keys = if has_such { context.keys_in_use() } else { Vec::new() };
    let elections = keys.iter().filter_map(|it| it.election().cloned()).collect();
    context.environment.authority.follow_keys(&context.environment.name, elections);
}

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
pub(super) async fn confirm_lease(
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

/// The resources whose leases are observed. A key is among them only while a session of this proxy is admitted to it, because
/// the number of keys is unbounded.
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
