//! Shared parts of the integration tests: throwaway servers, the proxy under test, a raw protocol client, and the one
//! place that decides whether a test connects to the server directly or through the proxy.
//!
//! Everything started here is stopped, and every folder removed, when its owner is dropped or its process dies.

// Each test program uses only some of these items.
#![allow(dead_code, unused_imports)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod certificates;
pub mod cluster;
pub mod commit_order;
pub mod etcd;
pub mod etcd_cluster;
pub mod example;
pub mod fenced;
pub mod frozen;
pub mod full_pipe;
pub mod guardian;
pub mod identity;
pub mod link;
pub mod malicious;
pub mod page;
pub mod postgres;
pub mod postgres_source;
pub mod programs;
pub mod proxy;
pub mod server;
pub mod small_disk;
pub mod stub_engine;
pub mod target;
pub mod ticks;
pub mod transaction_pooler;
pub mod wait;
pub mod wire;

pub use etcd::Etcd;
pub use etcd_cluster::EtcdCluster;
pub use fencegate_testing::length::{length, seed, share};
pub use postgres::{Options, Postgres, Release};
pub use proxy::{Proxy, ProxyOptions};
pub use target::{Target, Via};
pub use wait::{DEADLINE, Stalls, until, wait_until};
pub use wire::{Address, Frame, Wire, message};
