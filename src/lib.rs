//! The program fencegate: a fencing-aware storage proxy for PostgreSQL.
//!
//! # The map
//!
//! | module | purpose |
//! |---|---|
//! | [`cli`], [`demo`], [`timeline`], [`stage`] | subcommands, the picture of logged events, and the temporary servers of the demo |
//! | [`server`] | the running proxy: start, reload, shutdown, the console's socket |
//! | `net` | sockets: listener, handshake, TLS, and the driver of a session |
//! | [`state`] | state shared by sessions: settings in force, registries of databases and sessions, limits |
//! | `operate` | the console, and the status page |
//! | [`metrics`], [`tls`], [`config`], `picture`, `relay` | foundations of several modules |
//!
//! The crates below it: `fencegate_session` (one session as a state machine), `fencegate_fence` (the protocol and the
//! guard), `fencegate_catalog` (paths to fenced tables), `fencegate_postgres` (connections), `fencegate_policy`,
//! `fencegate_statement` (effects of SQL), `fencegate_wire` (messages), and `fencegate_leader` (elections and leases).

pub mod cli;
pub mod config;
pub mod demo;
mod escape;
mod listen;
mod log_queue;
pub mod metrics;
mod net;
mod operate;
mod picture;
mod relay;
pub mod server;
pub mod stage;
pub mod state;
pub mod timeline;
pub mod tls;
mod waiting_connections;
