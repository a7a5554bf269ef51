//! Admit: may this server process write the resource under this token?
//!
//! Owns the decision, which one Query in the database makes. Must never
//! - admit except by that Query's answer: no row, no reply, or a reply after a revocation means refused;
//! - decide that a first token has no process to drain: only the Query decides that, under the resource's lock.
//!
//! Functions here are not cancel-safe unless their comment says so: the token may have been raised although the session is not
//! admitted.

use super::advance::{self, refuse_if_written};
use super::enforcement::{note_superseded, record_policy};
use super::fence_error::{FenceError, about};
use super::issuer::{confirm_epoch, explained, may_raise};
use super::obstacle::Obstacle;
use super::raising::{Claim, Raise, RaisingState, note_first, permits};
use super::release::make_room;
use super::resource_lock::ResourceLocks;
use super::session::{Epoch, Identity, IdentityError, Presented, SessionFence, Token};
use super::step::{Context, Raising};
use super::store::{AdmissionRow, EpochRow, Recorded, Report};
use fencegate_policy::Resource;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time that a session waits for its admission, including drains.
const LIMIT: Duration = Duration::from_secs(10);

/// The database's answer to one Query.
enum AdmitDecision {
    /// The admission. `is_new`: the row did not exist before.
    Admitted {
        row: AdmissionRow,
        is_new: bool,
    },
    /// The token is higher than the current epoch's, or the first.
    Above {
        target: Epoch,
        current: Option<Epoch>,
    },
    /// The token is the epoch's, which is not drained yet.
    Undrained(Epoch),
    /// The epoch records different policies, loaded before those of this proxy.
    OlderPolicies,
    Refused(FenceError),
}

/// Admits the session's server process to the resource under the token. Raises and drains the epoch first if necessary, as
/// `raise` says. After Ok, no process with a lower token can commit a write to the resource.
pub(super) async fn admit(
    context: Context<'_>,
    state: &RaisingState,
    session: &SessionFence,
    resource: &Arc<Resource>,
    token: Token,
    raise: Raise<'_>,
) -> Result<(), FenceError> {
    let unknown = |error: &IdentityError| FenceError::unavailable(&resource.name, error.clone().into());
    let identity = session.identity.as_ref().map_err(unknown)?;
    let _one_at_a_time = session.admitting.lock().await;
    session.set_asking(Some((resource.name.clone(), token)));
    let outcome = admit_process(context, state, Raising { session, identity }, resource, token, raise).await;
    session.set_asking(None);
    outcome
}

async fn admit_process(
    context: Context<'_>,
    state: &RaisingState,
    raising: Raising<'_>,
    resource: &Arc<Resource>,
    token: Token,
    raise: Raise<'_>,
) -> Result<(), FenceError> {
    let Raising { session, identity } = raising;
    let unavailable = |obstacle| FenceError::unavailable(&resource.name, obstacle);
    let deadline = Instant::now() + LIMIT;
    make_room(context, raising, resource, 1).await?;
    while Instant::now() < deadline {
        if !context.sessions.has(identity) {
            return Err(unavailable(Obstacle::Unregistered));
        }
        // Policies may have been reloaded. The session judges the messages that it holds back by the new policies.
        let is_past = !context.policies.is_in_force(resource);
        let in_force = is_past.then(|| context.policies.find(&resource.name)).flatten();
        let resource = in_force.as_ref().unwrap_or(resource);
        // The token probably has to be raised. Let the session determine its role first and retry: this saves one Query.
        if let Raise::IfPermitted(Claim { role: None, .. }) = raise
            && context.memory.is_below(&resource.name, token)
        {
            return Err(FenceError::RoleUnknown { resource: resource.name.clone() });
        }
        let revocations = session.revocations();
        if let Some(row) = admit_first(context, state, raising, resource, token, raise, deadline).await?
            && record(context, raising, resource, row.epoch, revocations)
        {
            return Ok(());
        }
        match verdict(context, identity, resource, token).await? {
            AdmitDecision::Admitted { row, is_new } => {
                // Confirm before the session may use the admission. A drain in between revokes it, and `record` notices
                // that.
                let confirmed = confirm_epoch(context, identity, resource, row.epoch).await;
                if confirmed.is_ok() && record(context, raising, resource, row.epoch, revocations) {
                    context.environment.metrics.admissions.inc();
                    return Ok(());
                }
                // The issuer refuses, or a drain ran after the commit. The write was held back, so a new row was never
                // used. The next verdict has the new epoch.
                if is_new {
                    context.advance(resource, row.epoch).delete(&[row]).await?;
                }
                confirmed?;
            }
            AdmitDecision::Above { target, current } => {
                check_raise(context, raising, resource, target, current, raise).await?;
                let advance = context.advance(resource, target).by(raising);
                in_turn(&state.resource_locks, resource, deadline, advance::raise(&advance, current, deadline)).await?;
            }
            AdmitDecision::Undrained(epoch) => {
                let advance = context.advance(resource, epoch).by(raising);
                refuse_if_written(&advance).await?;
                in_turn(&state.resource_locks, resource, deadline, advance::settle(&advance, deadline)).await?;
            }
            AdmitDecision::OlderPolicies => {
                about(resource, record_policy(context, resource).await)?;
            }
            AdmitDecision::Refused(refusal) => return Err(explained(context, resource, refusal).await),
        }
    }
    Err(unavailable(Obstacle::RaisedTooFast))
}

