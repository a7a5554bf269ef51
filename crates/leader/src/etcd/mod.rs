//! The etcd client for leaders and for the authority over their tokens.
//!
//! Owns the connections (members, TLS, credentials, time limits) and the layout of an election's keys. Must never wait
//! for a silent member, or trust a member without its cluster: every read is linearizable, and every watch needs a
//! quorum.

mod connection;
mod election;
mod observe;
mod settings;

pub use connection::{Etcd, EtcdError, EtcdMembers};
pub use election::{candidates, leader, leaders};
pub(crate) use observe::{EtcdObserver, Watch};
pub use settings::{EtcdPassword, EtcdSettings, EtcdSettingsError};
