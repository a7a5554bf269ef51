//! Suspends the operations of a proxy that does not run.

use std::sync::Mutex;
use tokio::sync::Notify;

/// The state of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Runs,
    /// The proxy does nothing for a while.
    Stopped,
    /// The proxy never continues.
    Crashed,
}

/// Suspends operations while the proxy does not run. They continue in the order of their arrival.
pub struct Gate {
    state: Mutex<State>,
    changed: Notify,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { state: Mutex::new(State::Runs), changed: Notify::new() }
    }
}

impl Gate {
    pub fn state(&self) -> State {
        *self.state.lock().unwrap()
    }

    pub fn set(&self, state: State) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_waiters();
    }

    /// Returns when the proxy runs. Cancel-safe.
    pub async fn runs(&self) {
        // There is only one thread, so the state cannot change before the wait begins.
        while self.state() != State::Runs {
            self.changed.notified().await;
        }
    }
}
