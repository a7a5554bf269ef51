//! Admits a session's process to all resources that a message needs.
//!
//! Owns the order: one resource after the other. Must never say yes where one of them has said no.

use super::SharedDatabase;
use crate::fence::session::SessionFence;
use crate::fence::{Claim, Raise, Refusal};
use crate::session::judge::Need;
use std::sync::{Arc, Weak};

impl SharedDatabase {
    /// Admits the session's process to these, for as long as that is wanted. Not cancel-safe: an Admit that was begun runs
    /// to its end even when the session does not.
    pub fn admit(
        self: &Arc<Self>,
        needs: Vec<(Need, Claim)>,
        fence: &Arc<SessionFence>,
        wanted: Weak<()>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send + use<> {
        let (database, fence) = (self.clone(), fence.clone());
        async move {
            database.record_missed_policies().await;
            for (Need { resource, token, may_raise, .. }, claim) in needs {
                if wanted.strong_count() == 0 {
                    break;
                }
                if fence.admission(&resource.name).is_none_or(|epoch| epoch.token != token) {
                    let raise = if may_raise { Raise::WhoMay(&claim) } else { Raise::Never };
                    database.fence.admit_if(&fence, &resource, token, raise).await?;
                }
            }
            Ok(())
        }
    }
}
