//! Publish, where the guard has let transactions write that hold the resource's lock up to their end.
//!
//! Owns ending those transactions. Must never end who does not stand in the way of this very Publish.
//!
//! Not cancel-safe: the epoch may be raised, and processes may have been ended.

use super::advance::GRACE;
use super::control::{Answer, ControlError, column};
use super::database::Database;
use super::refusal::Refusal;
use super::sql;
use crate::policy::{FencedTable, Mode, OnMissing, Resource};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Between two looks at who stands in the way.
const PAUSE: Duration = Duration::from_millis(10);

/// What a trigger of the guard on the table is told, before the exempt roles: see `guard.sql`.
pub(crate) fn guard_arguments<'a>(resource: &'a Resource, table: &'a FencedTable) -> [&'a str; 5] {
    let mode = match resource.mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    };
    let on_missing = match resource.on_missing {
        OnMissing::Reject => "reject",
        OnMissing::Allow => "allow",
    };
    let names = resource.keyed.as_ref().map(|keyed| &keyed.names);
    let (before, after) = names.map_or((resource.name.as_str(), ""), |names| (names.before(), names.after()));
    [mode, on_missing, before, table.key.as_deref().unwrap_or_default(), after]
}

impl Database {
    /// Runs a statement that takes the resource's lock exclusively. Who holds that lock in a transaction gets the grace to
    /// end it, and is ended then.
    ///
    /// # Errors
    /// LF006, with the processes that did not end.
    pub(super) async fn publish_past_the_guarded(
        self: &Arc<Self>,
        resource: &Resource,
        query: &str,
    ) -> Result<Vec<Answer>, Refusal> {
        let mut publish = pin!(self.publish(query));
        let mut pause = GRACE;
        let mut in_the_way = Vec::new();
        loop {
            let error = match timeout(pause, publish.as_mut()).await {
                Ok(Ok(answers)) => return Ok(answers),
                Ok(Err(error)) => error,
                Err(_) => {
                    pause = PAUSE;
                    in_the_way = self.end_blockers(resource).await;
                    continue;
                }
            };
            return Err(match (error, in_the_way.is_empty()) {
                (ControlError::TimedOut, false) => {
                    let reason = format!(
                        "what was written without its table being named is held open: {}",
                        in_the_way.join("; ")
                    );
                    Refusal::unavailable(&resource.name, reason)
                }
                (error, _) => Refusal::unavailable(&resource.name, error),
            });
        }
    }

    /// Ends who stands in the way, and says who that is. A look that fails ends nobody; the next may not fail.
    async fn end_blockers(self: &Arc<Self>, resource: &Resource) -> Vec<String> {
        let Some(publishing) = self.publishing_process() else { return Vec::new() };
        let Ok(answers) = self.look(&sql::end_blockers(&resource.name, &publishing)).await else {
            return Vec::new();
        };
        let doing = |row| {
            let text = |name| column(row, name).unwrap_or_default();
            if let Some(gid) = column(row, "gid") {
                return format!("prepared transaction {gid}");
            }
            format!("process {}, waiting for {}, query: {}", text("pid"), text("waits"), text("query"))
        };
        answers.iter().flat_map(|answer| &answer.rows).map(doing).collect()
    }
}
