//! The admissions of a database, for display.
//!
//! Must never decide whether a session may write, because the rows may have changed since they were read.

use super::database::Database;
use super::session::Epoch;
use super::store::StoreError;
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum number of admissions that are listed for a database.
const MOST: usize = 10_000;

/// A server process that may write to a resource, or might until it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The resource that the process may write.
    pub resource: String,
    /// The epoch of the admission.
    pub epoch: Epoch,
    /// The process id.
    pub pid: i32,
    /// When the process started.
    pub backend_start: Option<SystemTime>,
    /// When the process was admitted.
    pub admitted: Option<SystemTime>,
    /// The proxy that admitted it.
    pub proxy: String,
    /// Set if this proxy admitted the process.
    pub is_ours: bool,
    /// Set if the process has not ended. Rows of dead processes are deleted soon.
    pub is_alive: bool,
}

/// The admissions of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admissions {
    /// The first 10,000, sorted by resource, epoch and process.
    pub list: Vec<Admission>,
    /// Number of admissions beyond the first 10,000.
    pub left_out: usize,
}

impl Database {
    /// All admissions, granted by any proxy. Cancel-safe.
    pub async fn admissions(self: &Arc<Self>) -> Result<Admissions, StoreError> {
        self.store().admissions(MOST).await
    }
}
