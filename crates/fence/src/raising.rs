//! State that the sessions of a database share while they raise fences: first tokens that wait for a Query. Those that arrive
//! while one is under way are sent with the next one.
//!
//! Owns the batching. Must never give a session the answer of another.

use super::admit::Permitted;
use super::resource_lock::ResourceLocks;
use super::step::Context;
use super::store::{AdmissionRow, First};
use parking_lot::Mutex;
use std::collections::HashSet;
use tokio::sync::oneshot;

/// Queues of sessions, and permissions that were found recently.
#[derive(Debug, Default)]
pub(super) struct RaisingState {
    /// Permit one advance at a time per resource in this process. Other sessions wait for its result.
    pub(super) resource_locks: ResourceLocks,
    pub(super) first_tokens: FirstTokens,
    pub(super) permitted: Permitted,
}

/// Maximum number of first tokens in one Query, which has a time limit and holds the locks of all their resources.
const MOST: usize = 32;

/// First tokens that wait for the next Query.
#[derive(Debug, Default)]
pub(super) struct FirstTokens {
    waiting: Mutex<Vec<(First, oneshot::Sender<Option<AdmissionRow>>)>>,
    /// Held while a Query is under way.
    turn: tokio::sync::Mutex<()>,
}

impl FirstTokens {
    /// Takes the next batch: at most one first token per resource, and none whose caller has given up.
    fn next(&self) -> Vec<(First, oneshot::Sender<Option<AdmissionRow>>)> {
        let mut names = HashSet::new();
        let mut is_next = |first: &First| names.len() < MOST && names.insert(first.resource.name.clone());
        let mut waiting = self.waiting.lock();
        waiting.retain(|(_, sender)| !sender.is_closed());
        waiting.extract_if(.., |(first, _)| is_next(first)).collect()
    }

    /// As [`FirstTokens::admit`], for several resources of one session, in one Query. Returns the admissions.
    pub(super) async fn admit_batch(&self, context: Context<'_>, firsts: &[First]) -> Vec<AdmissionRow> {
        let _turn = self.turn.lock().await;
        context.store().admit_first(&firsts.iter().collect::<Vec<_>>()).await.unwrap_or_default()
    }

    /// Creates the resource's first epoch, drained, and admits the process under it. None: an obstacle was found, or the
    /// outcome is unknown.
    ///
    /// Not cancel-safe: the process may be admitted. The next Admit reports the admission.
    pub(super) async fn admit(&self, context: Context<'_>, first: First) -> Option<AdmissionRow> {
        let (sender, mut answer) = oneshot::channel();
        self.waiting.lock().push((first, sender));
        loop {
            let _turn = self.turn.lock().await;
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return None,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let batch = self.next();
            let firsts: Vec<&First> = batch.iter().map(|(first, _)| first).collect();
            let mut rows = context.store().admit_first(&firsts).await.unwrap_or_default();
            for (first, sender) in batch {
                let row =
                    rows.iter().position(|row| row.resource == first.resource.name).map(|at| rows.swap_remove(at));
                // A session that has ended does not wait for the answer.
                sender.send(row).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
