//! Leading by callbacks: a thin layer over campaigning.
//!
//! Must never report a loss before the work under the token has been dropped.

use super::LeaderError;
use super::coordinator::{Coordinator, Observe};
use super::election::Election;
use super::leadership::Leadership;
use super::loss::Loss;
use crate::etcd::Leader;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// Before an election that could not be observed is looked at again.
const PAUSE: Duration = Duration::from_secs(1);

/// Reactions to the start and the end of leadership.
pub trait Callbacks: Sync {
    /// We lead: the work. It is dropped at its next await point when leadership is lost; when it ends by itself,
    /// leadership is given up.
    fn started_leading(&self, leadership: Leadership) -> impl Future<Output = ()> + Send;

    /// We lead no longer, and the work has ended.
    fn stopped_leading(&self, _loss: Loss) {}

    /// Another candidate leads, this one does, or none does.
    fn new_leader(&self, _leader: Option<Leader>) {}
}

impl<C: Coordinator> Election<C> {
    /// Campaigns once, leads once, and says how that ended. Call it again to campaign again. Cancel-safe: work that
    /// has begun is dropped, and leadership or candidacy is given up.
    ///
    /// # Errors
    /// As [`Election::campaign`].
    pub async fn run(&self, callbacks: &impl Callbacks) -> Result<Loss, LeaderError> {
        tokio::select! {
            outcome = self.lead(callbacks) => outcome,
            never = self.report(callbacks) => match never {},
        }
    }

    async fn lead(&self, callbacks: &impl Callbacks) -> Result<Loss, LeaderError> {
        let leadership = self.campaign().await?;
        tokio::select! {
            biased;
            _ = leadership.lost() => {}
            () = callbacks.started_leading(leadership.clone()) => {
                if let Err(error) = leadership.resign().await {
                    debug!(election = %self.name, %error, "leadership ends with its lease");
                }
            }
        }
        let loss = leadership.lost().await;
        callbacks.stopped_leading(loss.clone());
        Ok(loss)
    }

    async fn report(&self, callbacks: &impl Callbacks) -> Infallible {
        let mut observer = self.observe();
        loop {
            match observer.next().await {
                Ok(leader) => callbacks.new_leader(leader),
                Err(error) => {
                    debug!(election = %self.name, %error, "the election cannot be observed");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
