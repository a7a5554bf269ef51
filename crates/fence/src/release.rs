//! Release: deletes the admissions of a live process of this proxy that has nothing to commit, so that it need not end.
//!
//! Must never delete the row of a live process, unless the process is that of a session of this proxy that was revoked first
//! and has nothing to commit, now or later.
//!
//! Functions here are not cancel-safe unless their comment says so: some rows may be deleted and others not.

use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::{Activity, Epoch, SessionFence};
use super::step::{Advance, Context, Raising};
use super::store::{AdmissionRow, Key, StoreError};
use fencegate_policy::Resource;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Revokes this proxy's own sessions among the owners of these rows. Deletes the rows of those sessions that have nothing
/// below the epoch to commit, now or later. Returns the processes whose rows it deleted.
///
/// The rows were read before the revocation, and only these versions are deleted. The DELETE may arrive at any time: a row
/// below the epoch no longer permits anything, and the epoch cannot be pruned while the row exists.
pub(super) async fn spare(advance: &Advance<'_>, rows: &[AdmissionRow]) -> Result<BTreeSet<Key>, FenceError> {
    let Advance { context, resource, to, .. } = advance;
    let (mut idle, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    for own in rows.iter().map(AdmissionRow::key).collect::<BTreeSet<Key>>() {
        let Some(session) = context.sessions.get(&own) else { continue };
        match session.revoke(&resource.name, *to) {
            Activity::Idle => idle.insert(own),
            // The writes to the resource in the open transaction may not all have run yet.
            Activity::Waiting if !session.may_have_written(&resource.name) => waiting.insert(own),
            Activity::Waiting | Activity::Busy | Activity::CutOff => continue,
        };
    }
    // Looked at after the revocation: what was forwarded before has been answered, so its
    // locks are there, and nothing more can be forwarded.
    if !waiting.is_empty() {
        let pids: Vec<i32> = waiting.iter().map(|(pid, _)| *pid).collect();
        let lockers = advance.about(context.store().lockers(resource, &pids).await)?;
        waiting.retain(|(pid, _)| !lockers.contains(pid));
    }
    // Messages forwarded since may have written where only the guard saw it. Then the row stays.
    let mut spared = BTreeSet::new();
    for (how, keys) in [("idle", &idle), ("released", &waiting)] {
        let rows: Vec<AdmissionRow> = rows.iter().filter(|row| keys.contains(&row.key())).cloned().collect();
        for row in advance.delete(&rows).await? {
            advance.log_drained(how, row.epoch.token);
            spared.insert(row.key());
        }
    }
    Ok(spared)
}

/// Deletes the rows of a revoked session that has become idle or runs no statement, so that its process need not be
/// terminated. Does nothing while a statement may run. Keeps the rows of a session that has written in its open transaction.
/// Gives up the admissions of an idle session that has many.
///
/// Ignores failures: the drain takes care of the rows, and the next Admit of many. Cancel-safe.
pub(super) async fn release(context: Context<'_>, session: &SessionFence) {
    let Ok(identity) = &session.identity else { return };
    if session.is_full()
        && session.activity() == Activity::Idle
        && let Ok(_no_admit) = session.admitting.try_lock()
        && let Err(error) = give_up(context, Raising { session, identity }, None).await
    {
        tracing::debug!(%error, "an idle session keeps its admissions");
    }
    // Read the floors before the activity. No write below these floors can begin any more, so a session that is idle now
    // stays without writes below them.
    let floors: HashMap<String, Epoch> = session.floors().into_iter().collect();
    if floors.is_empty() || session.activity() == Activity::Busy {
        return;
    }
    let Ok(rows) = context.store().admissions_of(identity).await else { return };
    for row in &rows {
        let Some(floor) = floors.get(&row.resource).filter(|floor| row.epoch < **floor) else { continue };
        if let Some(resource) = context.policies.find(&row.resource)
            && let Err(error) = spare(&context.advance(&resource, *floor), std::slice::from_ref(row)).await
        {
            tracing::debug!(resource = row.resource, %error, "a revoked session's admission is left to the drain");
        }
    }
}

/// Gives up admissions that the session does not need now, if it has many or is to be admitted to many more. Safe because the
/// session has no uncommitted writes to these resources and was revoked first: it forwards none until the next Admit, which waits
/// for this call.
pub(super) async fn make_room(
    context: Context<'_>,
    raising: Raising<'_>,
    resource: &Resource,
    more: usize,
) -> Result<(), FenceError> {
    let session = raising.session;
    if !session.is_full() && session.has_room_for(more) {
        return Ok(());
    }
    match session.activity() {
        Activity::Idle => about(resource, give_up(context, raising, None).await)?,
        // As in `spare`: what was forwarded before has been answered, and nothing that may write is forwarded meanwhile.
        Activity::Waiting if session.has_room_for(more) => {}
        Activity::Waiting
            if about(resource, context.store().lockers(resource, &[raising.identity.pid]).await)?.is_empty() =>
        {
            about(resource, give_up(context, raising, Some(resource.lock_name())).await)?;
        }
        Activity::Waiting | Activity::Busy | Activity::CutOff => {}
    }
    if session.has_too_many(more) {
        return Err(FenceError::unavailable(&resource.name, Obstacle::TooManyResources));
    }
    Ok(())
}

/// Does nothing if the session is not idle, unless `unlocked` permits it as in [`SessionFence::give_up`]. Reads the rows before
/// the revocation and deletes only these versions. A later Admit creates new versions, so a delayed DELETE does not affect it.
async fn give_up(
    context: Context<'_>,
    Raising { session, identity }: Raising<'_>,
    unlocked: Option<&str>,
) -> Result<(), StoreError> {
    let rows = context.store().admissions_of(identity).await?;
    let Some(kept) = session.give_up(unlocked) else { return Ok(()) };
    let given_up = |row: &&AdmissionRow| {
        !kept.admissions.contains(&(row.resource.clone(), row.epoch)) && !kept.resources.contains(&row.resource)
    };
    let presented = session.presented();
    // An unknown row comes from an abandoned Admit. It stays until it is drained or the process ends.
    let rows = rows.iter().filter(given_up);
    let rows: Vec<_> = rows.filter_map(|row| Some((row, presented.get(&row.resource)?.lock_name.as_str()))).collect();
    let deleted = context.delete(&rows).await?;
    let deleted: HashSet<&str> = deleted.iter().map(|row| row.resource.as_str()).collect();
    let left: HashSet<&str> = rows.iter().map(|it| it.0.resource.as_str()).collect();
    session.retain_presented(|resource| left.contains(resource) && !deleted.contains(resource));
    Ok(())
}
