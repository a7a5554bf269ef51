//! Resetting a fence, and listing all fences. An operator needs both when tokens have gone back.
//!
//! Owns raising the generation, the only way to lower an epoch's token. A reset must always raise the
//! generation. Otherwise processes admitted before would count as newer.

use super::database::Database;
use super::fence_error::FenceError;
use super::session::{Epoch, Token};
use super::store::{Fences, Higher, MOST_KEYS, ResetReport, StoreError};
use fencegate_policy::{Mode, Resource};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit of the drain after a reset.
const LIMIT: Duration = Duration::from_secs(10);

/// A reset that has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The epoch before the reset.
    pub before: Epoch,
    /// The current epoch, in a higher generation.
    pub after: Epoch,
}

/// Why a reset was not completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ResetError {
    /// The resource was never written under a token. Nothing was changed.
    #[error("it has no epoch: nobody has written to it under a token yet")]
    NoEpoch,
    /// Nothing was changed.
    #[error("another proxy has loaded other policies since: reload this proxy")]
    OtherPolicies,
    /// Nothing was changed: the reset would terminate sessions that are admitted under higher tokens.
    #[error("{}", in_use(.0))]
    InUse(Vec<Higher>),
    /// Nothing was changed.
    #[error("the server has no such database")]
    NoDatabase,
    /// Nothing was changed.
    #[error("it has no schema fencegate")]
    Unprepared,
    /// It is unknown whether the epoch was changed, unless the connection was never open.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Each attempt found a different epoch. Nothing was changed.
    #[error("the token is raised faster than it can be reset")]
    RaisedTooFast,
    /// The epoch was reset. Processes that were admitted before may still block its next writer.
    #[error("it is reset, but not everybody admitted before has ended yet: {error}")]
    NotDrained {
        reset: Reset,
        #[source]
        error: Box<FenceError>,
    },
}

/// The message has only the count. The console also names the processes with the highest tokens.
fn in_use(higher: &[Higher]) -> String {
    let highest = higher.iter().map(|it| it.token).max().unwrap_or_default();
    match higher.len() {
        1 => format!("a session that is admitted under the higher token {highest} is alive"),
        number => format!("{number} sessions that are admitted under higher tokens, up to {highest}, are alive"),
    }
}

impl Database {
    /// Sets the token of a resource, which may be lower, and drains all processes that were admitted before. Unless `force` is
    /// set, refuses while a process that is admitted under a higher token is alive. Records `role`, the operator's.
    ///
    /// Not cancel-safe: the epoch may be reset and not drained. May be repeated.
    /// Each error states what was changed.
    pub async fn reset(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Reset, ResetError> {
        // Connect even after a recent failure: an operator needs a current answer.
        self.store.ask_anew().await;
        let deadline = Instant::now() + LIMIT;
        let reset = loop {
            if let Some(reset) = self.reset_known(resource, token, role, force).await? {
                break reset;
            }
            if Instant::now() >= deadline {
                return Err(ResetError::RaisedTooFast);
            }
        };
        self.memory.learn(&resource.name, reset.after);
        if resource.mode == Mode::Enforce {
            let drained = self.advance(resource, reset.after).settle(Instant::now() + LIMIT).await;
            drained.map_err(|error| ResetError::NotDrained { reset, error: Box::new(error) })?;
        }
        Ok(reset)
    }

    /// Resets the current epoch. None: the epoch has changed in the meantime. A reset that is delayed in the network, and arrives
    /// after the operator has given up, therefore cannot change a newer epoch.
    async fn reset_known(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Option<Reset>, ResetError> {
        let failed = |error| match error {
            // If an open connection is lost, the database may have been dropped with it.
            _ if self.is_missing() => ResetError::NoDatabase,
            StoreError::Unprepared { .. } => ResetError::Unprepared,
            error => ResetError::Store(error),
        };
        // A delayed record of older policies must not block the reset.
        self.record_policy(resource).await.map_err(failed)?;
        let known = self.read_epochs(&[resource.name.as_str()]).await.map_err(failed)?;
        let known = known.into_iter().map(|(_, epoch)| epoch).next().ok_or(ResetError::NoEpoch)?;
        let report = self.store().reset(resource, known, token, role, force).await.map_err(failed)?;
        let ResetReport { before, same_policy, higher, after } = report;
        let before = before.ok_or(ResetError::NoEpoch)?;
        if let Some(after) = after {
            return Ok(Some(Reset { before, after }));
        }
        if !same_policy {
            return Err(ResetError::OtherPolicies);
        }
        if before != known && (force || higher.is_empty()) {
            return Ok(None);
        }
        Err(ResetError::InUse(higher))
    }

    /// The fences of those of these resources that have an epoch. Cancel-safe.
    pub async fn fences(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<Fences, StoreError> {
        let fences = self.store().fences(resources, MOST_KEYS).await?;
        let all = fences.plain.iter().chain(fences.of_keys.iter().map(|(name, fence)| (name, fence)));
        all.for_each(|(name, fence)| self.memory.learn(name, fence.epoch));
        Ok(fences)
    }

    /// Returns true if the resource has an epoch. Cancel-safe.
    pub async fn has_epoch(self: &Arc<Self>, resource: &Resource) -> Result<bool, StoreError> {
        Ok(!self.read_epochs(&[resource.name.as_str()]).await?.is_empty())
    }
}
