//! etcd, as leaders and the authority over their tokens need it.
//!
//! Owns the connections (members, TLS, credentials, limits on silence) and the layout of an
//! election's keys. Must never wait for a member that says nothing, nor believe what a member
//! says without its cluster: every read is linearizable, every watch needs a quorum.

mod connection;
mod election;
mod observe;
mod settings;

pub use connection::{Etcd, EtcdError, Patience};
pub use election::{ElectionName, InvalidName, Leader, candidates, leader, leaders};
pub use observe::Observer;
pub(crate) use observe::Watch;
pub use settings::{EtcdPassword, EtcdSettings, EtcdSettingsError};