/// Checks, before a token is raised or a process terminated, that the session may raise the epoch to this one: its open
/// transaction has not written, the server would permit its statement, and the issuer has issued the token.
async fn check_raise(
    context: Context<'_>,
    raising: Raising<'_>,
    resource: &Resource,
    target: Epoch,
    current: Option<Epoch>,
    raise: Raise<'_>,
) -> Result<(), FenceError> {
    if matches!(raise, Raise::Never) {
        let (resource, highest) = (resource.name.clone(), current.map(|epoch| epoch.token));
        return Err(FenceError::NotInForce { resource, presented: target.token, highest });
    }
    let advance = context.advance(resource, target).by(raising);
    // Concurrently, because neither changes anything.
    let (written, permitted) = tokio::join!(refuse_if_written(&advance), async {
        match raise {
            Raise::IfPermitted(claim) => permits(context, claim, resource, target.token).await,
            _ => Ok(()),
        }
    });
    written?;
    permitted?;
    // Query the issuer before taking the resource's lock, so that sessions that do not need etcd never wait for it.
    may_raise(context, resource, target).await?;
    context.memory.confirmed.confirm(raising.identity, resource, target);
    Ok(())
}

/// Runs the step, unless another session runs one for the resource. In that case only waits until that one is done.
async fn in_turn(
    locks: &ResourceLocks,
    resource: &Resource,
    deadline: Instant,
    step: impl Future<Output = Result<(), FenceError>>,
) -> Result<(), FenceError> {
    let turn = locks.of(&resource.name);
    if let Ok(_turn) = turn.try_lock() {
        return step.await;
    }
    match timeout_at(deadline, turn.lock()).await {
        Ok(_turn) => Ok(()),
        Err(_) => Err(FenceError::unavailable(&resource.name, Obstacle::OtherAdvance)),
    }
}

pub(super) fn record(
    context: Context<'_>,
    raising: Raising<'_>,
    resource: &Resource,
    epoch: Epoch,
    revocations: u64,
) -> bool {
    if !context.sessions.has(raising.identity) {
        return false;
    }
    raising.session.present(&resource.name, Presented { epoch, lock_name: resource.lock_name().to_owned() });
    raising.session.record_admission(&resource.name, epoch, revocations)
}

async fn verdict(
    context: Context<'_>,
    identity: &Identity,
    resource: &Resource,
    token: Token,
) -> Result<AdmitDecision, FenceError> {
    let report =
        about(resource, context.store().admit(identity, resource, token, context.policies.loaded(resource)).await)?;
    if report.unfenceable.is_none() {
        context.memory.confirmed.server_accepts_writes(identity);
    }
    if let Some((_, recorded)) = &report.current {
        note_superseded(context, resource, *recorded == Recorded::Others);
    }
    let verdict = decide(report, identity.pid, resource, token);
    match &verdict {
        AdmitDecision::Admitted { row: AdmissionRow { epoch: current, .. }, .. }
        | AdmitDecision::Refused(FenceError::Stale { highest: current, .. }) => {
            context.memory.learn(&resource.name, *current);
        }
        AdmitDecision::Above { current: None, .. } => context.memory.forget(&resource.name),
        _ => {}
    }
    Ok(verdict)
}

fn decide(report: Report, pid: i32, resource: &Resource, token: Token) -> AdmitDecision {
    let unavailable = |obstacle| AdmitDecision::Refused(FenceError::unavailable(&resource.name, obstacle));
    if let Some(fault) = report.unfenceable {
        return unavailable(Obstacle::Process { pid, fault });
    }
    let Some((EpochRow { epoch: current, drained, .. }, recorded)) = report.current else {
        return AdmitDecision::Above { target: Epoch { generation: 1, token }, current: None };
    };
    if token < current.token {
        let resource = resource.name.clone();
        return AdmitDecision::Refused(FenceError::Stale { resource, presented: token, highest: current });
    }
    match recorded {
        Recorded::Same => {}
        Recorded::Older => return AdmitDecision::OlderPolicies,
        Recorded::Others => return unavailable(Obstacle::NewerPolicies),
    }
    if token > current.token {
        let target = Epoch { generation: current.generation, token };
        return AdmitDecision::Above { target, current: Some(current) };
    }
    if !drained {
        return AdmitDecision::Undrained(current);
    }
    match report.admission {
        Some((row, is_new)) if row.epoch == current && token == current.token => {
            AdmitDecision::Admitted { row, is_new }
        }
        _ => unavailable(Obstacle::NotAdmitted),
    }
}

/// Admits the session under a resource's first token, if everything known indicates that it is the first.
/// None: use the ordinary Admit, which also reports the reason of a refusal. Error: the session's role must be determined.
async fn admit_first(
    context: Context<'_>,
    state: &RaisingState,
    raising: Raising<'_>,
    resource: &Arc<Resource>,
    token: Token,
    raise: Raise<'_>,
    deadline: Instant,
) -> Result<Option<AdmissionRow>, FenceError> {
    let Some(first) = state.first_token(context, raising, resource, token, raise).await? else { return Ok(None) };
    let began = Instant::now();
    let Ok(Some(row)) = timeout_at(deadline, state.first_tokens.admit(context, first)).await else { return Ok(None) };
    note_first(context, raising.identity, resource, row.epoch, began.elapsed());
    context.environment.metrics.admissions.inc();
    Ok(Some(row))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
