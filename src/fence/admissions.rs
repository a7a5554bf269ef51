//! The admissions of a database, for display.
//!
//! Must never decide whether a session may write: they may have changed since they were read.

use super::database::Database;
use super::session::Epoch;
use super::store::StoreError;
use std::sync::Arc;
use std::time::SystemTime;

/// The most that are shown of a database.
const MOST: usize = 10_000;

/// A server process that may write to a resource, or might until it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The resource that the process may write.
    pub resource: String,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Its process id.
    pub pid: i32,
    /// When it started.
    pub backend_start: Option<SystemTime>,
    /// When it was admitted.
    pub admitted: Option<SystemTime>,
    /// The proxy that admitted it.
    pub proxy: String,
    /// Set if this proxy admitted the process.
    pub is_ours: bool,
    /// It has not ended. The rows of those that have are deleted before long.
    pub is_alive: bool,
}

/// The admissions of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admissions {
    /// By resource, epoch and process: the first 10,000.
    pub list: Vec<Admission>,
    /// The number of those beyond the first 10,000.
    pub left_out: usize,
}

impl Database {
    /// All admissions, through whichever proxy. Cancel-safe.
    pub async fn admissions(self: &Arc<Self>) -> Result<Admissions, StoreError> {
        self.store().admissions(MOST).await
    }
}
