//! What is known of the proxy's own state: whether it stops, and how it was found last.
//!
//! Must never ask anybody: the server does.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// What is known of the proxy's own state.
#[derive(Debug, Default)]
pub struct Health {
    stopping: AtomicBool,
    /// How it was found last. Held while that is found out: one asks for all.
    pub found: Mutex<Found>,
    /// The status page, and when it was made. Held while it is made.
    pub status: Mutex<Option<(Instant, String)>>,
}

/// How the proxy was found last.
#[derive(Debug, Default)]
pub struct Found {
    /// When that was begun.
    pub asked: Option<Instant>,
    /// None where it was broken off: who wanted to know has gone.
    pub condition: Option<Condition>,
}

/// How the proxy is.
#[derive(Clone, Debug)]
pub struct Condition {
    /// New clients find all that they need; or why not.
    pub ready: Result<(), String>,
    /// The server behind it accepts connections.
    pub upstream: bool,
    /// etcd answers; None where no etcd is set.
    pub etcd: Option<bool>,
}

impl Health {
    /// From now on the proxy is not ready: it is about to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// It is about to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
