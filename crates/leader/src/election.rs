//! Taking part in an election.
//!
//! Must never leave a candidate without a caller: it would block those behind it.

use super::LeaderError;
use super::candidacy::{self, Waiting};
use super::coordinator::Coordinator;
use super::leadership::Leadership;
use super::loss::Loss;
use super::meter::Meter;
use super::timing::Timings;
use crate::{ElectionName, Patience};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// An election, with the name and the lease timings of a candidate.
pub struct Election<C> {
    pub(super) coordinator: Arc<C>,
    pub(super) name: ElectionName,
    pub(super) holder: String,
    pub(super) timings: Timings,
    /// Receives metrics, if set.
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
    /// Reports events to this meter.
    pub fn counted(self, meter: Arc<dyn Meter>) -> Self {
        meter.campaigns(&self.name);
        Election { meter: Some(meter), ..self }
    }

    /// Sends no request yet. Observers see `holder` while this candidate leads.
    pub fn new(coordinator: Arc<C>, name: ElectionName, holder: impl Into<String>, timings: Timings) -> Self {
        Election { coordinator, name, holder: holder.into(), timings, meter: None }
    }

    /// Name of the election.
    pub fn name(&self) -> &ElectionName {
        &self.name
    }

    /// Timings of the lease.
    pub fn timings(&self) -> &Timings {
        &self.timings
    }

    /// Follows the leaders of the election.
    pub fn observe(&self) -> C::Observer {
        self.coordinator.observe(&self.name)
    }

    /// Enters the queue and returns when this candidate leads. Keeps the lease alive while waiting. If the lease is
    /// lost while waiting (revoked, or this machine was suspended), a new candidate takes the last place. Cancel-safe:
    /// the candidate withdraws.
    ///
    /// # Errors
    /// The coordinator has not answered for a whole TTL or refuses, or the election is nested with another.
    pub async fn campaign(&self) -> Result<Leadership, LeaderError> {
        match self.campaign_until(std::future::pending::<Infallible>()).await {
            Ok(leadership) => leadership,
            Err(never) => match never {},
        }
    }

    /// Like [`Self::campaign`], until `abandoned` returns. Then returns its value, once the candidate has withdrawn or
    /// 5 s have passed; withdrawing continues in the background. For a process that is about to end. Cancel-safe: the
    /// candidate withdraws.
    ///
    /// # Errors
    /// The outer: abandoned. The inner: as [`Self::campaign`].
    pub async fn campaign_until<T>(
        &self,
        abandoned: impl Future<Output = T>,
    ) -> Result<Result<Leadership, LeaderError>, T> {
        let outcome = self.run_candidacy(Waiting::ForTurn, abandoned).await?;
        // None only for a candidate that does not wait.
        Ok(outcome.and_then(|leadership| leadership.ok_or(LeaderError::Lost(Loss::Expired))))
    }

    /// Leads if no other candidate does. Otherwise withdraws and returns None. Cancel-safe: the candidate withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, LeaderError> {
        match self.try_campaign_until(std::future::pending::<Infallible>()).await {
            Ok(outcome) => outcome,
            Err(never) => match never {},
        }
    }

    /// Like [`Self::try_campaign`], until `abandoned` returns, as [`Self::campaign_until`]. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// The outer: abandoned. The inner: as [`Self::campaign`].
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
            // The task sends a result unless its runtime shuts down.
            leadership = &mut outcome => Ok(leadership.unwrap_or(Err(LeaderError::Lost(Loss::Expired)))),
            why = abandoned => {
                drop(outcome);
                // Ignore the result: the candidate has withdrawn, or its lease ends by itself.
                let _ = timeout(Patience::USUAL.limit, candidacy).await;
                Err(why)
            }
        }
    }
}
