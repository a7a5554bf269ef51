//! The admissions of a database, for display.
//!
//! Must never decide whether a session may write, because the rows may have changed since they were read.

use super::database::Database;
use super::store::{Admissions, StoreError};
use std::sync::Arc;

/// Maximum number of admissions that are listed for a database.
const MOST: usize = 10_000;

impl Database {
    /// All admissions, granted by any proxy. Cancel-safe.
    pub async fn admissions(self: &Arc<Self>) -> Result<Admissions, StoreError> {
        self.store().admissions(MOST).await
    }
}
