//! Orders to a session from outside: the shutdown of the proxy, the idle timeout, KILL, PAUSE, and revocations.
//!
//! Must never end a session in a transaction, unless the proxy's time is up or an operator ends that session.

use super::alarm::Alarm;
use crate::state::lifecycle::{FAREWELL, Orders, Phase};
use crate::state::sessions::SessionRecord;
use fencegate_fence::session::SessionFence;
use fencegate_session::End;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// An order to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The orders to all sessions have changed.
    Orders,
    /// An operator or another primary ends the session.
    Kill,
    /// A newer token has revoked an admission.
    Revoked,
}

/// State that determines when a session has to end.
pub struct Term {
    orders: watch::Receiver<Orders>,
    /// The orders as last seen.
    now: Orders,
    kill: CancellationToken,
    is_replaced: Arc<AtomicBool>,
    fence: Arc<SessionFence>,
    /// One future per signal. The session checks for signals with each message, and polls only the futures that were
    /// woken.
    signals: FuturesUnordered<Pin<Box<dyn Future<Output = Signal> + Send>>>,
    alarm: Alarm,
    database: String,
    /// Start of the idle time; None if not idle, or without an idle timeout.
    idle_since: Option<Instant>,
    /// Time since which the session's time is up.
    over_since: Option<Instant>,
}

impl Term {
    /// A session that starts now.
    pub fn new(mut orders: watch::Receiver<Orders>, session: &SessionRecord) -> Self {
        let now = orders.borrow_and_update().clone();
        let (kill, fence, database) = (session.kill.clone(), session.fence.clone(), session.database.clone());
        let is_replaced = session.is_replaced.clone();
        let (signals, alarm) = (FuturesUnordered::new(), Alarm::default());
        let term = Term {
            orders,
            now,
            kill,
            is_replaced,
            fence,
            signals,
            alarm,
            database,
            idle_since: None,
            over_since: None,
        };
        [Signal::Orders, Signal::Kill, Signal::Revoked].into_iter().for_each(|signal| term.listen(signal));
        term
    }

    fn listen(&self, signal: Signal) {
        let (mut orders, kill, fence) = (self.orders.clone(), self.kill.clone(), self.fence.clone());
        self.signals.push(match signal {
            Signal::Orders => Box::pin(async move {
                // The proxy outlives its sessions, so this does not fail.
                orders.changed().await.ok();
                signal
            }),
            Signal::Kill => Box::pin(async move {
                kill.cancelled().await;
                signal
            }),
            Signal::Revoked => Box::pin(async move {
                fence.revoked.notified().await;
                signal
            }),
        });
    }

    /// True if the database is paused.
    pub fn is_paused(&self) -> bool {
        self.now.paused.contains(&self.database)
    }

    /// Records that the client has sent or read something.
    pub fn heard(&mut self) {
        self.idle_since = self.idle_since.map(|_| Instant::now());
    }

    /// True if the time is up.
    pub fn is_over(&self) -> bool {
        self.now.phase == Phase::Ending || self.kill.is_cancelled()
    }

    /// Why the session has to end now, if it has to. `is_idle`: the session is outside a transaction, and no request is
    /// pending.
    pub fn end(&mut self, is_idle: bool) -> Option<End> {
        if self.orders.has_changed().unwrap_or(false) {
            self.look();
        }
        if self.kill.is_cancelled() {
            return Some(if self.is_replaced.load(Ordering::SeqCst) { End::Replaced } else { End::Killed });
        }
        // A held session cannot send anything.
        let idle_timeout = self.now.idle_timeout.filter(|_| !self.is_paused());
        match (self.now.phase, idle_timeout) {
            (Phase::Ending, _) => return Some(End::Shutdown),
            (Phase::Draining, _) => {
                self.idle_since = None;
                return is_idle.then_some(End::Shutdown);
            }
            (Phase::Running, None) => self.idle_since = None,
            (Phase::Running, Some(_)) if !is_idle => self.idle_since = None,
            (Phase::Running, Some(_)) => {
                self.idle_since.get_or_insert_with(Instant::now);
            }
        }
        self.idle_until().is_some_and(|until| until <= Instant::now()).then_some(End::IdleTimeout)
    }

    /// The next signal.
    pub fn poll_signal(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        let Poll::Ready(Some(signal)) = self.signals.poll_next_unpin(context) else { return Poll::Pending };
        if signal == Signal::Orders {
            self.look();
        }
        self.listen(signal);
        Poll::Ready(signal)
    }

    /// Waits until the result of [`Self::end`] may have changed. Cancel-safe.
    pub async fn change(&mut self) {
        poll_fn(|context| {
            let signal = self.poll_signal(context);
            let is_over = self.idle_until().is_some_and(|until| self.alarm.poll_until(until, context).is_ready());
            if signal.is_ready() || is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Waits until the time limit for the session's end has passed. It starts when the proxy grants no more time.
    /// Cancel-safe.
    pub async fn farewell_over(&mut self) {
        loop {
            self.look();
            match self.over_since {
                Some(since) => return sleep_until(since + FAREWELL).await,
                // Do not use the alarm: after an idle timeout, its time has already passed.
                None => drop(poll_fn(|context| self.poll_signal(context)).await),
            }
        }
    }

    fn look(&mut self) {
        self.now = self.orders.borrow_and_update().clone();
        if self.is_over() {
            self.over_since.get_or_insert_with(Instant::now);
        }
    }

    /// Time at which the session will have been idle for too long, unless it becomes active.
    pub fn idle_until(&self) -> Option<Instant> {
        Some(self.idle_since? + self.now.idle_timeout?)
    }
}
