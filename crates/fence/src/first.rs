//! First tokens: Publish, Mark and Admit in one step, for a resource without an epoch. A job queue has one first token per job.
//!
//! Must never decide that there is no process to drain: only the Query decides that, under the resource's lock. A first token
//! that the Query does not admit uses the ordinary Admit, which repeats all checks.

use super::claim::Raise;
use super::fence_error::FenceError;
use super::issuer::may_raise;
use super::raising::RaisingState;
use super::session::{Epoch, Token};
use super::step::{Context, Raising};
use super::store::{AdmissionRow, First};
use fencegate_policy::Resource;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// Admits the session under a resource's first token, if everything known indicates that it is the first.
/// None: use the ordinary Admit, which also reports the reason of a refusal. Error: the session's role must be determined.
pub(super) async fn admit(
    context: Context<'_>,
    state: &RaisingState,
    Raising { session, who }: Raising<'_>,
    resource: &Arc<Resource>,
    token: Token,
    raise: Raise<'_>,
    deadline: Instant,
) -> Result<Option<AdmissionRow>, FenceError> {
    // Only for keys: resources without keys rarely see a first token.
    let is_one = resource.family.is_some() && context.memory.last_read(&resource.name).is_none();
    if !is_one || session.may_have_written(&resource.name) {
        return Ok(None);
    }
    // Until an Admit has seen that the server accepts writes, the issuer's answer may be from before a promotion.
    if resource.issuer.is_some() && !context.memory.confirmed.is_known(who) {
        return Ok(None);
    }
    match raise {
        Raise::Freely => {}
        Raise::WhoMay(claim) => match state.permitted.permits(context, claim, resource, token).await {
            Ok(()) => {}
            Err(unknown @ FenceError::RoleUnknown { .. }) => return Err(unknown),
            Err(_) => return Ok(None),
        },
        Raise::Never => return Ok(None),
    }
    if may_raise(context, resource, Epoch { generation: 1, token }).await.is_err() {
        return Ok(None);
    }
    let began = Instant::now();
    let first =
        First { who: who.clone(), resource: resource.clone(), token, loaded: context.policies.loaded(resource) };
    let Ok(Some(row)) = timeout_at(deadline, state.first_tokens.admit(context, first)).await else { return Ok(None) };
    context.memory.learn(&resource.name, row.epoch);
    context.memory.confirmed.confirm(who, resource, row.epoch);
    context.environment.metrics.admissions.inc();
    context.advance(resource, row.epoch).log_advanced(began.elapsed());
    Ok(Some(row))
}
