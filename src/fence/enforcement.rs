//! From when on a new fence holds: writes that were forwarded before it have no admission, so it
//! counts as enforced once their transactions have ended.
//!
//! Owns that wait. Must never end anybody's transaction: nobody was asked for a token then.

use super::control::{ControlError, column};
use super::database::Database;
use super::sql;
use crate::policy::Resource;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the transactions.
const PAUSE: Duration = Duration::from_millis(500);

impl Database {
    /// Waits until every transaction that holds a lock on the resource's relations now, as only
    /// writers do, has ended. Cancel safe.
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn enforced(self: &Arc<Self>, resource: &Resource) -> Result<(), String> {
        let writers = |error: ControlError| error.to_string();
        let mut open = self.writers(resource).await.map_err(writers)?;
        while !open.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let still = self.writers(resource).await.map_err(writers)?;
            open.retain(|transaction| still.contains(transaction));
        }
        Ok(())
    }

    async fn writers(self: &Arc<Self>, resource: &Resource) -> Result<HashSet<String>, ControlError> {
        let answers = self.look(&sql::writers(resource)).await?;
        let rows = answers.iter().flat_map(|answer| &answer.rows);
        Ok(rows.filter_map(|row| column(row, "transaction").map(str::to_owned)).collect())
    }
}
