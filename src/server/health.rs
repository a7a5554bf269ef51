//! Readiness of the proxy, the state that a scrape of its metrics reads, and the data of the status page.
//!
//! Must never keep a connection to the server, or query it more than once per second, however often clients send requests. The
//! status page shows this process's knowledge.

use crate::metrics::Now;
use crate::metrics::http::{Pages, StatusPage};
use crate::net::{refused, upstream};
use crate::operate::console::{OpenSession, Proxy};
use crate::operate::status::{self, AdvanceStatus, FenceStatus, MOST_ROWS, Status};
use crate::picture::{Event, Kind, micros};
use crate::state::database::SharedDatabase;
use crate::state::health::{Condition, NotReady};
use crate::state::server_table::ServerState;
use crate::state::shared::Shared;
use fencegate_fence::session::Token;
use fencegate_fence::store::StoreError;
use fencegate_fence::{EpochChange, Leaders, Leased, Need, followed_leader, probe};
use fencegate_policy::{PolicySet, Resource};
use fencegate_postgres::tls::ControlConfig;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until, timeout};

/// A server that does not answer within this time counts as unavailable.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// A result is reused for this long.
const FRESH: Duration = Duration::from_secs(1);

impl Pages for Shared {
    const PATHS: &'static [&'static str] = &["/", "/metrics", "/healthz", "/readyz"];

    type NotReady = NotReady;

    async fn metrics(&self) -> String {
        let Condition { ready, upstream, etcd } = self.condition().await;
        let leaders = self.leaders();
        let mut now = Now { sessions: self.sessions.count(), ready: ready.is_ok(), upstream, etcd, ..Now::default() };
        for database in self.shared_databases() {
            let name = database.fence.name().to_owned();
            let tokens = database.fence.known_tokens();
            // The queue is the server's, so any database's reading counts.
            now.queue_usage = now.queue_usage.into_iter().chain(database.fence.queue_usage()).reduce(f64::max);
            let leased = database.fence.leased().borrow().clone();
            let policies = self.policies.borrow().clone();
            let gone_back = gone_back(&policies, &leaders, &leased, &tokens);
            for resource in &policies.resources {
                if let (Some(lease), Some(token)) = (resource.lease(), leased.get(&resource.name)) {
                    now.leases.push((name.clone(), lease.to_owned(), token.unwrap_or_default()));
                }
            }
            now.gone_back.extend(gone_back.into_iter().map(|(resource, is)| (name.clone(), resource, is)));
            now.tokens.extend(tokens.into_iter().map(|(resource, token)| (name.clone(), resource, token)));
            if database.fence.was_prepared() {
                now.superseded.push((name, !database.fence.superseded().is_empty()));
            }
        }
        if self.servers.is_probed() {
            let of_host = |it: &ServerState| {
                (it.address.to_string(), it.role.number(), it.report.as_ref().map(|report| report.timeline))
            };
            now.servers = self.servers.table().hosts().iter().map(of_host).collect();
        }
        now.policy_tables = self.counted_tables();
        let known = leaders.iter().map(|(election, token)| (election.to_string(), token.unwrap_or_default()));
        now.elections = known.collect();
        self.metrics.text(now)
    }

    /// Policies are loaded before the first request. A missing table does not prevent readiness: it may not exist yet.
    async fn ready(&self) -> Result<Vec<String>, NotReady> {
        self.condition().await.ready.map(|()| self.unresolved_tables())
    }

    async fn status(&self) -> Option<StatusPage> {
        let mut made = self.health.status.lock().await;
        let html = match made.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            Some((_, html)) => html.clone(),
            None => {
                let html = status::page(&self.find_status().await);
                made.insert((Instant::now(), html)).1.clone()
            }
        };
        Some(StatusPage { html, policy: status::CONTENT_SECURITY_POLICY })
    }
}

impl Shared {
    /// Logs if the server or the control connection cannot be used. Otherwise, this would first be noticed by a client.
    /// Cancel-safe.
    pub(super) async fn check_servers(self: Arc<Self>) {
        if let Err(error) = self.can_relay().await {
            tracing::error!(upstream = %self.settings().upstream, error = refused::message(&error), "upstream_unreachable");
        }
        let settings = self.settings();
        let database = settings.control_database();
        if let Err(error) = self.can_control(database, Need::Server).await {
            tracing::warn!(database, %error, "control_unusable");
        }
    }

    /// Cancel-safe.
    pub(super) async fn condition(&self) -> Condition {
        let mut found = self.health.found.lock().await;
        let is_fresh = found.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        let mut condition = match found.condition.take().filter(|_| is_fresh) {
            Some(condition) => condition,
            None => {
                if let Some(asked) = found.asked {
                    // A previous check may have been canceled less than a second ago.
                    sleep_until(asked + FRESH).await;
                }
                found.asked = Some(Instant::now());
                self.find_condition().await
            }
        };
        found.condition = Some(condition.clone());
        if self.health.is_stopping() {
            condition.ready = Err(NotReady::Stopping);
        }
        condition
    }

