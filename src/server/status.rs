//! Data of the status page.
//!
//! Must never query the server, except through the cached condition of `/readyz`: the page shows this process's
//! knowledge.

use crate::operate::console::{OpenSession, Proxy};
use crate::operate::status::{AdvanceStatus, FenceStatus, MOST_ROWS, Status};
use crate::picture::{Event, Kind, micros};
use crate::state::database::SharedDatabase;
use crate::state::health::{Condition, NotReady};
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
        let Condition { ready, upstream, etcd } = self.condition().await;
        let databases = self.shared_databases();
        let mut attention = self.attention(&databases, &ready);
        // The reason why the proxy is not ready may be another one.
        if !upstream && !matches!(ready, Err(NotReady::Upstream { .. })) {
            attention.push(format!("the server at {} does not accept connections", self.settings().upstream));
        }
        let mut events = self.history.list();
        events.extend(databases.iter().flat_map(|it| fence_events(it)));
        let mut advances: Vec<AdvanceStatus> = databases.iter().flat_map(|it| advances(it)).collect();
        advances.sort_by_key(|it| Reverse(it.time));
        advances.truncate(MOST_ROWS);
        let mut sessions = Proxy::sessions(self);
        sessions.sort_by_key(|it: &OpenSession| (it.admitted.is_empty(), Reverse(it.number)));
        Status {
            now: SystemTime::now(),
            started: self.started,
            not_ready: ready.err().map(|error| error.to_string()),
            attention,
            etcd,
            events,
            fences: self.all_fences(&databases),
            sessions,
            rejections: self.recent.list(),
            advances,
        }
    }

    /// Conditions for an operator to look at, besides the reason why the proxy is not ready.
    fn attention(&self, databases: &[Arc<SharedDatabase>], ready: &Result<(), NotReady>) -> Vec<String> {
        let mut attention = self.unresolved_tables();
        for database in databases {
            let name = database.fence.name();
            let is_reason = |it: &String| matches!(ready, Err(NotReady::Superseded { database, resource }) if database == name && resource == it);
            let superseded = database.fence.superseded().into_iter().filter(|it| !is_reason(it));
            attention.extend(superseded.map(|resource| {
                format!(
                    "database {name}: another proxy has since loaded different policies of {resource}: reload this proxy"
                )
            }));
        }
        let paused = self.orders.borrow().paused.clone();
        attention.extend(paused.iter().map(|database| format!("database {database} is paused, until RESUME")));
        attention
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

/// The fence of each resource: how it rose, or the highest token if it has not risen.
fn fence_events(database: &SharedDatabase) -> Vec<Event> {
    let rises = database.fence.rises();
    let of = |kind, at, resource: &str, token| Event {
        database: Some(database.fence.name().to_owned()),
        resource: Some(resource.to_owned()),
        token: Some(token),
        ..Event::new(kind, at)
    };
    let mut events = Vec::new();
    for (resource, token) in database.fence.known_tokens() {
        let first = rises.iter().find(|it| it.resource == resource);
        let before = first.map_or(Some(token), |it| it.before.map(|it| it.token));
        events.extend(before.map(|token| of(Kind::FenceAdvanced, 0, &resource, token)));
    }
    for rise in &rises {
        let is_reset = rise.before.is_some_and(|it| it.generation < rise.after.generation);
        let kind = if is_reset { Kind::FenceReset } else { Kind::FenceAdvanced };
        events.push(of(kind, micros(rise.time), &rise.resource, rise.after.token));
    }
    events
}
