//! Watches the leader of an election.
//!
//! Must never treat a notification as the truth: it only says that it is time to read.

use super::connect::Connect;
use super::leader;
use super::link::{Changes, Link};
use crate::observer::Observe;
use crate::{ElectionName, Error, Leader, Patience};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long to wait for a notification while there is no leader.
const LONG: Duration = Duration::from_secs(60);

/// Follows the leader of one election. The reported key is the election, and the lease is the candidate's number; 0 for
/// holders of other programs.
pub(crate) struct LeaseObserver<C> {
    link: Arc<Link<C>>,
    election: ElectionName,
    changes: Changes,
    /// Time of the next read at the latest; None: immediately.
    look: Option<Instant>,
}

impl<C: Connect> LeaseObserver<C> {
    pub(super) fn new(link: Arc<Link<C>>, election: ElectionName) -> Self {
        let changes = link.changes();
        LeaseObserver { link, election, changes, look: None }
    }
}

impl<C: Connect> Observe for LeaseObserver<C> {
    async fn next(&mut self) -> Result<Option<Leader>, Error> {
        if let Some(look) = self.look {
            tokio::select! {
                () = self.changes.of(self.election.as_str()) => {}
                () = sleep_until(look) => {}
            }
            // Reset before reading, so that a notification is not lost if the read is canceled.
            self.look = None;
        }
        let found = leader(&self.link, &self.election, Patience::USUAL).await?;
        let rest = found.as_ref().map_or(LONG, |(_, rest)| *rest + Duration::from_millis(5));
        self.look = Some(Instant::now() + rest);
        Ok(found.map(|(leader, _)| leader))
    }
}
