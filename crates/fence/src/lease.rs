//! Leases of the fenced database, for resources whose policy names one: docs/lead/leases.md.
//!
//! Owns the check of the lease before a fence is raised, and the observation of lease changes. Must never let a token raise a
//! fence because of earlier knowledge: Publish reads the lease again, and observed leases are only a reason to query.

use super::authority::Leaders;
use super::database::Database;
use super::fence_error::{FenceError, Issued, about};
use super::session::{Epoch, Token};
use super::store::{LeaseState, Leases, StoreError, StoredLease};
use fencegate_leader::etcd::EtcdError;
use fencegate_policy::{Issuer, Resource};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::watch;

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

/// Maximum number of leases of a database that are listed.
const MOST_SHOWN: usize = 1000;

/// By resource name: the token whose lease was in force at the last reading; None: no lease was. Resources with an
/// unknown state are missing.
pub type Leased = HashMap<String, Option<Token>>;

/// The token of the resource's observed leader. Some(None): there is no leader. None: the leader is unknown, or the policy
/// names no issuer.
pub fn followed_leader(resource: &Resource, leaders: &Leaders, leased: &Leased) -> Option<Option<Token>> {
    match resource.issuer.as_ref()? {
        Issuer::Election(election) => leaders.get(election).copied(),
        Issuer::Lease(_) => leased.get(&resource.name).copied(),
    }
}

impl Database {
    /// The tokens of the observed leases. While there are sessions, these are the leases of all resources that are not keyed, and
    /// of the keys to which a session is admitted. They never justify an admission or a raise.
    pub fn leased(&self) -> watch::Receiver<Leased> {
        self.leased.subscribe()
    }

    /// Reads the current leases of those resources whose policies name one. Cancel-safe.
    ///
    /// # Errors
    /// The leases cannot be read.
    pub async fn read_leases(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<Leased, StoreError> {
        let names: BTreeSet<&str> = resources.iter().filter_map(|it| it.lease()).collect();
        if names.is_empty() {
            return Ok(Leased::new());
        }
        let leases = self.store().leases(&names.into_iter().collect::<Vec<_>>()).await?;
        let in_force = leases.iter().filter(|it| it.state == LeaseState::InForce);
        let tokens: HashMap<&str, Token> = in_force.map(|it| (it.election.as_str(), it.token)).collect();
        let of = |it: &Arc<Resource>| Some((it.name.clone(), tokens.get(it.lease()?).copied()));
        Ok(resources.iter().filter_map(of).collect())
    }

    /// Reads the leases of all elections, at most 1000. Cancel-safe.
    ///
    /// # Errors
    /// The leases cannot be read.
    pub async fn leases(self: &Arc<Self>) -> Result<Leases, StoreError> {
        self.store().all_leases(MOST_SHOWN).await
    }

    /// Queries the token of the issuer's current leader. None: there is no leader. Cancel-safe.
    ///
    /// # Errors
    /// The leader cannot be determined.
    pub async fn leader(self: &Arc<Self>, issuer: &Issuer) -> Result<Option<Token>, UnknownLeader> {
        match (issuer, &self.authority) {
            (Issuer::Lease(name), _) => {
                let leases = self.store().leases(&[name.as_str()]).await?;
                let in_force = leases.iter().find(|it| it.state == LeaseState::InForce);
                Ok(in_force.map(|it| it.token))
            }
            (Issuer::Election(name), Some(authority)) => Ok(authority.leader(name).await?),
            (Issuer::Election(_), None) => Err(UnknownLeader::NoEtcd),
        }
    }

    /// Checks that the token is that of the lease and that the lease is in force. Cancel-safe.
    ///
    /// The lease may end between the answer and the Publish, which checks it again, or after the Publish. Both are harmless: the
    /// fence is raised to a token that was issued, and a newer token raises it further.
    ///
    /// # Errors
    /// LF001 if the lease has a higher token; LF005 if it has a lower one, or is not in force; LF006 if it cannot be read.
    pub(super) async fn confirm_lease(
        self: &Arc<Self>,
        resource: &Resource,
        lease: &str,
        target: Epoch,
    ) -> Result<(), FenceError> {
        let found = about(resource, self.store().leases(&[lease]).await)?.pop();
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
    pub(super) async fn follow_leases(self: &Arc<Self>, changed: Option<&BTreeSet<String>>) {
        let followed = self.followed();
        let concerns =
            |changed: &BTreeSet<String>| followed.iter().any(|it| it.lease().is_some_and(|it| changed.contains(it)));
        if changed.is_some_and(|changed| !concerns(changed)) {
            return;
        }
        let leased = match self.read_leases(&followed).await {
            Ok(leased) => {
                self.log_leaders(&leased);
                leased
            }
            Err(error) => {
                tracing::debug!(database = self.name(), %error, "leases cannot be read");
                Leased::new()
            }
        };
        self.leased.send_if_modified(|before| {
            let is_new = *before != leased;
            *before = leased;
            is_new
        });
    }

    /// Logs the changes since the leases were last read.
    fn log_leaders(&self, now: &Leased) {
        let database = self.name();
        let before = std::mem::replace(&mut *self.logged_leaders.lock(), now.clone());
        for (resource, token) in now.iter().filter(|(resource, token)| before.get(*resource) != Some(token)) {
            match token {
                Some(token) => tracing::info!(database, resource, token, "leader_observed"),
                None => tracing::info!(database, resource, "leader_gone"),
            }
        }
    }

    /// Returns true if the lease of the resource was in force under that token when it was last read.
    pub(super) fn is_leased(&self, resource: &str, token: Token) -> bool {
        self.leased.borrow().get(resource) == Some(&Some(token))
    }

    /// The resources whose leases are observed. Of keys, only those to which a session of this proxy is admitted, because there
    /// may be any number of keys.
    fn followed(&self) -> Vec<Arc<Resource>> {
        let mut followed = self.leased_resources();
        if self.has_keys(Resource::has_leases_of_keys) {
            followed.extend(self.keys_in_use().into_iter().filter(|it| it.lease().is_some()));
        }
        followed
    }
}
