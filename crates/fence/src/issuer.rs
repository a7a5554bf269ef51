//! Issuers: the elections and leases whose leaders' tokens may raise fences.
//!
//! Owns the checks before a raise, and of an epoch on a server that may lack later ones. Must never let a token raise a fence
//! because of earlier knowledge: observed leaders are only a reason to query. The order of commits on one server does not
//! depend on these checks.

use super::authority::Leaders;
use super::fence_error::FenceError;
use super::lease;
use super::obstacle::Obstacle;
use super::session::{Epoch, Identity, Token};
use super::step::Context;
use super::store::{LeaseState, StoreError};
use super::watcher::Leased;
use fencegate_leader::etcd::EtcdError;
use fencegate_policy::{Issuer, Resource};

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
    match (&resource.issuer, &context.environment.authority) {
        (None, _) => Ok(()),
        (Some(Issuer::Lease(lease)), _) => lease::confirm(context, resource, lease.as_str(), target).await,
        (Some(Issuer::Election(election)), Some(authority)) => authority.confirm(resource, election, target).await,
        (Some(Issuer::Election(election)), None) => {
            Err(FenceError::unavailable(&resource.name, Obstacle::NoEtcd(election.clone())))
        }
    }
}

/// Checks whether the current epoch can be trusted. A promoted standby and a restored backup may lack later epochs, which the
/// issuer still knows. Queries the issuer once for each resource, proxy process and start of the server. The caller's Admit
/// has seen that the server of `who` accepts writes. Cancel-safe.
///
/// # Errors
/// LF001 if the issuer has issued a higher token; LF005 if the election has no leader or a lower one; LF006 if the issuer does
/// not answer.
pub(super) async fn confirm_epoch(
    context: Context<'_>,
    who: &Identity,
    resource: &Resource,
    epoch: Epoch,
) -> Result<(), FenceError> {
    if context.memory.confirmed.covers(who, resource, epoch) {
        return Ok(());
    }
    match may_raise(context, resource, epoch).await {
        // A lease that has ended, or has a lower token, shows no later leader. The current leader may outlive its lease.
        Err(FenceError::Unissued { .. }) if resource.lease().is_some() => {}
        answer => answer?,
    }
    context.memory.confirmed.confirm(who, resource, epoch);
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
    match (&resource.issuer, &context.environment.authority) {
        (Some(Issuer::Lease(_)), _) => context.watcher.is_leased(&resource.name, token),
        (Some(Issuer::Election(election)), Some(authority)) => authority.leads(election, token),
        _ => false,
    }
}

/// Queries the token of the issuer's current leader. None: there is no leader. Cancel-safe.
pub(super) async fn leader(context: Context<'_>, issuer: &Issuer) -> Result<Option<Token>, UnknownLeader> {
    match (issuer, &context.environment.authority) {
        (Issuer::Lease(name), _) => {
            let leases = context.store().leases(&[name.as_str()]).await?;
            let in_force = leases.iter().find(|it| it.state == LeaseState::InForce);
            Ok(in_force.map(|it| it.token))
        }
        (Issuer::Election(name), Some(authority)) => Ok(authority.leader(name).await?),
        (Issuer::Election(_), None) => Err(UnknownLeader::NoEtcd),
    }
}

/// Follows the elections of the keys to which a session is admitted.
pub(super) fn follow_elections_of_keys(context: Context<'_>) {
    if let Some(authority) = &context.environment.authority {
        let keys =
            if context.policies.has_such(Resource::has_elections_of_keys) { context.keys_in_use() } else { Vec::new() };
        authority.follow_keys(&context.environment.name, keys.iter().filter_map(|it| it.election().cloned()).collect());
    }
}
