//! Callback API: a thin layer over campaigning.
//!
//! Must never report a loss before the work under the token has been dropped.

use super::LeaderError;
use super::coordinator::{Coordinator, Observe};
use super::election::Election;
use super::leadership::Leadership;
use super::loss::Loss;
use crate::Leader;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// Pause before retrying a failed observation.
const PAUSE: Duration = Duration::from_secs(1);

/// Callbacks for the start and end of leadership.
pub trait Callbacks: Sync {
    /// The work of a leader. When leadership is lost, the work is dropped at its next await point. When the work ends
    /// by itself, the candidate resigns.
    fn started_leading(&self, leadership: Leadership) -> impl Future<Output = ()> + Send;

    /// Called when leadership and the work have ended.
    fn stopped_leading(&self, _loss: Loss) {}

    /// Called when the leader changes. The new leader may be this candidate. None: no leader.
    fn new_leader(&self, _leader: Option<Leader>) {}
}

impl<C: Coordinator> Election<C> {
    /// Campaigns once, leads once, and returns why leadership ended. Call it again to campaign again. Cancel-safe: it
    /// drops the work and gives up leadership or candidacy.
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
