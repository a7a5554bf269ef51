//! Publish: raises the epoch, not drained, and commits before anything else of the advance starts.
//!
//! Must never start a drain: an Admit of an older token must either have committed before, so that the drain sees its row, or
//! read the new epoch.

use super::fence_error::FenceError;
use super::session::Epoch;
use super::step::Advance;

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
