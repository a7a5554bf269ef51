//! fencegate: a fencing-aware storage proxy for PostgreSQL.
//!
//! Imports run one way: `cli` → `proxy`, `leader` → `console`, `guard` → `fence` → `policy` → `etcd`, `statement` → `wire`;
//! `proxy`, `fence` and `guard` → `tls`; `proxy` and `metrics` → `listen`. `metrics` and `log_limit` import nothing else, and all may import them.
//! `fence` and `console` know no sockets of clients, `wire` knows no fences.

pub mod cli;
pub mod config;
pub mod console;
mod crowd;
pub mod demo;
pub mod etcd;
pub mod fence;
pub mod guard;
pub mod leader;
mod listen;
mod log_limit;
pub mod metrics;
pub mod policy;
pub mod proxy;
mod spelling;
pub mod stage;
pub mod statement;
pub mod tls;
pub mod wire;
mod yaml;
