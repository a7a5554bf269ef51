//! Data of the status page.
//!
//! Must never query the server, except through the cached condition of `/readyz`: the page shows this process's
//! knowledge.

use crate::operate::console::{OpenSession, Proxy};
use crate::operate::status::{AdvanceStatus, FenceStatus, MOST_ROWS, Status};
use crate::state::database::SharedDatabase;
use crate::state::health::Condition;
use crate::state::shared::Shared;
use fencegate_fence::session::Token;
use fencegate_fence::{Leaders, Leased, Rise, followed_leader};
use fencegate_policy::Resource;
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
            not_ready: ready.err().map(|error| error.to_string()),
            etcd,
            fences: self.all_fences(&databases),
            sessions,
            rejections: self.recent.list(),
            advances,
        }
    }

    /// Elections are followed from startup. Therefore a resource that no known database has, for example after a
    /// restart, is shown with its leader but without a database.
    fn all_fences(&self, databases: &[Arc<SharedDatabase>]) -> Vec<FenceStatus> {
        let mut fences: Vec<FenceStatus> = databases.iter().flat_map(|it| self.fences_of(it)).collect();
        if fences.is_empty() {
            let (policies, leaders) = (self.policies.borrow().clone(), self.leaders());
            let fence = |it: &Arc<Resource>| fence_status("", it, None, &leaders, &Leased::new());
            fences.extend(policies.resources.iter().map(fence));
        }
        fences
    }

    /// Like `SHOW FENCES`, but from memory and without keys.
    fn fences_of(&self, database: &SharedDatabase) -> Vec<FenceStatus> {
        let policies = self.policies.borrow().clone();
        if !policies.applies_to(database.fence.name()) || !database.has_fences() {
            return Vec::new();
        }
        let (leaders, leased) = (self.leaders(), database.fence.leased().borrow().clone());
        let tokens: HashMap<String, Token> = database.fence.known_tokens().into_iter().collect();
        let name = database.fence.name();
        let fence = |it: &Arc<Resource>| fence_status(name, it, tokens.get(&it.name).copied(), &leaders, &leased);
        policies.resources.iter().map(fence).collect()
    }
}

fn fence_status(
    database: &str,
    resource: &Resource,
    token: Option<Token>,
    leaders: &Leaders,
    leased: &Leased,
) -> FenceStatus {
    FenceStatus {
        database: database.to_owned(),
        resource: resource.name.clone(),
        mode: resource.mode.name(),
        issuer: resource.issuer_shown(),
        is_keyed: resource.keyed.is_some(),
        token,
        leader: followed_leader(resource, leaders, leased),
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
