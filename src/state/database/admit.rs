//! Admits a session's process to all resources that a message needs.
//!
//! Owns the order: one resource after the other. Must never report success if one of them was refused.

use super::SharedDatabase;
use fencegate_fence::session::SessionFence;
use fencegate_fence::{Claim, FenceError, Raise};
use fencegate_session::judge::Need;
use std::sync::{Arc, Weak};

impl SharedDatabase {
    /// Admits the session's process to these resources, as long as `wanted` exists, and calls `admitted` after each.
    /// Not cancel-safe: an Admit in progress completes even if the session ends.
    pub fn admit<F: Fn(&Need) + Send + Sync>(
        self: &Arc<Self>,
        needs: Vec<(Need, Claim)>,
        fence: &Arc<SessionFence>,
        wanted: Weak<()>,
        admitted: F,
    ) -> impl Future<Output = Result<(), FenceError>> + Send + use<F> {
        let (database, fence) = (self.clone(), fence.clone());
        async move {
            database.record_missed_policies().await;
            for (need, claim) in needs {
                if wanted.strong_count() == 0 {
                    break;
                }
                let Need { resource, token, may_raise, .. } = &need;
                if fence.admission(&resource.name).is_none_or(|epoch| epoch.token != *token) {
                    let raise = if *may_raise { Raise::WhoMay(&claim) } else { Raise::Never };
                    database.fence.admit_if(&fence, resource, *token, raise).await?;
                    admitted(&need);
                }
            }
            Ok(())
        }
    }
}
