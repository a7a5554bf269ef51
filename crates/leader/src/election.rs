//! Taking part in an election.
//!
//! Must never leave a candidate without a caller: it would block those behind it.

use crate::candidacy::{Campaign, Settings, Waiting, Won, run};
use crate::coordinator::Coordinator;
use crate::{ElectionName, Error, Leadership, Lost, Observer, Patience};
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// An election, with the name and the lease timings of a candidate. Clones are candidates with the same name.
#[derive(Clone)]
pub struct Election(Arc<dyn AnyCampaign>);

/// A campaign on a coordinator of any type.
trait AnyCampaign: Send + Sync {
    fn run(self: Arc<Self>, waiting: Waiting, won: Won) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    fn observe(&self) -> Observer;
    fn settings(&self) -> &Settings;
}

impl<C: Coordinator> AnyCampaign for Campaign<C> {
    fn run(self: Arc<Self>, waiting: Waiting, won: Won) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(run(self, waiting, won))
    }

    fn observe(&self) -> Observer {
        self.coordinator.observe(&self.settings.name)
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Makes the elections of one coordinator.
pub(crate) trait Source: Send + Sync {
    fn election(self: Arc<Self>, settings: Settings) -> Election;
}

impl<C: Coordinator> Source for C {
    fn election(self: Arc<Self>, settings: Settings) -> Election {
        if let Some(meter) = &settings.meter {
            meter.campaigns(&settings.name);
        }
        Election(Arc::new(Campaign { coordinator: self, settings }))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { name, holder, timings, .. } = self.0.settings();
        formatter
            .debug_struct("Election")
            .field("name", name)
            .field("holder", holder)
            .field("timings", timings)
            .finish_non_exhaustive()
    }
}

impl Election {
    /// Name of the election.
    pub fn name(&self) -> &ElectionName {
        &self.0.settings().name
    }

    /// Follows the leaders of the election.
    pub fn observe(&self) -> Observer {
        self.0.observe()
    }

    /// Enters the queue and returns when this candidate leads. Keeps the lease alive while waiting. If the lease is
    /// lost while waiting (revoked, or this machine was suspended), a new candidate takes the last place. Cancel-safe:
    /// the candidate withdraws.
    ///
    /// # Errors
    /// The coordinator has not answered for a whole TTL or refuses, or the election is nested with another.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let won = self.campaign_until(pending::<()>()).await?;
        // None only for a candidate that stops or does not wait.
        won.ok_or(Error::Lost(Lost::Expired))
    }

    /// Like [`Self::campaign`], until `stop` completes. Then returns None, once the candidate has withdrawn or 5 s have
    /// passed; withdrawing continues in the background. For a process that is about to end. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn campaign_until(&self, stop: impl Future) -> Result<Option<Leadership>, Error> {
        self.run_candidacy(Waiting::ForTurn, stop).await
    }

    /// Leads if no other candidate does. Otherwise withdraws and returns None. Cancel-safe: the candidate withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.try_campaign_until(pending::<()>()).await
    }

    /// Like [`Self::try_campaign`], until `stop` completes, as [`Self::campaign_until`]. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign_until(&self, stop: impl Future) -> Result<Option<Leadership>, Error> {
        self.run_candidacy(Waiting::NotAtAll, stop).await
    }

    async fn run_candidacy(&self, waiting: Waiting, stop: impl Future) -> Result<Option<Leadership>, Error> {
        let (won, mut outcome) = oneshot::channel();
        let candidacy = tokio::spawn(self.0.clone().run(waiting, won));
        tokio::select! {
            // The task sends a result unless its runtime shuts down.
            leadership = &mut outcome => leadership.unwrap_or(Err(Error::Lost(Lost::Expired))),
            _ = stop => {
                drop(outcome);
                // Ignore the result: the candidate has withdrawn, or its lease ends by itself.
                let _ = timeout(Patience::USUAL.limit, candidacy).await;
                Ok(None)
            }
        }
    }
}
