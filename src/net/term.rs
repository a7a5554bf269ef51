//! The orders to a session from outside: the shutdown of the proxy, the idle timeout, KILL and PAUSE.
//!
//! Must never end a session in a transaction, unless the proxy's time is up or an operator ends that session.

use super::driver::moment;
use crate::session::End;
use crate::state::lifecycle::Orders;
use crate::state::lifecycle::{FAREWELL, Phase};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The state from which a session learns that it has to end.
pub struct Term {
    orders: watch::Receiver<Orders>,
    /// As last seen.
    now: Orders,
    kill: CancellationToken,
    database: String,
    /// Since when it has been idle; None also without an idle timeout.
    idle_since: Option<Instant>,
    /// Since when there has been no more time.
    over_since: Option<Instant>,
}

impl Term {
    /// A session that starts now.
    pub fn new(mut orders: watch::Receiver<Orders>, kill: CancellationToken, database: String) -> Self {
        let now = orders.borrow_and_update().clone();
        Term { orders, now, kill, database, idle_since: None, over_since: None }
    }

    /// The database is paused.
    pub fn is_paused(&self) -> bool {
        self.now.paused.contains(&self.database)
    }

    /// The client has sent something, or read something.
    pub fn heard(&mut self) {
        self.idle_since = None;
    }

    /// There is no more time.
    pub fn is_over(&self) -> bool {
        self.now.phase == Phase::Ending || self.kill.is_cancelled()
    }

    /// Why the session has to end now; `is_idle`: it is outside of a transaction, and nothing was asked for.
    pub fn end(&mut self, is_idle: bool) -> Option<End> {
        if self.orders.has_changed().unwrap_or(false) {
            self.look();
        }
        if self.kill.is_cancelled() {
            return Some(End::Killed);
        }
        // A session that is held cannot say anything.
        let idle_timeout = self.now.idle_timeout.filter(|_| !self.is_paused());
        match (self.now.phase, idle_timeout) {
            (Phase::Ending, _) => return Some(End::Shutdown),
            (Phase::Draining, _) => return is_idle.then_some(End::Shutdown),
            (Phase::Running, None) => self.idle_since = None,
            (Phase::Running, Some(_)) if !is_idle => self.idle_since = None,
            (Phase::Running, Some(_)) => {
                self.idle_since.get_or_insert_with(Instant::now);
            }
        }
        self.idle_until().is_some_and(|until| until <= Instant::now()).then_some(End::IdleTimeout)
    }

    /// Waits until [`Self::end`] may say something else. Cancel-safe.
    pub async fn change(&mut self) {
        let until = self.idle_until();
        tokio::select! {
            // The proxy outlives its sessions, so that this does not fail.
            _ = self.orders.changed() => self.look(),
            () = self.kill.cancelled() => {}
            () = moment(until) => {}
        }
    }

    /// Waits until the time is over that a session has to end in once the proxy gives it no more. Cancel-safe.
    pub async fn farewell_over(&mut self) {
        loop {
            self.look();
            match self.over_since {
                Some(since) => return sleep_until(since + FAREWELL).await,
                None if self.orders.changed().await.is_err() => return,
                None => {}
            }
        }
    }

    fn look(&mut self) {
        self.now = self.orders.borrow_and_update().clone();
        if self.is_over() {
            self.over_since.get_or_insert_with(Instant::now);
        }
    }

    fn idle_until(&self) -> Option<Instant> {
        Some(self.idle_since? + self.now.idle_timeout?)
    }
}
