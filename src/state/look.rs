//! A look at a server of the list: the facts that a prober has read, or why it could not.
//!
//! Must never contain a conclusion from several servers, such as the role: `server_table` draws these.

use crate::config::Address;
use fencegate_fence::session::Identity;
use std::time::Duration;

/// The result of a look at a server.
#[derive(Clone, Debug)]
pub struct Look {
    /// The address in the settings.
    pub address: Address,
    /// The server's report.
    pub result: Result<ServerReport, LookError>,
}

/// The facts that a prober has read from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// True while the server is a standby.
    pub in_recovery: bool,
    /// `system_identifier` of `pg_control_system()`: one for all servers of a cluster.
    pub system_identifier: String,
    /// Start of the postmaster, as in [`Identity`].
    pub postmaster_start: String,
    /// The timeline of the server's WAL.
    pub timeline: u32,
}

impl ServerReport {
    pub(super) fn is_of(&self, identity: &Identity) -> bool {
        self.system_identifier == identity.system_identifier && self.postmaster_start == identity.postmaster_start
    }
}

/// Why a look at a server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The server did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The server is another program or version.
    #[error("the response to the query for its role has an unknown format")]
    UnknownForm,
    /// The server did not let the control role log in, with this message.
    #[error("{0}")]
    LoginRefused(String),
    /// The message of the server, the system or the TLS library.
    #[error("{0}")]
    Failed(String),
}
