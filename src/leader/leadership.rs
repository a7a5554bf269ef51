//! The handle of a leader while it leads.
//!
//! Must never say that it leads: between the answer and its use the lease may end. It has a token,
//! which the storage compares, and events, which the work under it awaits.

use super::LeaderError;
use super::clock::{BootInstant, sleep_until};
use super::coordinator::CoordinatorError;
use super::loss::Loss;
use crate::etcd::ElectionName;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// State that the task that keeps the lease publishes.
#[derive(Clone, Debug)]
pub(super) struct LeaseState {
    /// Until when the lease certainly lives: the last answered renewal was *sent* a TTL before.
    pub(super) deadline: BootInstant,
    pub(super) lost: Option<Loss>,
    /// Why the last renewal that was answered, or given up, has failed; None: it has not.
    pub(super) failure: Option<CoordinatorError>,
    /// A renewal has been sent, and not yet been answered.
    pub(super) is_renewing: bool,
}

impl LeaseState {
    pub(super) fn new(deadline: BootInstant) -> Self {
        LeaseState { deadline, lost: None, failure: None, is_renewing: false }
    }

    /// Why leadership ends when it is given up now. A leader whose lease is running out, so that it has to stop, does not give
    /// it up of its own accord.
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

/// A won election. Clones are the same leadership; when the last is dropped the lease is given up.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(super) token: i64,
    pub(super) election: ElectionName,
    pub(super) holder: String,
    pub(super) lease: i64,
    pub(super) lease_state: watch::Receiver<LeaseState>,
    pub(super) requests: mpsc::Sender<KeeperRequest>,
}

impl Leadership {
    /// The fencing token: every later leader's is higher.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The election that was won.
    pub fn election(&self) -> &ElectionName {
        &self.election
    }

    /// Names the lease that it depends on: in etcd its id.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// The name under which it was won.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Until when the lease certainly lives, unless it is revoked. Moves on with each renewal.
    pub fn deadline(&self) -> BootInstant {
        self.lease_state.borrow().deadline
    }

    /// Returns the deadline when it is another than `known`; at once, if it is. Never, once leadership is lost and no
    /// renewal can come. Cancel-safe.
    pub async fn renewed(&self, known: BootInstant) -> BootInstant {
        let mut lease_state = self.lease_state.clone();
        let renewed = lease_state
            .wait_for(|lease_state| lease_state.deadline != known)
            .await
            .map(|lease_state| lease_state.deadline);
        match renewed {
            Ok(deadline) => deadline,
            Err(_) => std::future::pending().await,
        }
    }

    /// Why leadership is lost, once it is. None proves nothing: it may have been lost since.
    pub fn why_lost(&self) -> Option<Loss> {
        self.lease_state.borrow().lost.clone()
    }

    /// Returns when leadership is lost, with the reason; at once, if it has been. Cancel-safe.
    pub async fn lost(&self) -> Loss {
        self.loss().await
    }

    /// As [`Self::lost`], for a task of its own: it does not keep leadership.
    pub(super) fn loss(&self) -> impl Future<Output = Loss> + Send + use<> {
        let mut lease_state = self.lease_state.clone();
        async move {
            let lost = lease_state.wait_for(|lease_state| lease_state.lost.is_some()).await;
            let lost = lost.ok().and_then(|lease_state| lease_state.lost.clone());
            // The task that keeps the lease says why before it ends, unless its runtime ends first.
            lost.unwrap_or(Loss::Expired)
        }
    }

    /// Returns when less than `rest` of the lease is left, because no renewal has been answered, or when leadership is
    /// lost: the moment to stop working in good order. Cancel-safe.
    pub async fn running_out(&self, rest: Duration) {
        let mut lease_state = self.lease_state.clone();
        loop {
            let LeaseState { deadline, lost, .. } = lease_state.borrow_and_update().clone();
            if lost.is_some() || deadline.remaining() <= rest {
                return;
            }
            tokio::select! {
                () = sleep_until(deadline - rest) => {}
                changed = lease_state.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Shows another value to those who observe the election. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When leadership is lost, or the coordinator cannot be reached.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<(), LeaderError> {
        let value = value.into();
        self.request(|answer| KeeperRequest::Proclaim(value, answer)).await
    }

    /// Gives leadership up, so that the next candidate leads at once. To be called when all work under the token has
    /// ended. Cancel-safe: it goes on.
    ///
    /// # Errors
    /// When the coordinator cannot be reached: the lease then ends by itself. Leadership is lost all the same.
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
