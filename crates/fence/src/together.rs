//! Admission to many keys of one statement.
//!
//! Owns which keys are admitted together, and that a session is not admitted to more than it may be. Must never admit except by
//! the answers of the two Queries that `admit.rs` uses as well; leaves every key that needs more than an answer to `admit.rs`.
//!
//! Functions here are not cancel-safe: the process may be admitted. The next Admit reports the admission.

use super::admit::record;
use super::fence_error::FenceError;
use super::issuer::confirm_epoch;
use super::raising::{Raise, RaisingState, note_first};
use super::release::make_room;
use super::session::{SessionFence, Token};
use super::step::{Context, Raising};
use super::store::{AdmissionRow, First};
use fencegate_policy::Resource;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of resources in one Query. It takes a lock for each, and the server's table of locks has room for some 7,000 by
/// default, which all sessions share.
pub const MOST_TOGETHER: usize = 500;

/// A resource to which a session's process is to be admitted, its token, and when the token may be raised.
pub type Wanted<'a> = (Arc<Resource>, Token, Raise<'a>);

/// Admits the session's process to those of the resources for which it need not wait. `admit.rs` admits it to the others one by
/// one, and reports the reason of a refusal.
///
/// # Errors
/// The session may not be admitted to so many resources; or the role of the session has to be determined first.
pub(super) async fn admit(
    context: Context<'_>,
    state: &RaisingState,
    session: &SessionFence,
    wanted: &[Wanted<'_>],
) -> Result<(), FenceError> {
    let (Some((first, ..)), Ok(identity)) = (wanted.first(), &session.identity) else { return Ok(()) };
    let raising = Raising { session, identity };
    let _one_at_a_time = session.admitting.lock().await;
    // In this order, two sessions never wait for one another.
    let is_due = |(resource, token, _): &&Wanted| {
        let is_admitted = session.admission(&resource.name).is_some_and(|epoch| epoch.token == *token);
        !is_admitted && context.policies.is_in_force(resource)
    };
    let due: BTreeMap<&str, &Wanted> = wanted.iter().filter(is_due).map(|it| (it.0.name.as_str(), it)).collect();
    make_room(context, raising, first, due.len()).await?;
    let due: Vec<&Wanted> = due.into_values().collect();
    for some in due.chunks(MOST_TOGETHER) {
        if !context.sessions.has(identity) {
            break;
        }
        let revocations = session.revocations();
        let made = admit_firsts(context, state, raising, some, revocations).await?;
        let left: Vec<&Wanted> = some.iter().copied().filter(|(it, ..)| !made.contains_key(it.name.as_str())).collect();
        admit_current(context, raising, &left).await;
    }
    Ok(())
}

/// Admits the process under the first tokens of those resources that have no epoch, as far as this proxy knows.
async fn admit_firsts(
    context: Context<'_>,
    state: &RaisingState,
    raising: Raising<'_>,
    wanted: &[&Wanted<'_>],
    revocations: u64,
) -> Result<HashMap<String, AdmissionRow>, FenceError> {
    let mut firsts = Vec::new();
    for (resource, token, raise) in wanted {
        firsts.extend(state.first_token(context, raising, resource, *token, *raise).await?);
    }
    if firsts.is_empty() {
        return Ok(HashMap::new());
    }
    let began = Instant::now();
    let rows = state.first_tokens.admit_batch(context, &firsts).await;
    let mut rows: HashMap<String, AdmissionRow> = rows.into_iter().map(|row| (row.resource.clone(), row)).collect();
    for First { resource, .. } in &firsts {
        let Some(row) = rows.get(&resource.name) else { continue };
        note_first(context, raising.identity, resource, row.epoch, began.elapsed());
        if record(context, raising, resource, row.epoch, revocations) {
            context.environment.metrics.admissions.inc();
        } else {
            // Admit sees the newer epoch.
            rows.remove(&resource.name);
        }
    }
    Ok(rows)
}

/// Admits the process to those of the resources whose epochs are in force under the tokens. Ignores failures: Admit reports them.
async fn admit_current(context: Context<'_>, raising: Raising<'_>, wanted: &[&Wanted<'_>]) {
    let Raising { session, identity } = raising;
    let is_expected = |(resource, token, _): &&&Wanted| {
        context.memory.last_read(&resource.name).is_none_or(|known| known.token == *token)
    };
    let asked: Vec<(&Resource, Token)> =
        wanted.iter().filter(is_expected).map(|(resource, token, _)| (&**resource, *token)).collect();
    if asked.is_empty() {
        return;
    }
    let revocations = session.revocations();
    let Ok(rows) = context.store().admit_current(identity, &asked).await else { return };
    if !rows.is_empty() {
        context.memory.confirmed.server_accepts_writes(identity);
    }
    let resources: HashMap<&str, &Resource> = asked.iter().map(|(it, _)| (it.name.as_str(), *it)).collect();
    let mut unused = Vec::new();
    for (row, is_new) in &rows {
        let Some(resource) = resources.get(row.resource.as_str()) else { continue };
        context.memory.learn(&resource.name, row.epoch);
        // Before the session may use the admission, as in `admit.rs`.
        let is_confirmed = confirm_epoch(context, identity, resource, row.epoch).await.is_ok();
        if is_confirmed && record(context, raising, resource, row.epoch, revocations) {
            context.environment.metrics.admissions.inc();
        } else if *is_new {
            unused.push((row, resource.lock_name()));
        }
    }
    // The write is held back, so these were never used. A drain ends the others.
    if let Err(error) = context.delete(&unused).await {
        tracing::debug!(%error, "unused admissions are left to the drain");
    }
}
