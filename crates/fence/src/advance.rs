//! Advance: publish a higher token, drain all processes below it, mark the epoch as drained.
//!
//! Owns the order of these steps, and the termination of processes. Must never
//! - start a drain before the publish has committed: an Admit of an older token must either have committed before, so that the
//!   drain sees its row, or read the new epoch and fail;
//! - delete the row of a live process: only a release (`release.rs`) does that;
//! - treat a process as dead unless the database has shown that it is;
//! - rely on the drain to mark: the Query itself looks for admissions and prepared transactions below the epoch.
//!
//! Functions here are not cancel-safe unless their comment says so: a step may be left incomplete. Any proxy may repeat any
//! step. The next proxy that needs the epoch finishes an incomplete advance.

use super::fence_error::FenceError;
use super::obstacle::{Blocker, Obstacle};
use super::registry::key;
use super::release::spare;
use super::session::{Activity, Epoch, SessionFence};
use super::step::{Advance, Raising, rows_of};
use super::store::{AdmissionRow, DESCRIBED, GRACE, Holder, Key, Marked};
use fencegate_policy::Mode;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Raises the epoch, unless the current one is as high, and drains lower admissions. `known`: the current epoch, as it was
/// read. The caller has checked that the token may raise the fence (`issuer.rs`). Ok does not mean admitted: run Admit again.
pub(super) async fn raise(advance: &Advance<'_>, known: Option<Epoch>, deadline: Instant) -> Result<(), FenceError> {
    match publish(advance, known).await? {
        Some(current) if current == advance.to => settle(advance, deadline).await,
        // Raised further, or reset, by another proxy or session.
        _ => Ok(()),
    }
}

/// Drains lower admissions, and marks the epoch. Ok does not mean admitted: run Admit again.
pub(super) async fn settle(advance: &Advance<'_>, deadline: Instant) -> Result<(), FenceError> {
    let start = Instant::now();
    let drained = drain(advance, deadline).await;
    let waited = start.elapsed();
    advance.context.environment.metrics.drain_seconds.observe(waited.as_secs_f64());
    drained?;
    mark(advance, waited).await
}

/// Publishes, and returns the current epoch: this one, a higher one, or, under different policies, the previous one. `known`:
/// the epoch there is.
///
/// Not cancel-safe: the epoch may have been raised.
pub(super) async fn publish(advance: &Advance<'_>, known: Option<Epoch>) -> Result<Option<Epoch>, FenceError> {
    let Advance { context, resource, to, .. } = advance;
    let now = context.store().publish(resource, *to, known, context.policies.loaded(resource)).await;
    let now = advance.about(now)?;
    now.iter().for_each(|now| context.memory.learn(&resource.name, *now));
    Ok(now)
}

/// Number of looks at the processes without a pause. Another proxy needs two round trips to release an idle session.
const QUICK_LOOKS: u32 = 4;
/// Minimum and maximum pause between later looks: a quarter of the time that the drain has taken so far.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Returns once no admission below the epoch is left.
pub(super) async fn drain(advance: &Advance<'_>, deadline: Instant) -> Result<(), FenceError> {
    let start = Instant::now();
    let mut signalled = BTreeSet::new();
    let mut looks = 0;
    loop {
        looks += 1;
        // Pipelined. If the second Query still sees a dead process, the next look deletes its row.
        let (deleted, holders) = tokio::join!(delete_dead(advance, &signalled), advance.holders());
        deleted?;
        let mut holders = holders?;
        let is_its = |holder: &Holder, it: &Raising<'_>| holder.row.key() == key(it.identity) && !holder.row.ending;
        if let Some(raising) = advance.raising.filter(|it| holders.iter().any(|holder| is_its(holder, it))) {
            // The raising session keeps its process and its locks: its row is replaced, not drained.
            refuse_if_written(advance).await?;
            raising.session.revoke(&advance.resource.name, advance.to);
            let (own, others) = holders.into_iter().partition(|holder| is_its(holder, &raising));
            if advance.delete(&rows_of(own)).await?.is_empty() {
                refuse_if_held(advance).await?;
            }
            holders = others;
        }
        let rows: Vec<AdmissionRow> = holders.iter().map(|holder| holder.row.clone()).collect();
        let spared = spare(advance, &rows).await?;
        holders.retain(|holder| !spared.contains(&holder.row.key()));
        if holders.is_empty() {
            return Ok(());
        }
        let grace_over = start.elapsed() >= GRACE;
        let own = &advance.context.environment.proxy;
        let is_due = |it: &&Holder| grace_over || it.proxy == *own && ends_at_once(advance, &it.row.key());
        let due: BTreeSet<Key> = holders.iter().filter(is_due).map(|holder| holder.row.key()).collect();
        if !due.is_empty() {
            let due: Vec<Key> = due.into_iter().collect();
            advance.about(advance.context.store().terminate(&due, &advance.resource.name, advance.to).await)?;
            signalled.extend(due);
        }
        if Instant::now() >= deadline {
            return Err(FenceError::unavailable(&advance.resource.name, Obstacle::NotEnded(described(holders))));
        }
        if looks > QUICK_LOOKS {
            if let Some(raising) = advance.raising {
                raising.session.set_blockers(described(holders));
            }
            sleep((start.elapsed() / 4).clamp(PAUSE.0, PAUSE.1)).await;
        }
    }
}

