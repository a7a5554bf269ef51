//! Resetting a fence, and showing all of them: what an operator needs when tokens have gone back.
//!
//! Owns raising the generation, the only way in which an epoch's token becomes lower. Must never
//! leave the generation as it is: processes admitted before would then count as newer.

use super::database::Database;
use super::fence_error::FenceError;
use super::session::{Epoch, Token};
use super::store::{ResetReport, StoreError};
use crate::policy::{Mode, Resource};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the drain after a reset may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The most fences of keys that are shown of a database.
pub const MOST_KEYS: usize = 1000;

/// A reset that has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The epoch that was in force.
    pub before: Epoch,
    /// The epoch in force now, above the other by its generation.
    pub after: Epoch,
}

/// Why a reset did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ResetError {
    /// The resource was never written to under a token; nothing was changed.
    #[error("it has no epoch: nobody has written to it under a token yet")]
    NoEpoch,
    /// Nothing was changed.
    #[error("another proxy has loaded other policies since: reload this proxy")]
    OtherPolicies,
    /// Nothing was changed: the reset would cut off sessions that are admitted under higher tokens.
    #[error("{}", in_use(.0))]
    InUse(Vec<Higher>),
    /// Nothing was changed.
    #[error("the server has no such database")]
    NoDatabase,
    /// Nothing was changed.
    #[error("it has no schema fencegate")]
    Unprepared,
    /// Whether the epoch was changed is unknown, unless the connection was never open.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Each attempt has found another epoch; nothing was changed.
    #[error("the token is raised faster than it can be reset")]
    RaisedTooFast,
    /// The epoch is reset; processes that were admitted before may still block its next writer.
    #[error("it is reset, but not everybody admitted before has ended yet: {error}")]
    NotDrained {
        reset: Reset,
        #[source]
        error: Box<FenceError>,
    },
}

/// A living server process that is admitted under a higher token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Higher {
    /// Its process id.
    pub pid: i32,
    /// Its token.
    pub token: Token,
    /// It was admitted by this proxy.
    pub is_ours: bool,
}

/// The message counts them; the console also names those with the highest tokens.
fn in_use(higher: &[Higher]) -> String {
    let highest = higher.iter().map(|it| it.token).max().unwrap_or_default();
    match higher.len() {
        1 => format!("a session that is admitted under the higher token {highest} is alive"),
        number => format!("{number} sessions that are admitted under higher tokens, up to {highest}, are alive"),
    }
}

/// The fence of a resource in a database, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The epoch in force.
    pub epoch: Epoch,
    /// All processes below it have ended.
    pub drained: bool,
    /// How many server processes are admitted to the resource.
    pub admissions: u64,
}

/// The fences that have an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences {
    /// By resource.
    pub plain: HashMap<String, Fence>,
    /// Those of keys, the latest updated first: [`MOST_KEYS`] at most.
    pub of_keys: Vec<(String, Fence)>,
    /// How many more keys have one.
    pub left_out: usize,
}

impl Database {
    /// Sets the token of a resource, also to a lower one, and ends all processes that were admitted before. Refuses while one
    /// that is admitted under a higher token lives, unless it is forced. `role` is the operator's, for the record.
    ///
    /// Not cancel-safe: the epoch may be reset and not drained. May be repeated.
    /// Each error says what was changed.
    pub async fn reset(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Reset, ResetError> {
        // An operator needs a new answer from the server: the database may have been dropped since the last one.
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

    /// Resets the epoch that is there now. None: another has come meanwhile. So a reset that is held up in the network, and
    /// comes when the operator has given it up, changes nothing of what was written since.
    async fn reset_known(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Option<Reset>, ResetError> {
        let failed = |error| match error {
            // Lost with a connection that was open, it was lost with the database.
            _ if self.is_missing() => ResetError::NoDatabase,
            StoreError::Unprepared { .. } => ResetError::Unprepared,
            error => ResetError::Store(error),
        };
        // A late record of older policies is not in the way.
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

    /// The fences of these resources that have an epoch. Cancel-safe.
    pub async fn fences(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<Fences, StoreError> {
        let fences = self.store().fences(resources, MOST_KEYS).await?;
        let all = fences.plain.iter().chain(fences.of_keys.iter().map(|(name, fence)| (name, fence)));
        all.for_each(|(name, fence)| self.memory.learn(name, fence.epoch));
        Ok(fences)
    }

    /// The resource has an epoch. Cancel-safe.
    pub async fn has_epoch(self: &Arc<Self>, resource: &Resource) -> Result<bool, StoreError> {
        Ok(!self.read_epochs(&[resource.name.as_str()]).await?.is_empty())
    }
}
