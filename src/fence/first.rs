//! First tokens: Publish, Mark and Admit in one step, for a resource that has no epoch yet. A queue of jobs has one for each job.
//!
//! Owns gathering those that come while a Query is under way into the next one. Must never decide that there is nobody to drain:
//! that is the Query's, under the resource's lock. Whatever it leaves undone goes the long way, which asks everything anew.

use super::database::Database;
use super::session::{Identity, Token};
use super::store::AdmissionRow;
use crate::policy::Resource;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Number of first tokens in one Query: it has a time limit, and meanwhile holds the locks of all their resources.
const MOST: usize = 32;

/// A session that presents the first token of a resource.
#[derive(Clone, Debug)]
pub struct First {
    /// Its server process.
    pub who: Identity,
    /// The resource; no other of the same Query is the same.
    pub resource: Arc<Resource>,
    /// Its token. That it may raise the fence has been asked.
    pub token: Token,
    /// When the policies were loaded.
    pub loaded: i64,
}

/// Those that wait for the next Query.
#[derive(Debug, Default)]
pub(super) struct FirstTokens {
    waiting: Mutex<Vec<(First, oneshot::Sender<Option<AdmissionRow>>)>>,
    /// Held while a Query is under way.
    turn: tokio::sync::Mutex<()>,
}

impl FirstTokens {
    /// At most one for each resource, and nobody who has given up.
    fn next(&self) -> Vec<(First, oneshot::Sender<Option<AdmissionRow>>)> {
        let mut names = HashSet::new();
        let mut is_next = |first: &First| names.len() < MOST && names.insert(first.resource.name.clone());
        let mut waiting = self.waiting.lock();
        waiting.retain(|(_, sender)| !sender.is_closed());
        waiting.extract_if(.., |(first, _)| is_next(first)).collect()
    }
}

impl Database {
    /// Makes the resource's first epoch, drained, and admits the process under it. None: something is in the way, or the answer
    /// is not known.
    ///
    /// Not cancel-safe: the process may be admitted. The database's next answer says so.
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
