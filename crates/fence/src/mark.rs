//! Mark: sets the epoch drained, after the database has verified that no process below it is left. Only now can a process be
//! admitted under it.
//!
//! Must never rely on the drain: the Query itself looks for admissions and prepared transactions, while the epoch cannot change.

use super::fence_error::FenceError;
use super::obstacle::Obstacle;
use super::step::Advance;
use super::store::Marked;
use std::time::Duration;

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
