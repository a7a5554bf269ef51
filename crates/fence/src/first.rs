//! First tokens: Publish, Mark and Admit in one step, for a resource without an epoch. A job queue has one first token per job.
//!
//! Owns the batching: first tokens that arrive while a Query is under way are sent with the next one. Must never decide that
//! there is no process to drain: only the Query decides that, under the resource's lock. A first token that the Query does not
//! admit uses the ordinary Admit, which repeats all checks.

use super::database::Database;
use super::store::{AdmissionRow, First};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;

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
}

impl Database {
    /// Creates the resource's first epoch, drained, and admits the process under it. None: an obstacle was found, or the
    /// outcome is unknown.
    ///
    /// Not cancel-safe: the process may be admitted. The next Admit reports the admission.
    pub(super) async fn admit_first(self: &Arc<Self>, first: First) -> Option<AdmissionRow> {
        let (sender, mut answer) = oneshot::channel();
        self.first_tokens.waiting.lock().push((first, sender));
        loop {
            let _turn = self.first_tokens.turn.lock().await;
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return None,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let batch = self.first_tokens.next();
            let firsts: Vec<&First> = batch.iter().map(|(first, _)| first).collect();
            let mut rows = self.store().admit_first(&firsts).await.unwrap_or_default();
            for (first, sender) in batch {
                let row =
                    rows.iter().position(|row| row.resource == first.resource.name).map(|at| rows.swap_remove(at));
                // Whoever has given up wants no answer.
                sender.send(row).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
