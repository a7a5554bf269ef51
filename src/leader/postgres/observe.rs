//! Watching the leader of an election.
//!
//! Must never take an announcement for the truth: it only says that it is time to look.

use super::connect::Connect;
use super::leader;
use super::link::{Changes, Link};
use crate::etcd::{ElectionName, Leader, Patience};
use crate::leader::coordinator::{CoordinatorError, Observe};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long an announcement is waited for where nobody leads.
const LONG: Duration = Duration::from_secs(60);

/// Follows the leader of one election. As its key it shows the election, as its lease the number of our candidate; 0 for
/// holders that are none of ours.
pub struct LeaseObserver<C> {
    link: Arc<Link<C>>,
    election: ElectionName,
    changes: Changes,
    /// The value that was returned last.
    known: Option<Option<Leader>>,
    /// When to look again, at the latest; None: at once.
    look: Option<Instant>,
}

impl<C: Connect> LeaseObserver<C> {
    pub(super) fn new(link: Arc<Link<C>>, election: ElectionName) -> Self {
        let changes = link.changes();
        LeaseObserver { link, election, changes, known: None, look: None }
    }
}

impl<C: Connect> Observe for LeaseObserver<C> {
    async fn next(&mut self) -> Result<Option<Leader>, CoordinatorError> {
        loop {
            if let Some(look) = self.look {
                tokio::select! {
                    () = self.changes.of(self.election.as_str()) => {}
                    () = sleep_until(look) => {}
                }
                // First: what was heard must not be lost when the look is not finished.
                self.look = None;
            }
            let found = leader(&self.link, &self.election, Patience::USUAL).await?;
            let rest = found.as_ref().map_or(LONG, |(_, rest)| *rest + Duration::from_millis(5));
            self.look = Some(Instant::now() + rest);
            let found = found.map(|(leader, _)| leader);
            if self.known.as_ref() != Some(&found) {
                self.known = Some(found.clone());
                return Ok(found);
            }
        }
    }
}
