//! The proxy as the console's commands see it: what they show, and what they may change.
//!
//! Must never answer a client, or check whether it may use the console: [`super`] does.

use crate::config::{SettingChange, Settings};
use crate::metrics::WriteCount;
use crate::operate::console::{OpenSession, Proxy, Rejected, ReloadedItem, ServerRow};
use crate::server::reload::{self, Reloaded};
use crate::state::server_table::{ServerRole, ServerState};
use crate::state::sessions::SessionRecord;
use crate::state::shared::Shared;
use async_trait::async_trait;
use fencegate_fence::store::StoreError;
use fencegate_fence::{Database, Leaders, Need};
use fencegate_policy::{PolicyChange, PolicySet};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// Time limit for listing the server's databases.
const LISTING_LIMIT: Duration = Duration::from_secs(5);

#[async_trait]
impl Proxy for Shared {
    fn settings(&self) -> Arc<Settings> {
        self.settings()
    }

    fn policies(&self) -> Arc<PolicySet> {
        self.policies.borrow().clone()
    }

    fn leaders(&self) -> Leaders {
        self.leaders()
    }

    fn databases(&self) -> Vec<Arc<Database>> {
        self.shared_databases().iter().map(|database| database.fence.clone()).collect()
    }

    async fn database(&self, name: &str) -> Option<Arc<Database>> {
        Some(self.find_shared_database(name).await?.fence.clone())
    }

    async fn prepared_databases(&self) -> Result<Vec<String>, StoreError> {
        let named = self.policies.borrow().databases.clone();
        let control = self.control_for(self.settings().control_database());
        let all = match named {
            Some(named) => named,
            None => {
                let listed = timeout(LISTING_LIMIT, fencegate_fence::databases(&control)).await;
                listed.unwrap_or(Err(StoreError::TimedOut(LISTING_LIMIT)))?
            }
        };
        let mut prepared = Vec::new();
        for name in all {
            if self.can_control(&name, Need::Schema).await.is_ok() {
                prepared.push(name);
            }
        }
        Ok(prepared)
    }

    fn sessions(&self) -> Vec<OpenSession> {
        self.sessions.list().iter().map(|session| open_session(session)).collect()
    }

    async fn servers(&self) -> Vec<ServerRow> {
        let is_up = if self.servers.is_probed() { None } else { Some(self.condition().await.upstream) };
        let sessions = self.sessions.list();
        // Only probers keep reports up to date.
        let report = |it: &ServerState| it.report.clone().filter(|_| is_up.is_none());
        let of = |it: &ServerState| ServerRow {
            host: it.address.to_string(),
            is_up: is_up.unwrap_or(it.role != ServerRole::Unknown),
            role: is_up.is_none().then(|| it.role.name()),
            timeline: report(it).map(|report| report.timeline.into()),
            system_identifier: report(it).map(|report| report.system_identifier.clone()),
            seen: report(it).and(it.seen),
            sessions: u64::try_from(sessions.iter().filter(|session| session.server == it.address).count())
                .unwrap_or(u64::MAX),
            error: it.failure.as_ref().map(ToString::to_string),
        };
        self.servers.table().hosts().iter().map(of).collect()
    }

    fn kill(&self, session: u64) -> bool {
        let session = self.sessions.with_number(session);
        session.is_some_and(|session| {
            session.kill.cancel();
            true
        })
    }

    async fn pause(&self, database: &str) -> bool {
        self.set_paused(database, true);
        let mut orders = self.orders.subscribe();
        tokio::select! {
            biased;
            // This process owns the sender, so the channel stays open.
            _ = orders.wait_for(|orders| !orders.paused.contains(database)) => false,
            () = self.sessions.all_held(database) => true,
        }
    }

    fn resume(&self, database: &str) -> bool {
        self.set_paused(database, false)
    }

    fn paused(&self) -> Arc<BTreeSet<String>> {
        self.orders.borrow().paused.clone()
    }

    fn rejections(&self) -> Vec<Arc<Rejected>> {
        self.recent.list()
    }

    fn writes(&self) -> Vec<WriteCount> {
        self.metrics.writes()
    }

    fn started(&self) -> SystemTime {
        self.started
    }

    /// Not cancel-safe: some databases may have the new policies and others not.
    async fn reload(&self) -> Result<Vec<ReloadedItem>, Vec<String>> {
        match reload::reload(self).await {
            Ok(reloaded) => Ok(changes(reloaded)),
            Err(error) => Err(error.faults.iter().map(ToString::to_string).collect()),
        }
    }
}

fn open_session(session: &SessionRecord) -> OpenSession {
    let (activity, since) = session.fence.activity_since();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    OpenSession {
        number: session.number,
        database: session.database.clone(),
        user: session.user.clone(),
        address: session.address.clone(),
        application_name: session.application_name(),
        pid: session.pid,
        started: session.started,
        state: (activity, SystemTime::now().checked_sub(since.elapsed()).unwrap_or(session.started)),
        is_held: session.is_held(),
        presented: session.presented(),
        admitted: session.fence.admissions(),
        queries: count(&session.passed.queries),
        received: count(&session.passed.received),
        sent: count(&session.passed.sent),
    }
}

fn changes(reloaded: Reloaded) -> Vec<ReloadedItem> {
    let setting = |it: SettingChange| ReloadedItem {
        what: "setting",
        name: it.key.to_owned(),
        change: "value".to_owned(),
        before: Some(it.before).filter(|text| !text.is_empty()),
        after: Some(it.after).filter(|text| !text.is_empty()),
        in_force: it.applied,
    };
    let certificate = |name: String| ReloadedItem {
        what: "certificate",
        name,
        change: "content".to_owned(),
        before: None,
        after: None,
        in_force: true,
    };
    let policy = |it: PolicyChange| ReloadedItem {
        what: "policy",
        name: it.resource.unwrap_or_default(),
        change: it.what,
        before: it.before,
        after: it.after,
        in_force: true,
    };
    let settings = reloaded.settings.into_iter().map(setting);
    let certificates = reloaded.certificates.into_iter().map(certificate);
    settings.chain(certificates).chain(reloaded.policies.into_iter().map(policy)).collect()
}
