//! State that the sessions of a database share while they raise fences.

use super::first_tokens::FirstTokens;
use super::permission::Permitted;
use super::resource_lock::ResourceLocks;

/// Queues of sessions, and permissions that were found recently.
#[derive(Debug, Default)]
pub(super) struct RaisingState {
    /// Permit one advance at a time per resource in this process. Other sessions wait for its result.
    pub(super) resource_locks: ResourceLocks,
    pub(super) first_tokens: FirstTokens,
    pub(super) permitted: Permitted,
}