/// True if the drain terminates this process of an own session without the grace period. A revoked session that has forwarded
/// no write may be running the `SET` of the new token, and is released when the proxy finds it between statements.
fn ends_at_once(advance: &Advance<'_>, key: &Key) -> bool {
    advance.context.sessions.get(key).is_none_or(|session| session.may_have_written(&advance.resource.name))
}

/// Spares this proxy's own sessions among the holders, as [`spare`] does. Immediately terminates those that the drain would
/// terminate without its grace period, and leaves others to the drain. Never terminates sessions that request the token or a
/// higher one: they keep their process or are refused. Terminates nothing for a fence in mode observe.
pub(super) async fn spare_or_end_own(advance: &Advance<'_>) -> Result<(), FenceError> {
    let rows = rows_of(advance.holders().await?);
    let spared = spare(advance, &rows).await?;
    let sessions = advance.context.sessions;
    let is_due = |key: &Key| {
        let asks = |it: &SessionFence| {
            it.asking().is_some_and(|(name, token)| name == advance.resource.name && token >= advance.to.token)
        };
        !spared.contains(key) && sessions.get(key).is_some_and(|it| !asks(&it)) && ends_at_once(advance, key)
    };
    let due: BTreeSet<Key> = rows.iter().map(AdmissionRow::key).filter(is_due).collect();
    if due.is_empty() || advance.resource.mode == Mode::Observe {
        return Ok(());
    }
    let due: Vec<Key> = due.into_iter().collect();
    advance.about(advance.context.store().terminate(&due, &advance.resource.name, advance.to).await)
}

/// Returns LF003 if the session's process has or may have uncommitted writes below the epoch.
pub(super) async fn refuse_if_written(advance: &Advance<'_>) -> Result<(), FenceError> {
    let Some(raising) = advance.raising else { return Ok(()) };
    if raising.session.may_have_written(&advance.resource.name) {
        return refuse_if_held(advance).await;
    }
    if raising.session.activity() == Activity::Idle {
        return Ok(());
    }
    // A write that the query string does not show was seen by the guard.
    let written = advance.context.store().guarded_write(advance.resource, raising.identity.pid).await;
    refuse_under(advance, advance.about(written)?)
}

/// Returns LF003 if the session's process is admitted below the epoch.
async fn refuse_if_held(advance: &Advance<'_>) -> Result<(), FenceError> {
    let own = advance.raising.map(|it| key(it.identity));
    let holders = advance.holders().await?;
    let held = holders.iter().filter(|holder| Some(holder.row.key()) == own).map(|holder| holder.row.epoch);
    refuse_under(advance, held.max())
}

/// Returns LF003 if the session's open transaction has written under an epoch: it would continue under another token.
fn refuse_under(advance: &Advance<'_>, written: Option<Epoch>) -> Result<(), FenceError> {
    let Some(Epoch { token: current, .. }) = written else { return Ok(()) };
    let resource = advance.resource.name.clone();
    Err(FenceError::WrittenUnderAnotherToken { resource, presented: advance.to.token, current })
}

async fn delete_dead(advance: &Advance<'_>, signalled: &BTreeSet<Key>) -> Result<(), FenceError> {
    let below = Some((advance.resource.name.as_str(), advance.to));
    for (key, token) in advance.about(advance.context.store().delete_dead(below).await)? {
        advance.log_drained(if signalled.contains(&key) { "terminated" } else { "dead" }, token);
    }
    Ok(())
}

/// The holders for messages: the first [`DESCRIBED`], and the number of the others.
fn described(holders: Vec<Holder>) -> Vec<Blocker> {
    let more = holders.len().saturating_sub(DESCRIBED);
    let mut left: Vec<_> = holders.into_iter().take(DESCRIBED).map(|holder| holder.blocker).collect();
    if more > 0 {
        left.push(Blocker { holder: format!("{more} more"), query: String::new() });
    }
    left
}

/// Marks the epoch. `waited`: the duration of the drain.
///
/// Not cancel-safe: the epoch may have been marked.
pub(super) async fn mark(advance: &Advance<'_>, waited: Duration) -> Result<(), FenceError> {
    match advance.about(advance.context.store().mark(advance.resource, advance.to).await)? {
        Marked::Drained => advance.log_advanced(waited),
        Marked::Prepared(gids) => {
            return Err(FenceError::unavailable(&advance.resource.name, Obstacle::PreparedTransactions(gids)));
        }
        // Marked or raised by another proxy or session in the meantime.
        Marked::Nothing => {}
    }
    Ok(())
}
