//! Whether a proxy runs.

use std::sync::Mutex;
use tokio::sync::Notify;

/// How a proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Runs,
    /// It does nothing, for a while.
    Stopped,
    /// It never does anything again.
    Crashed,
}

/// Whether a proxy runs. Whoever waits for that goes on in the order in which they came.
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
        // All is on one thread: nothing changes before the wait begins.
        while self.state() != State::Runs {
            self.changed.notified().await;
        }
    }
}
