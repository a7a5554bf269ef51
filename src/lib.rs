//! fencegate: a fencing-aware storage proxy for PostgreSQL.
//!
//! Without the feature `proxy`, which is on by default, it is a library for leaders: [`leader`], and [`etcd`] below it.
//!
//! # The map
//!
//! | layer | purpose |
//! |---|---|
//! | [`cli`], `demo`, `timeline`, `stage` | subcommands, the picture of logged events, and the temporary servers of the demo |
//! | [`leader`] | elections, leases and the commands that run under them |
//! | `server` | the running proxy: start, reload, shutdown, the console's socket |
//! | `net` | sockets: listener, handshake, TLS, and the driver of a session |
//! | `state` | state shared by sessions: settings in force, registries of databases and sessions, limits |
//! | `operate` | the console, and the status page |
//! | `session` | one session as a state machine: no socket, no task, no clock |
//! | [`guard`], [`fence`] | the triggers, and the protocol that keeps stale writes out |
//! | [`catalog`] | paths to fenced tables |
//! | [`metrics`], `sql`, [`tls`], [`config`] | foundations of several layers |
//! | [`policy`], [`etcd`], [`statement`], [`wire`] | policies, etcd, effects of SQL, messages of the protocol |
//!
//! Each imports only those below it. `tests/behaviour/layers.rs` enforces this.

#[cfg(all(test, feature = "proxy"))]
extern crate self as fencegate;

#[cfg(feature = "proxy")]
pub mod background;
#[cfg(feature = "proxy")]
pub mod catalog;
#[cfg(feature = "proxy")]
pub mod cli;
#[cfg(feature = "proxy")]
pub mod config;
#[cfg(feature = "proxy")]
pub mod demo;
#[cfg(feature = "proxy")]
mod escape;
pub mod etcd;
#[cfg(feature = "proxy")]
pub mod fence;
#[cfg(feature = "proxy")]
pub mod guard;
pub mod leader;
#[cfg(feature = "proxy")]
mod listen;
#[cfg(feature = "proxy")]
mod log_limit;
#[cfg(feature = "proxy")]
mod log_queue;
#[cfg(feature = "proxy")]
pub mod metrics;
#[cfg(feature = "micro")]
#[doc(hidden)]
#[path = "../benches/session/mod.rs"]
#[allow(clippy::expect_used, clippy::panic, reason = "not part of the program")]
pub mod micro;
#[cfg(feature = "proxy")]
mod nearest;
#[cfg(feature = "proxy")]
mod net;
#[cfg(feature = "proxy")]
mod operate;
#[cfg(feature = "proxy")]
pub mod policy;
#[cfg(feature = "proxy")]
mod reader_process;
#[cfg(feature = "proxy")]
pub mod server;
#[cfg(feature = "proxy")]
mod session;
#[cfg(all(test, feature = "proxy"))]
#[path = "../tests/simulation/mod.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod simulation;
#[cfg(feature = "proxy")]
mod sql;
#[cfg(feature = "proxy")]
pub mod stage;
#[cfg(feature = "proxy")]
mod state;
#[cfg(feature = "proxy")]
pub mod statement;
#[cfg(feature = "proxy")]
mod waiting_connections;
#[cfg(all(test, feature = "proxy"))]
#[path = "../tests/support"]
#[allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared with the tests against real servers"
)]
mod support {
    pub mod dice;
    pub mod length;
    pub mod literals;
    pub mod store;
}
#[cfg(feature = "proxy")]
mod supervise;
#[cfg(feature = "proxy")]
pub mod timeline;
#[cfg(feature = "proxy")]
pub mod tls;
#[cfg(feature = "proxy")]
pub mod wire;
#[cfg(feature = "proxy")]
mod yaml;
