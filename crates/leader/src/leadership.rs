//! Handle of a current leader.
//!
//! Must never claim that the candidate leads: the lease may end between the response and its use. It provides the
//! token, which the storage compares, and events, which the work under the token awaits.

use crate::clock::{BootInstant, sleep_until};
use crate::{ElectionName, Error, Lost, Token};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// State of a leadership's lease, published by the task that keeps it.
#[derive(Clone, Debug)]
pub struct State {
    /// Time until which the lease certainly lives: a TTL after the last answered renewal was *sent*.
    pub(crate) deadline: BootInstant,
    pub(crate) lost: Option<Lost>,
    /// Why the last completed renewal failed; None if it succeeded.
    pub(crate) failure: Option<Error>,
    /// True while a renewal has been sent and is not yet answered.
    pub(crate) is_renewing: bool,
}

impl State {
    pub(crate) fn new(deadline: BootInstant) -> Self {
        State { deadline, lost: None, failure: None, is_renewing: false }
    }

    /// Time for which the lease certainly lives, unless it is revoked: a TTL from the moment at which the last answered
    /// renewal was sent. Counts down while the machine is suspended, too.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Whether leadership can be relied on. Ok proves nothing: leadership may have been lost since.
    ///
    /// # Errors
    /// Leadership is lost, or the deadline of the lease has passed.
    pub fn check(&self) -> Result<(), Lost> {
        match &self.lost {
            Some(lost) => Err(lost.clone()),
            None if self.remaining().is_zero() => Err(self.unrenewed()),
            None => Ok(()),
        }
    }

    /// Why a lease that has reached its deadline was not renewed.
    pub(crate) fn unrenewed(&self) -> Lost {
        self.failure.clone().map_or(Lost::Expired, Lost::unrenewed)
    }

    /// Why leadership ends if it is given up now. A leader that must stop because its lease is running out does not
    /// resign voluntarily.
    pub(crate) fn loss_by_resigning(&self, ttl: Duration) -> Lost {
        let is_running_out = self.remaining() <= ttl / 3;
        match &self.failure {
            Some(error) if is_running_out => Lost::unrenewed(error.clone()),
            None if is_running_out && self.is_renewing => Lost::Unreachable { reason: "no answer".to_owned() },
            _ => Lost::Resigned,
        }
    }
}

/// Requests of a leader to the task that keeps its lease.
#[derive(Debug)]
pub(crate) enum Request {
    Proclaim(Vec<u8>, oneshot::Sender<Result<(), Error>>),
    Resign(oneshot::Sender<Result<(), Error>>),
}

/// A won election. Clones share the same leadership; dropping the last one releases the lease.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(crate) token: Token,
    pub(crate) election: ElectionName,
    pub(crate) holder: String,
    /// ID of the lease.
    #[cfg_attr(not(feature = "command"), allow(dead_code, reason = "only the guard of a command releases by it"))]
    pub(crate) lease: i64,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) requests: mpsc::Sender<Request>,
}

impl Leadership {
    /// The fencing token. Every later leader has a higher one.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The election that was won.
    pub fn election(&self) -> &ElectionName {
        &self.election
    }

    /// Name of the candidate that won.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    pub(crate) fn state(&self) -> watch::Ref<'_, State> {
        self.state.borrow()
    }

    /// As [`State::remaining`]. Each renewal restores it to nearly a TTL.
    pub fn remaining(&self) -> Duration {
        self.state().remaining()
    }

    /// As [`State::check`].
    ///
    /// # Errors
    /// Leadership is lost, or the deadline of the lease has passed.
    pub fn check(&self) -> Result<(), Lost> {
        self.state().check()
    }

    /// Notifies of each renewal and of the loss, also of one before the call. Is closed after the loss. Does not keep leadership
    /// alive. Do not hold the result of `borrow()` while you wait: the lease is not renewed meanwhile.
    pub fn subscribe(&self) -> watch::Receiver<State> {
        let mut state = self.state.clone();
        let is_lost = state.borrow_and_update().lost.is_some();
        if is_lost {
            state.mark_changed();
        }
        state
    }

    /// Returns the reason as soon as leadership is lost. If the lease cannot be renewed, that is 100 ms before its
    /// deadline, unless this process is suspended then. Cancel-safe.
    pub async fn lost(&self) -> Lost {
        self.loss().await
    }

    /// Like [`Self::lost`], for a separate task: the future does not keep leadership alive.
    pub(crate) fn loss(&self) -> impl Future<Output = Lost> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            let lost = state.wait_for(|state| state.lost.is_some()).await;
            let lost = lost.ok().and_then(|state| state.lost.clone());
            // The task that keeps the lease sends the reason before it ends, unless its runtime ends first.
            lost.unwrap_or(Lost::Expired)
        }
    }

    /// Runs the work while leadership lasts. When leadership is lost, drops the work at its current await point, and
    /// then returns. Cancel-safe if the work is.
    ///
    /// # Errors
    /// Leadership is lost, or the deadline of the lease has passed: also if the work has ended since. Work that has
    /// ended, or was sent to a server, may have taken effect.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work));
        poll_fn(|context| {
            if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            // The task that keeps the lease may be late, for example because this work blocked its thread.
            if let Err(lost) = self.check() {
                return Poll::Ready(Err(lost));
            }
            let output = ready!(work.as_mut().poll(context));
            Poll::Ready(self.check().map(|()| output))
        })
        .await
    }

    /// Returns when less than `rest` of the lease remains because renewals are not answered, or when leadership is
    /// lost. The work should then stop in an orderly way. Cancel-safe.
    pub async fn running_out(&self, rest: Duration) {
        let mut state = self.state.clone();
        loop {
            let State { deadline, lost, .. } = state.borrow_and_update().clone();
            if lost.is_some() || deadline.remaining() <= rest {
                return;
            }
            tokio::select! {
                () = sleep_until(deadline - rest) => {}
                changed = state.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Changes the value that observers of the election see. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// Leadership is lost, or the coordinator cannot be reached.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<(), Error> {
        let value = value.into();
        self.request(|answer| Request::Proclaim(value, answer)).await
    }

    /// Gives up leadership so that the next candidate leads immediately. Call it when all work under the token has
    /// ended. Cancel-safe: it continues.
    ///
    /// # Errors
    /// The coordinator cannot be reached. Leadership is lost nevertheless, and the lease ends by itself.
    pub async fn resign(&self) -> Result<(), Error> {
        self.request(Request::Resign).await
    }

    async fn request(&self, request: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> Request) -> Result<(), Error> {
        let (sender, answer) = oneshot::channel();
        if self.requests.send(request(sender)).await.is_err() {
            return Err(self.lost().await.into());
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.lost().await.into()),
        }
    }
}
