#![doc = include_str!("../README.md")]
//!
//! # This crate
//! Owns campaigning, the lease and its events. Must never decide which leader may write: the storage, not this library,
//! stops a leader that does not know of its loss.

mod builder;
mod candidacy;
#[cfg(feature = "postgres")]
mod client;
mod clock;
#[cfg(feature = "command")]
pub mod command;
#[doc(hidden)]
pub mod coordinator;
mod election_name;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
mod etcd_candidacy;
mod leadership;
mod lease_session;
#[cfg(feature = "postgres")]
mod postgres;
mod ticker;

pub use builder::Election;
pub use builder::{BuildError, ElectionBuilder};
pub use candidacy::Meter;
#[cfg(feature = "postgres")]
pub use client::{ConnectError, FencedClient};
pub use clock::InvalidTimings;
pub use coordinator::{Leader, Observer, Patience, Token};
pub use election_name::{ElectionName, InvalidName};
pub use error::{Error, Lost};
pub use leadership::{Leadership, State};
pub use lease_session::LeaseSession;
#[cfg(feature = "postgres")]
pub use postgres::{Connect, Leases, RunningLease};
pub use ticker::{Tick, Ticker};
