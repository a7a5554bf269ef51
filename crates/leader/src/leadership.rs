//! Handle of a current leader.
//!
//! Must never claim that the candidate leads: the lease may end between the response and its use. It provides the
//! token, which the storage compares, and events, which the work under the token awaits.

use super::LeaderError;
use super::clock::{BootInstant, sleep_until};
use super::coordinator::CoordinatorError;
use super::loss::Loss;
use crate::ElectionName;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// State of a leadership's lease, published by the task that keeps it.
#[derive(Clone, Debug)]
pub(super) struct KeeperState {
    /// Time until which the lease certainly lives: a TTL after the last answered renewal was *sent*.
    pub(super) deadline: BootInstant,
    pub(super) lost: Option<Loss>,
    /// Why the last completed renewal failed; None if it succeeded.
    pub(super) failure: Option<CoordinatorError>,
    /// True while a renewal has been sent and is not yet answered.
    pub(super) is_renewing: bool,
}

impl KeeperState {
    pub(super) fn new(deadline: BootInstant) -> Self {
        KeeperState { deadline, lost: None, failure: None, is_renewing: false }
    }

    /// Why leadership ends if it is given up now. A leader that must stop because its lease is running out does not
    /// resign voluntarily.
    pub(super) fn loss_by_resigning(&self, ttl: Duration) -> Loss {
        let is_running_out = self.deadline.remaining() <= ttl / 3;
        match &self.failure {
            Some(error) if is_running_out => error.clone().into(),
            None if is_running_out && self.is_renewing => Loss::Unreachable { reason: "no answer".to_owned() },
            _ => Loss::Resigned,
        }
    }
}

/// Requests of a leader to the task that keeps its lease.
#[derive(Debug)]
pub(super) enum KeeperRequest {
    Proclaim(Vec<u8>, oneshot::Sender<Result<(), LeaderError>>),
    Resign(oneshot::Sender<Result<(), LeaderError>>),
}

/// A won election. Clones share the same leadership; dropping the last one releases the lease.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(super) token: i64,
    pub(super) election: ElectionName,
    pub(super) holder: String,
    pub(super) lease: i64,
    pub(super) keeper_state: watch::Receiver<KeeperState>,
    pub(super) requests: mpsc::Sender<KeeperRequest>,
}

impl Leadership {
    /// The fencing token. Every later leader has a higher one.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The election that was won.
    pub fn election(&self) -> &ElectionName {
        &self.election
    }

    /// ID of the lease that keeps the leadership.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// Name of the candidate that won.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Time until which the lease certainly lives, unless it is revoked. Each renewal moves it.
    pub fn deadline(&self) -> BootInstant {
        self.keeper_state.borrow().deadline
    }

    /// Returns the deadline as soon as it differs from `known`. Never returns once leadership is lost and no renewal
    /// can follow. Cancel-safe.
    pub async fn renewed(&self, known: BootInstant) -> BootInstant {
        let mut keeper_state = self.keeper_state.clone();
        let renewed = keeper_state
            .wait_for(|keeper_state| keeper_state.deadline != known)
            .await
            .map(|keeper_state| keeper_state.deadline);
        match renewed {
            Ok(deadline) => deadline,
            Err(_) => std::future::pending().await,
        }
    }

    /// Why leadership was lost. None proves nothing: leadership may have been lost since.
    pub fn why_lost(&self) -> Option<Loss> {
        self.keeper_state.borrow().lost.clone()
    }

    /// Returns the reason as soon as leadership is lost. Cancel-safe.
    pub async fn lost(&self) -> Loss {
        self.loss().await
    }

    /// Like [`Self::lost`], for a separate task: the future does not keep leadership alive.
    pub(super) fn loss(&self) -> impl Future<Output = Loss> + Send + use<> {
        let mut keeper_state = self.keeper_state.clone();
        async move {
            let lost = keeper_state.wait_for(|keeper_state| keeper_state.lost.is_some()).await;
            let lost = lost.ok().and_then(|keeper_state| keeper_state.lost.clone());
            // The task that keeps the lease sends the reason before it ends, unless its runtime ends first.
            lost.unwrap_or(Loss::Expired)
        }
    }

    /// Returns when less than `rest` of the lease remains because renewals are not answered, or when leadership is
    /// lost. The work should then stop in an orderly way. Cancel-safe.
    pub async fn running_out(&self, rest: Duration) {
        let mut keeper_state = self.keeper_state.clone();
        loop {
            let KeeperState { deadline, lost, .. } = keeper_state.borrow_and_update().clone();
            if lost.is_some() || deadline.remaining() <= rest {
                return;
            }
            tokio::select! {
                () = sleep_until(deadline - rest) => {}
                changed = keeper_state.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Changes the value that observers of the election see. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// Leadership is lost, or the coordinator cannot be reached.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<(), LeaderError> {
        let value = value.into();
        self.request(|answer| KeeperRequest::Proclaim(value, answer)).await
    }

    /// Gives up leadership so that the next candidate leads immediately. Call it when all work under the token has
    /// ended. Cancel-safe: it continues.
    ///
    /// # Errors
    /// The coordinator cannot be reached. Leadership is lost nevertheless, and the lease ends by itself.
    pub async fn resign(&self) -> Result<(), LeaderError> {
        self.request(KeeperRequest::Resign).await
    }

    async fn request(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), LeaderError>>) -> KeeperRequest,
    ) -> Result<(), LeaderError> {
        let (sender, answer) = oneshot::channel();
        if self.requests.send(request(sender)).await.is_err() {
            return Err(LeaderError::Lost(self.lost().await));
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(LeaderError::Lost(self.lost().await)),
        }
    }
}
