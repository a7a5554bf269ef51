//! The proxy's own state: whether it is stopping, and the result of the last check.
//!
//! Must never perform a check: `server` does.

use crate::config::Address;
use fencegate_fence::store::StoreError;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The proxy's own state.
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
    /// None if the check was canceled because its caller has gone.
    pub condition: Option<Condition>,
}

/// Why the proxy is not ready for clients.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum NotReady {
    #[error("the proxy is stopping")]
    Stopping,
    /// A control connection is missing.
    #[error(transparent)]
    Control(StoreError),
    /// The reason is the system's or the TLS library's.
    #[error("the server at {address} cannot be reached: {reason}")]
    Upstream { address: Address, reason: String },
    /// While another proxy's policies are in force, no session is admitted.
    #[error(
        "database {database}: another proxy has since loaded different policies of {resource}: reload this proxy (SIGHUP, or RELOAD in its console)"
    )]
    Superseded { database: String, resource: String },
}

/// How the proxy is.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The proxy is ready for clients, or why not.
    pub ready: Result<(), NotReady>,
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
