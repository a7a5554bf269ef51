//! Admits a session's process to all resources that a message needs.
//!
//! Owns the order: one resource after the other. Must never say yes where one of them has said no.

use super::SharedDatabase;
use fencegate_fence::session::SessionFence;
use fencegate_fence::{Claim, FenceError, Raise};
use fencegate_session::judge::Need;
use std::sync::{Arc, Weak};

impl SharedDatabase {
    /// Admits the session's process to these, for as long as that is wanted, and says to which it has been. Not cancel-safe: an Admit that was begun runs
    /// to its end even when the session does not.
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
