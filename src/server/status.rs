//! What the status page shows.
//!
//! Must never ask the server for it, save by the condition that `/readyz` has: it is what this process knows.

use crate::fence::session::Token;
use crate::fence::{Rise, followed_leader};
use crate::operate::console::{OpenSession, Proxy};
use crate::operate::status::{AdvanceStatus, FenceStatus, MOST_ROWS, Status};
use crate::policy::Resource;
use crate::state::database::SharedDatabase;
use crate::state::health::Condition;
use crate::state::shared::Shared;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

impl Shared {
    /// Cancel-safe.
    pub(super) async fn find_status(&self) -> Status {
        let Condition { ready, etcd, .. } = self.condition().await;
        let databases = self.shared_databases();
        let mut advances: Vec<AdvanceStatus> = databases.iter().flat_map(|it| advances(it)).collect();
        advances.sort_by_key(|it| Reverse(it.time));
        advances.truncate(MOST_ROWS);
        let mut sessions = Proxy::sessions(self);
        sessions.sort_by_key(|it: &OpenSession| (it.admitted.is_empty(), Reverse(it.number)));
        Status {
            now: SystemTime::now(),
            started: self.started,
            ready,
            etcd,
            fences: databases.iter().flat_map(|it| self.fences_of(it)).collect(),
            sessions,
            rejections: self.recent.list(),
            advances,
        }
    }

    /// As `SHOW FENCES`, but from memory, and without keys.
    fn fences_of(&self, database: &SharedDatabase) -> Vec<FenceStatus> {
        let policies = self.policies.borrow().clone();
        if !policies.applies_to(database.fence.name()) || !database.has_fences() {
            return Vec::new();
        }
        let (leaders, leased) = (self.leaders(), database.fence.leased().borrow().clone());
        let tokens: HashMap<String, Token> = database.fence.known_tokens().into_iter().collect();
        let fence = |it: &Arc<Resource>| FenceStatus {
            database: database.fence.name().to_owned(),
            resource: it.name.clone(),
            mode: it.mode.name(),
            issuer: it.issuer_shown(),
            is_keyed: it.keyed.is_some(),
            token: tokens.get(&it.name).copied(),
            leader: followed_leader(it, &leaders, &leased),
        };
        policies.resources.iter().map(fence).collect()
    }
}

fn advances(database: &SharedDatabase) -> Vec<AdvanceStatus> {
    let rises = database.fence.rises().into_iter();
    let advance = |it: Rise| AdvanceStatus {
        time: it.time,
        database: database.fence.name().to_owned(),
        resource: it.resource,
        epochs: (it.before, it.after),
    };
    rises.map(advance).collect()
}
