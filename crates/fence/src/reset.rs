//! Resetting a fence, and listing all fences. An operator needs both when tokens have gone back.
//!
//! Owns raising the generation, the only way to lower an epoch's token. A reset must always raise the
//! generation. Otherwise processes admitted before would count as newer.

use super::advance::settle;
use super::enforcement::record_policy;
use super::fence_error::FenceError;
use super::session::{Epoch, Token};
use super::step::Context;
use super::store::{Higher, ResetReport, StoreError};
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
    #[error("it has no epoch: no session has written to it under a token yet")]
    NoEpoch,
    /// Nothing was changed.
    #[error("another proxy has since loaded different policies: reload this proxy")]
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
    #[error("it was reset, but sessions that were admitted before have not all ended: {error}")]
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
        1 => format!("a session admitted under the higher token {highest} is still open"),
        number => format!("{number} sessions admitted under higher tokens, up to {highest}, are still open"),
    }
}

/// Sets the token of a resource, which may be lower, and drains all processes that were admitted before. Unless `force` is
/// set, refuses while a process that is admitted under a higher token is alive. Records `role`, the operator's.
///
/// Not cancel-safe: the epoch may be reset and not drained. May be repeated.
pub(super) async fn reset(
    context: Context<'_>,
    resource: &Arc<Resource>,
    token: Token,
    role: &str,
    force: bool,
) -> Result<Reset, ResetError> {
    // Connect even after a recent failure: an operator needs a current answer.
    context.unwatched.forget_failure().await;
    let deadline = Instant::now() + LIMIT;
    let reset = loop {
        if let Some(reset) = reset_known(context, resource, token, role, force).await? {
            break reset;
        }
        if Instant::now() >= deadline {
            return Err(ResetError::RaisedTooFast);
        }
    };
    context.memory.learn(&resource.name, reset.after);
    if resource.mode == Mode::Enforce {
        let drained = settle(&context.advance(resource, reset.after), Instant::now() + LIMIT).await;
        drained.map_err(|error| ResetError::NotDrained { reset, error: Box::new(error) })?;
    }
    Ok(reset)
}

/// Resets the current epoch. None: the epoch has changed in the meantime. A reset that is delayed in the network, and arrives
/// after the operator has given up, therefore cannot change a newer epoch.
async fn reset_known(
    context: Context<'_>,
    resource: &Arc<Resource>,
    token: Token,
    role: &str,
    force: bool,
) -> Result<Option<Reset>, ResetError> {
    let failed = |error| match error {
        // If an open connection is lost, the database may have been dropped with it.
        _ if context.is_missing() => ResetError::NoDatabase,
        StoreError::Unprepared { .. } => ResetError::Unprepared,
        error => ResetError::Store(error),
    };
    // A delayed record of older policies must not block the reset.
    record_policy(context, resource).await.map_err(failed)?;
    let known = context.read_epochs(&[resource.name.as_str()]).await.map_err(failed)?;
    let known = known.into_iter().map(|(_, epoch)| epoch).next().ok_or(ResetError::NoEpoch)?;
    let report = context.store().reset(resource, known, token, role, force).await.map_err(failed)?;
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
