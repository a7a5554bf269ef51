//! Leases of the fenced database, for resources whose policy names one: docs/leases.md.
//!
//! Owns asking for the lease before a fence is raised, and following leases as they change. Must never let a token raise a
//! fence on what was known before: Publish looks at the lease once more, and what is followed is only a reason to ask.

use super::authority::Leaders;
use super::database::Database;
use super::fence_error::{FenceError, Issued, about};
use super::session::{Epoch, Token};
use super::store::StoreError;
use crate::etcd::EtcdError;
use crate::policy::{Issuer, Resource};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;

/// A lease, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// Its election.
    pub election: String,
    /// Its fencing token.
    pub token: Token,
    /// Whether its holder leads.
    pub state: LeaseState,
    /// Name of its holder.
    pub holder: String,
    /// The role that acquired it.
    pub role: String,
    /// When it was acquired, by the database's clock as all times.
    pub acquired: SystemTime,
    /// When it was last extended.
    pub renewed: SystemTime,
    /// When it ends, or has ended.
    pub expires: SystemTime,
}

/// Why the leader of an issuer is not known.
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

/// Leases, in part.
#[derive(Debug)]
pub struct Leases {
    /// Those acquired last, the latest first.
    pub list: Vec<StoredLease>,
    /// How many more there are.
    pub left_out: usize,
}

/// Whether the holder of a lease leads, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It does.
    InForce,
    /// The lease was given up.
    Released,
    /// It ran out.
    Expired,
}

impl LeaseState {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::InForce => "in force",
            LeaseState::Released => "released",
            LeaseState::Expired => "expired",
        }
    }
}

/// The most leases of a database that are shown.
const MOST_SHOWN: usize = 1000;

/// By resource name: the token whose lease was in force at the last reading; None: no lease was. Resources with an
/// unknown state are missing.
pub type Leased = HashMap<String, Option<Token>>;

/// The token of the resource's leader, as it is followed; None inside: nobody leads. None: not known, or no policy names an
/// issuer.
pub fn followed_leader(resource: &Resource, leaders: &Leaders, leased: &Leased) -> Option<Option<Token>> {
    match resource.issuer.as_ref()? {
        Issuer::Election(election) => leaders.get(election).copied(),
        Issuer::Lease(_) => leased.get(&resource.name).copied(),
    }
}

impl Database {
    /// The tokens of the leases that are followed, as they change: while there are sessions, of all resources that are not
    /// keyed, and of the keys to which a session is admitted. No reason to admit or to raise anything.
    pub fn leased(&self) -> watch::Receiver<Leased> {
        self.leased.subscribe()
    }

    /// The leases of the resources that have one, as they are now. Cancel-safe.
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

    /// The leases of all elections: the first 1000. Cancel-safe.
    ///
    /// # Errors
    /// The leases cannot be read.
    pub async fn leases(self: &Arc<Self>) -> Result<Leases, StoreError> {
        self.store().all_leases(MOST_SHOWN).await
    }

    /// The token of the issuer's leader now; None: nobody leads. Cancel-safe.
    ///
    /// # Errors
    /// The leader is not known.
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

    /// Whether the token is that of the lease, which is in force now. Cancel-safe.
    ///
    /// It may end between the answer and the Publish, which looks for itself; and after that. Both change nothing: the fence is
    /// raised to a token that was issued, and a newer one raises it further.
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

    /// Reads the leases that are followed, if one of these has changed; None: whatever has.
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

    /// Logs what has changed since the leases were last read, however long that is ago.
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

    /// The lease of the resource was in force under that token when it was last read.
    pub(super) fn is_leased(&self, resource: &str, token: Token) -> bool {
        self.leased.borrow().get(resource) == Some(&Some(token))
    }

    /// There may be any number of keys: only those to which a session of this proxy is admitted.
    fn followed(&self) -> Vec<Arc<Resource>> {
        let mut followed = self.leased_resources();
        if self.has_keys(Resource::has_leases_of_keys) {
            followed.extend(self.keys_in_use().into_iter().filter(|it| it.lease().is_some()));
        }
        followed
    }
}