    async fn find_condition(&self) -> Condition {
        let is_etcd_up = async { timeout(PROBE_LIMIT, self.authority.is_up()).await.unwrap_or(Some(false)) };
        let (fences, relays, etcd) = tokio::join!(self.can_fence(), self.can_relay(), is_etcd_up);
        let control_refused = {
            let table = self.servers.table();
            table.refuses_control().then(|| NotReady::ControlRefused(table.summary(true)))
        };
        let relays = relays.map_err(|error| {
            let (address, reason) = (self.settings().upstream.to_string(), refused::message(&error));
            NotReady::Upstream { address, reason }
        });
        let upstream = relays.is_ok();
        // If there are several servers, their states also explain why a control connection fails.
        let ready = match control_refused {
            Some(refused) => Err(refused),
            None if self.servers.is_probed() => relays.and(fences),
            None => fences.and(relays),
        };
        Condition { upstream, ready, etcd }
    }

    /// Checks that the server accepts session connections.
    async fn can_relay(&self) -> io::Result<()> {
        let no_answer = |_| Err(io::ErrorKind::TimedOut.into());
        timeout(PROBE_LIMIT, upstream::reach(self)).await.unwrap_or_else(no_answer).map(drop)
    }

    /// Checks that new tokens can be admitted, as far as the control connections go: in any database, and in those that
    /// are in use. A database counts if the policies name it or it has had the schema, because any role that may create
    /// databases can create one with a table of a fenced name. Other databases are reported by `policies_not_recorded`.
    async fn can_fence(&self) -> Result<(), NotReady> {
        self.can_control(self.settings().control_database(), Need::Server).await.map_err(NotReady::Control)?;
        let are_named = self.policies.borrow().databases.is_some();
        for database in self.shared_databases() {
            let counts = are_named || database.fence.was_prepared();
            if counts && database.fence.has_sessions() && database.has_fences() {
                self.can_control(database.fence.name(), Need::Tables).await.map_err(NotReady::Control)?;
            }
            in_force(&database).await?;
        }
        Ok(())
    }

    /// Checks that a control connection to the database can be opened and provides `need`. Cancel-safe.
    ///
    /// # Errors
    /// The connection cannot be used.
    pub(super) async fn can_control(&self, database: &str, need: Need) -> Result<(), StoreError> {
        self.can_use(&self.control_for(database), need).await
    }

    /// Checks that a control connection can be opened and provides `need`. Cancel-safe.
    ///
    /// # Errors
    /// The connection cannot be used.
    pub(super) async fn can_use(&self, control: &ControlConfig, need: Need) -> Result<(), StoreError> {
        timeout(PROBE_LIMIT, probe(control, need)).await.unwrap_or(Err(StoreError::TimedOut(PROBE_LIMIT)))
    }
}

/// The resources whose election or lease has a leader, and whether the leader's token is below the fence's.
fn gone_back(
    policies: &PolicySet,
    leaders: &Leaders,
    leased: &Leased,
    tokens: &[(String, Token)],
) -> Vec<(String, bool)> {
    let tokens: HashMap<&str, Token> = tokens.iter().map(|(resource, token)| (resource.as_str(), *token)).collect();
    let of_leader = |it: &Arc<Resource>| {
        let leader = followed_leader(it, leaders, leased)??;
        Some((it.name.clone(), tokens.get(it.name.as_str()).is_some_and(|token| leader < *token)))
    };
    policies.resources.iter().filter_map(of_leader).collect()
}

/// Checks that no other proxy has recorded newer policies. Without sessions, no other code checks this. Cancel-safe.
async fn in_force(database: &SharedDatabase) -> Result<(), NotReady> {
    let fence = &database.fence;
    if !fence.superseded().is_empty() && !fence.has_sessions() {
        fence.check_policies().await;
    }
    match fence.superseded().into_iter().next() {
        None => Ok(()),
        Some(resource) => Err(NotReady::Superseded { database: fence.name().to_owned(), resource }),
    }
}

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
    let changes = database.fence.epoch_changes().into_iter();
    let advance = |it: EpochChange| AdvanceStatus {
        time: it.time,
        database: database.fence.name().to_owned(),
        resource: it.resource,
        epochs: (it.before, it.after),
    };
    changes.map(advance).collect()
}

/// The fence of each resource: its epoch changes, or the highest token if there are none.
fn fence_events(database: &SharedDatabase) -> Vec<Event> {
    let changes = database.fence.epoch_changes();
    let of = |kind, at, resource: &str, token| Event {
        database: Some(database.fence.name().to_owned()),
        resource: Some(resource.to_owned()),
        token: Some(token),
        ..Event::new(kind, at)
    };
    let mut events = Vec::new();
    for (resource, token) in database.fence.known_tokens() {
        let first = changes.iter().find(|it| it.resource == resource);
        let before = first.map_or(Some(token), |it| it.before.map(|it| it.token));
        events.extend(before.map(|token| of(Kind::FenceAdvanced, 0, &resource, token)));
    }
    for change in &changes {
        let is_reset = change.before.is_some_and(|it| it.generation < change.after.generation);
        let kind = if is_reset { Kind::FenceReset } else { Kind::FenceAdvanced };
        events.push(of(kind, micros(change.time), &change.resource, change.after.token));
    }
    events
}
