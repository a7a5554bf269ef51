//! Operations for operators: resetting a fence, and lists of fences, admissions and leases.
//!
//! Must never decide whether a session may write, because the rows may have changed since they were read.

use super::Database;
use crate::issuer::{self, UnknownLeader};
use crate::lease;
use crate::reset::{self, Reset, ResetError};
use crate::session::Token;
use crate::store::{Admissions, Fences, Leases, MOST_KEYS, StoreError};
use crate::watcher::Leased;
use fencegate_policy::{Issuer, Resource};
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum number of admissions that are listed for a database.
const MOST: usize = 10_000;

/// Maximum number of leases of a database that are listed.
const MOST_SHOWN: usize = 1000;

impl Database {
    /// Sets the token of a resource, which may be lower, and drains all processes that were admitted before. Unless `force` is
    /// set, refuses while a process that is admitted under a higher token is alive. Records `role`, the operator's.
    ///
    /// Not cancel-safe: the epoch may be reset and not drained. May be repeated.
    /// Each error states what was changed.
    pub async fn reset(
        &self,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Reset, ResetError> {
        reset::reset(self.context(), resource, token, role, force).await
    }

    /// The fences of those of these resources that have an epoch. Cancel-safe.
    pub async fn fences(&self, resources: &[Arc<Resource>]) -> Result<Fences, StoreError> {
        let fences = self.context().store().fences(resources, MOST_KEYS).await?;
        let all = fences.plain.iter().chain(fences.of_keys.iter().map(|(name, fence)| (name, fence)));
        all.for_each(|(name, fence)| self.memory.learn(name, fence.epoch));
        Ok(fences)
    }

    /// Returns true if the resource has an epoch. Cancel-safe.
    pub async fn has_epoch(&self, resource: &Resource) -> Result<bool, StoreError> {
        Ok(!self.context().read_epochs(&[resource.name.as_str()]).await?.is_empty())
    }

    /// All admissions, granted by any proxy. Cancel-safe.
    pub async fn admissions(&self) -> Result<Admissions, StoreError> {
        self.context().store().admissions(MOST).await
    }

    /// The tokens of the observed leases. While there are sessions, these are the leases of all resources that are not keyed, and
    /// of the keys to which a session is admitted. They never justify an admission or a raise.
    pub fn leased(&self) -> watch::Receiver<Leased> {
        self.watcher.leased()
    }

    /// Reads the current leases of those resources whose policies name one. Cancel-safe.
    ///
    /// # Errors
    /// The leases cannot be read.
    pub async fn read_leases(&self, resources: &[Arc<Resource>]) -> Result<Leased, StoreError> {
        lease::read(self.context(), resources).await
    }

    /// Reads the leases of all elections, at most 1000. Cancel-safe.
    ///
    /// # Errors
    /// The leases cannot be read.
    pub async fn leases(&self) -> Result<Leases, StoreError> {
        self.context().store().all_leases(MOST_SHOWN).await
    }

    /// Queries the token of the issuer's current leader. None: there is no leader. Cancel-safe.
    ///
    /// # Errors
    /// The leader cannot be determined.
    pub async fn leader(&self, issuer: &Issuer) -> Result<Option<Token>, UnknownLeader> {
        issuer::leader(self.context(), issuer).await
    }
}
