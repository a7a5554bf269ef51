//! Raises a fence before the first write under the token: for a newly elected leader, and for fences in mode observe.
//!
//! Safety does not depend on this module: the first write under the token would raise the fence as well. Must never admit a
//! session.
//!
//! Functions here are not cancel-safe unless their comment says so: a step may be left incomplete, and the next proxy that
//! needs it repeats it.

use super::advance::{publish, settle};
use super::enforcement::record_policy;
use super::fence_error::{FenceError, about};
use super::issuer::{confirm_epoch, explained, may_raise};
use super::obstacle::Obstacle;
use super::raising::{Raise, permits};
use super::resource_lock::ResourceLocks;
use super::session::{Epoch, IdentityError, SessionFence, Token};
use super::step::{Advance, Context};
use super::store::{EpochRow, Recorded, StoreError};
use fencegate_policy::{Mode, Resource};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The token of no epoch. An Admit under it only reads: it never admits.
const NO_TOKEN: Token = 0;
/// Maximum delay until the proxy notices the end of a server process.
const ENDING: Duration = Duration::from_millis(500);
/// Time limit of one drain.
const LIMIT: Duration = Duration::from_secs(10);

/// For a fence in mode observe: records a token. This raises the epoch, if permitted, but neither drains nor admits. Makes
/// the same checks as an Admit of the session. Cancel-safe.
pub(super) async fn observe(
    context: Context<'_>,
    session: &SessionFence,
    resource: &Resource,
    token: Token,
    raise: Raise<'_>,
) -> Result<(), FenceError> {
    let unknown = |error: &IdentityError| FenceError::unavailable(&resource.name, error.clone().into());
    let identity = session.identity.as_ref().map_err(unknown)?;
    let report =
        about(resource, context.store().admit(identity, resource, NO_TOKEN, context.policies.loaded(resource)).await)?;
    let is_superseded = matches!(report.current, Some((_, Recorded::Others))) && context.policies.is_in_force(resource);
    let highest = report.current.map(|(row, _)| row.epoch);
    let mut noted = take_note(context, resource, token, highest, raise).await;
    if report.unfenceable.is_none() {
        context.memory.confirmed.server_accepts_writes(identity);
        if let Some(highest) = highest.filter(|it| it.token == token && noted.is_ok()) {
            noted = confirm_epoch(context, identity, resource, highest).await;
        }
    }
    if let Some(fault) = report.unfenceable {
        // The process may be missing because the session has just ended. No caller waits for this, so wait until the proxy
        // would have noticed.
        sleep(ENDING).await;
        if context.sessions.has(identity) {
            return Err(FenceError::unavailable(&resource.name, Obstacle::Process { pid: identity.pid, fault }));
        }
    }
    if is_superseded && noted.is_ok() {
        return Err(other_policies(resource));
    }
    noted
}

/// Records a token. `highest` is the current epoch.
async fn take_note(
    context: Context<'_>,
    resource: &Resource,
    token: Token,
    highest: Option<Epoch>,
    raise: Raise<'_>,
) -> Result<(), FenceError> {
    match highest {
        Some(highest) => context.memory.learn(&resource.name, highest),
        None => context.memory.forget(&resource.name),
    }
    if let Some(highest) = highest.filter(|highest| token < highest.token) {
        let stale = FenceError::Stale { resource: resource.name.clone(), presented: token, highest };
        return Err(explained(context, resource, stale).await);
    }
    if highest.is_some_and(|highest| token == highest.token) {
        return Ok(());
    }
    match raise {
        Raise::Freely => {}
        Raise::IfPermitted(claim) => permits(context, claim, resource, token).await?,
        Raise::Never => {
            let (resource, highest) = (resource.name.clone(), highest.map(|epoch| epoch.token));
            return Err(FenceError::NotInForce { resource, presented: token, highest });
        }
    }
    let target = Epoch { generation: highest.map_or(1, |epoch| epoch.generation), token };
    may_raise(context, resource, target).await?;
    publish_ahead(&context.advance(resource, target), highest).await.map(drop)
}

/// Raises the fence to the token of a leader that has not written yet. A token that was superseded in the meantime raises
/// nothing.
pub(super) async fn overtake(
    context: Context<'_>,
    locks: &ResourceLocks,
    resource: &Resource,
    token: Token,
) -> Result<(), FenceError> {
    let Some((current, drained)) = epoch_of(context, resource).await? else { return Ok(()) };
    if token < current.token || (token == current.token && (drained || resource.mode == Mode::Observe)) {
        return Ok(());
    }
    let target = Epoch { token, ..current };
    if target != current {
        match may_raise(context, resource, target).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(_) => return Ok(()),
        }
    }
    let turn = locks.of(&resource.name);
    let _turn = turn.lock().await;
    let advance = context.advance(resource, target);
    let now = if target == current {
        // An epoch created by a lease has no policies yet. Without them it cannot be marked.
        about(resource, record_policy(context, resource).await)?;
        current
    } else {
        publish_ahead(&advance, Some(current)).await?
    };
    if resource.mode == Mode::Observe || now != target {
        return Ok(());
    }
    settle(&advance, Instant::now() + LIMIT).await?;
    match epoch_of(context, resource).await? {
        Some((epoch, false)) if epoch == target => Err(other_policies(resource)),
        _ => Ok(()),
    }
}

/// Publishes, and returns the current epoch: the target or a higher one.
async fn publish_ahead(advance: &Advance<'_>, known: Option<Epoch>) -> Result<Epoch, FenceError> {
    let (context, resource, target) = (advance.context, advance.resource, advance.to);
    let mut now = publish(advance, known).await?;
    if now.is_some_and(|now| now < target) {
        // A delayed record of older policies may have prevented it.
        about(resource, record_policy(context, resource).await)?;
        now = publish(advance, known).await?;
    }
    if now.is_none_or(|now| now < target) {
        // The lease may have ended in the meantime.
        may_raise(context, resource, target).await?;
    }
    now.filter(|now| *now >= target).ok_or_else(|| other_policies(resource))
}

/// The resource's epoch, and whether it is drained.
async fn epoch_of(context: Context<'_>, resource: &Resource) -> Result<Option<(Epoch, bool)>, FenceError> {
    let mut read = match context.store().epochs(&[resource.name.as_str()]).await {
        // Without the schema there was never an epoch.
        Err(StoreError::Unprepared { .. }) => return Ok(None),
        read => about(resource, read)?,
    };
    let Some(EpochRow { epoch, drained, .. }) = read.pop() else {
        context.memory.forget(&resource.name);
        return Ok(None);
    };
    context.memory.learn(&resource.name, epoch);
    Ok(Some((epoch, drained)))
}

fn other_policies(resource: &Resource) -> FenceError {
    FenceError::unavailable(&resource.name, Obstacle::OtherPolicies)
}
