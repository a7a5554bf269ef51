//! fencegate: a fencing-aware storage proxy for PostgreSQL.
//!
//! Without the feature `proxy`, which is on by default, it is a library for leaders: [`leader`], and [`etcd`] below it.
//!
//! Imports run one way: `cli` → `proxy` → `console`, `guard` → `fence` → `policy` → `etcd`, `statement` → `wire`; `cli` → `leader` → `etcd`, `metrics`;
//! `proxy`, `fence` and `guard` → `tls`; `proxy` and `metrics` → `listen`. `metrics` and `log_limit` import nothing else, and all but `etcd` may import them.
//! `fence` and `console` know no sockets of clients, `wire` knows no fences.

#[cfg(feature = "proxy")]
pub mod catalogue;
#[cfg(feature = "proxy")]
pub mod cli;
#[cfg(feature = "proxy")]
pub mod config;
#[cfg(feature = "proxy")]
mod crowd;
#[cfg(feature = "proxy")]
pub mod demo;
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
pub mod metrics;
#[cfg(feature = "proxy")]
mod net;
#[cfg(feature = "proxy")]
mod operate;
#[cfg(feature = "proxy")]
pub mod policy;
#[cfg(feature = "proxy")]
pub mod server;
#[cfg(feature = "proxy")]
mod session;
#[cfg(feature = "proxy")]
mod sql;
#[cfg(feature = "proxy")]
pub mod stage;
#[cfg(feature = "proxy")]
mod state;
#[cfg(feature = "proxy")]
pub mod statement;
#[cfg(feature = "proxy")]
pub mod tls;
#[cfg(feature = "proxy")]
pub mod wire;
#[cfg(feature = "proxy")]
mod yaml;
