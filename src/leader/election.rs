//! Taking part in an election.
//!
//! Must never leave a candidate behind without a caller: it would block those after it.

use super::LeaderError;
use super::candidacy::{self, Waiting};
use super::coordinator::Coordinator;
use super::leadership::Leadership;
use super::loss::Loss;
use super::meter::Meter;
use super::timing::Timings;
use crate::etcd::{ElectionName, Patience};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// An election, and under which name and with what lease to take part in it.
pub struct Election<C> {
    pub(super) coordinator: Arc<C>,
    pub(super) name: ElectionName,
    pub(super) holder: String,
    pub(super) timings: Timings,
    /// Where it is counted, if anywhere.
    pub(super) meter: Option<Arc<dyn Meter>>,
}

// Not derived: C itself need not be Clone or Debug.
impl<C> Clone for Election<C> {
    fn clone(&self) -> Self {
        let Election { coordinator, name, holder, timings, meter } = self;
        Election {
            coordinator: coordinator.clone(),
            name: name.clone(),
            holder: holder.clone(),
            timings: *timings,
            meter: meter.clone(),
        }
    }
}

impl<C> fmt::Debug for Election<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Election { name, holder, timings, .. } = self;
        formatter
            .debug_struct("Election")
            .field("name", name)
            .field("holder", holder)
            .field("timings", timings)
            .finish_non_exhaustive()
    }
}

impl<C: Coordinator> Election<C> {
    /// Counts its events with this meter.
    pub fn counted(self, meter: Arc<dyn Meter>) -> Self {
        meter.campaigns(&self.name);
        Election { meter: Some(meter), ..self }
    }

    /// Sends no request yet. `holder` is what observers see while we lead.
    pub fn new(coordinator: Arc<C>, name: ElectionName, holder: impl Into<String>, timings: Timings) -> Self {
        Election { coordinator, name, holder: holder.into(), timings, meter: None }
    }

    /// Its name.
    pub fn name(&self) -> &ElectionName {
        &self.name
    }

    /// How its lease is kept.
    pub fn timings(&self) -> &Timings {
        &self.timings
    }

    /// Follows who leads.
    pub fn observe(&self) -> C::Observer {
        self.coordinator.observe(&self.name)
    }

    /// Queues up and returns when we lead. The lease is kept alive meanwhile; when it is lost while waiting (revoked,
    /// or this machine was paused), a new candidate takes the last place. Cancel-safe: the candidate withdraws.
    ///
    /// # Errors
    /// When the coordinator has not answered for a whole TTL, or refuses; when the election is nested with another.
    pub async fn campaign(&self) -> Result<Leadership, LeaderError> {
        match self.campaign_until(std::future::pending::<Infallible>()).await {
            Ok(leadership) => leadership,
            Err(never) => match never {},
        }
    }

    /// The same, until `abandoned` returns; then returns what that did, once the candidate has withdrawn (or has not
    /// been able to for 5 s, and goes on trying). For a process that is about to end. Cancel-safe as the other.
    ///
    /// # Errors
    /// The outer: abandoned. The inner: as the other.
    pub async fn campaign_until<T>(
        &self,
        abandoned: impl Future<Output = T>,
    ) -> Result<Result<Leadership, LeaderError>, T> {
        let outcome = self.run_candidacy(Waiting::ForTurn, abandoned).await?;
        // None only for one that does not wait.
        Ok(outcome.and_then(|leadership| leadership.ok_or(LeaderError::Lost(Loss::Expired))))
    }

    /// Leads if nobody else does; none otherwise, and then the candidate has withdrawn. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, LeaderError> {
        match self.try_campaign_until(std::future::pending::<Infallible>()).await {
            Ok(outcome) => outcome,
            Err(never) => match never {},
        }
    }

    /// The same, until `abandoned` returns, as [`Self::campaign_until`]. Cancel-safe as the other.
    ///
    /// # Errors
    /// The outer: abandoned. The inner: as the other.
    pub async fn try_campaign_until<T>(
        &self,
        abandoned: impl Future<Output = T>,
    ) -> Result<Result<Option<Leadership>, LeaderError>, T> {
        self.run_candidacy(Waiting::NotAtAll, abandoned).await
    }

    async fn run_candidacy<T>(
        &self,
        waiting: Waiting,
        abandoned: impl Future<Output = T>,
    ) -> Result<Result<Option<Leadership>, LeaderError>, T> {
        let (won, mut outcome) = oneshot::channel();
        let candidacy = tokio::spawn(candidacy::run(self.clone(), waiting, won));
        tokio::select! {
            // The task answers, unless its runtime is shut down.
            leadership = &mut outcome => Ok(leadership.unwrap_or(Err(LeaderError::Lost(Loss::Expired)))),
            why = abandoned => {
                drop(outcome);
                // Nothing to say: it has withdrawn, or its lease ends by itself.
                let _ = timeout(Patience::USUAL.limit, candidacy).await;
                Err(why)
            }
        }
    }
}
