//! Getting a session's process admitted to all that a message of it needs.
//!
//! Owns the order: one resource after the other. Must never say yes where one of them has said no.

use super::SharedDatabase;
use crate::fence::session::SessionFence;
use crate::fence::{Claim, Refusal};
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
                let is_admitted = fence.admission(&resource.name).is_some_and(|epoch| epoch.token == token);
                match may_raise {
                    _ if is_admitted => {}
                    true => database.fence.admit_who_may(&fence, &resource, token, &claim).await?,
                    false => database.fence.admit_in_force(&fence, &resource, token).await?,
                }
            }
            Ok(())
        }
    }
}
