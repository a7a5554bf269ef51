//! The store as one proxy uses it: its connection, and the operations.
//!
//! Owns the connection. Must never read or change the state of the database in more than one step per operation.

use super::shown::LOST_PROXY_COUNTS;
use super::{Admitted, Proxy, Row, Server, State, version};
use crate::session::{Epoch, Identity, Token};
use crate::store::{
    AdmissionRow, EpochRow, Found, Holder, Key, Listener, Marked, Recorded, Report, ResetReport, Store, StoreError,
};
use crate::{Admission, Blocker, Bounded, Enforcement, Fences, First, RequiredPrivilege, Role, StoredLease};
use async_trait::async_trait;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_policy::Resource;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// After a failed attempt to connect, a proxy does not retry for this time.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The database as one proxy uses it.
#[derive(Debug)]
struct InMemory {
    server: Arc<Server>,
    proxy: String,
    listener: Arc<dyn Listener>,
    connection: Mutex<Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    number: Option<u64>,
    closed_until: Option<Instant>,
    /// The database according to the last attempt to connect.
    found: Found,
    /// The failure of that attempt, and the end of the time in which all operations report it.
    failed: Option<(StoreError, Instant)>,
}

impl Server {
    /// The database as this proxy sees it. No connection is open yet.
    pub fn store(self: &Arc<Self>, proxy: &str, listener: Arc<dyn Listener>) -> Arc<dyn Store> {
        Arc::new(InMemory::new(self.clone(), proxy, listener))
    }
}

impl InMemory {
    fn new(server: Arc<Server>, proxy: &str, listener: Arc<dyn Listener>) -> Self {
        InMemory { server, proxy: proxy.to_owned(), listener, connection: Mutex::default() }
    }

    /// The state of the database. Opens a connection if necessary.
    fn connected(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut connection = self.connection();
        let mut state = self.server.state();
        if !connection.number.is_some_and(|number| state.listeners.contains_key(&number)) {
            if connection.closed_until.is_some_and(|until| Instant::now() < until) {
                return Err(StoreError::Vacated);
            }
            if let Some((error, _)) = connection.failed.as_ref().filter(|(_, until)| Instant::now() < *until) {
                return Err(error.clone());
            }
            connection.found = state.found;
            if let Some(error) = state.refusal() {
                connection.failed = Some((error.clone(), Instant::now() + BACK_OFF));
                return Err(error);
            }
            state.connections += 1;
            let number = state.connections;
            connection.number = Some(number);
            state.listeners.insert(number, self.listener.clone());
            state.connected.insert(number, self.proxy.clone());
            self.listener.listens(number);
        }
        state.tick();
        Ok(state)
    }

    /// The number of the connection.
    fn number(&self) -> Result<u64, StoreError> {
        drop(self.connected()?);
        Ok(self.connection().number.unwrap_or_default())
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for InMemory {
    async fn admit(
        &self,
        identity: &Identity,
        resource: &Resource,
        token: Token,
        loaded: i64,
    ) -> Result<Report, StoreError> {
        let mut state = self.connected()?;
        let unfenceable = state.unfenceable(identity);
        let Some(row) = state.epochs.get(&resource.name) else {
            return Ok(Report { unfenceable, current: None, admission: None });
        };
        let recorded = match row.policy == resource.fingerprint {
            true => Recorded::Same,
            false if row.loaded < loaded => Recorded::Older,
            false => Recorded::Others,
        };
        let (name, epoch) = (resource.name.clone(), row.epoch);
        let current = Some((EpochRow { resource: name.clone(), epoch, drained: row.drained }, recorded));
        let is_due = epoch.token == token && row.drained && recorded == Recorded::Same && unfenceable.is_none();
        let admission = is_due.then(|| {
            let is_it = |it: &&mut Admitted| {
                it.row.key() == (identity.pid, identity.backend_start.clone())
                    && it.row.resource == name
                    && it.row.epoch == epoch
            };
            let at = state.tick();
            if let Some(there) = state.admissions.iter_mut().find(is_it) {
                (there.at, there.row.version, there.is_copy) = (at, version(at), false);
                return (there.row.clone(), false);
            }
            (state.admission(&self.proxy, identity, name.clone(), epoch), true)
        });
        Ok(Report { unfenceable, current, admission })
    }

    async fn admit_current(
        &self,
        identity: &Identity,
        wanted: &[(&Resource, Token)],
    ) -> Result<Vec<(AdmissionRow, bool)>, StoreError> {
        let mut rows = Vec::new();
        for (resource, token) in wanted {
            // The load time matters only for policies that differ.
            rows.extend(self.admit(identity, resource, *token, 0).await?.admission);
        }
        Ok(rows)
    }

    async fn admit_first(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError> {
        Ok(self.connected()?.admit_first(&self.proxy, firsts))
    }

    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError> {
        self.server.others_come_first();
        Ok(self.connected()?.publish(resource, target, known, loaded))
    }

    async fn mark(&self, resource: &Resource, epoch: Epoch) -> Result<Marked, StoreError> {
        Ok(self.connected()?.mark(resource, epoch))
    }

    async fn reset(
        &self,
        resource: &Resource,
        known: Epoch,
        token: Token,
        _role: &str,
        force: bool,
    ) -> Result<ResetReport, StoreError> {
        self.server.others_come_first();
        Ok(self.connected()?.reset(&self.proxy, resource, known, token, force))
    }

    async fn holders(&self, resource: &str, bound: Epoch) -> Result<Vec<Holder>, StoreError> {
        let state = self.connected()?;
        let holder = |it: &Admitted| Holder {
            blocker: Blocker { holder: format!("process {}", it.row.pid), query: String::new() },
            row: it.row.clone(),
            proxy: it.proxy.clone(),
        };
        Ok(state.below(resource, bound).map(holder).collect())
    }

    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError> {
        Ok(self.connected()?.delete_dead(only))
    }

    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError> {
        self.connected()?.terminate(processes, resource, bound);
        Ok(())
    }

    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError> {
        Ok(self.connected()?.delete(rows))
    }

    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError> {
        Ok(self.connected()?.lockers(resource, pids))
    }

    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError> {
        Ok(self.connected()?.guarded_write(resource, pid))
    }

    async fn admissions_of(&self, identity: &Identity) -> Result<Vec<AdmissionRow>, StoreError> {
        let state = self.connected()?;
        let rows = state.admissions.iter().map(|it| it.row.clone());
        Ok(rows.filter(|row| row.key() == (identity.pid, identity.backend_start.clone())).collect())
    }

    async fn epochs(&self, resources: &[&str]) -> Result<Vec<EpochRow>, StoreError> {
        let state = self.connected()?;
        let rows = state.epochs.iter().filter(|(resource, _)| resources.contains(&resource.as_str()));
        let standing = |(resource, row): (&String, &Row)| EpochRow {
            resource: resource.clone(),
            epoch: row.epoch,
            drained: row.drained,
        };
        Ok(rows.map(standing).collect())
    }

    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError> {
        let state = self.connected()?;
        let mut above = BTreeMap::new();
        for it in state.admissions.iter().filter(|it| it.proxy == self.proxy && !it.is_copy) {
            let current = state.epochs.get(&it.row.resource).map(|row| row.epoch);
            above.extend(
                current.filter(|current| it.row.epoch < *current).map(|current| (it.row.resource.clone(), current)),
            );
        }
        Ok(above.into_iter().collect())
    }

    async fn leases(&self, elections: &[&str]) -> Result<Vec<StoredLease>, StoreError> {
        let state = self.connected()?;
        Ok(elections.iter().filter_map(|election| state.lease(election)).collect())
    }

    async fn all_leases(&self, most: usize) -> Result<Bounded<StoredLease>, StoreError> {
        Ok(self.connected()?.all_leases(most))
    }

    async fn now(&self) -> Result<i64, StoreError> {
        Ok(self.connected()?.clock)
    }

    async fn record_policy(&self, resource: &Resource, loaded: i64) -> Result<(), StoreError> {
        let mut state = self.connected()?;
        if resource.keyed.is_none() {
            state.record(&resource.name, &resource.fingerprint, loaded);
            return Ok(());
        }
        let is_due = |(name, row): &(&String, &Row)| resource.is_called(name) && row.policy != resource.fingerprint;
        let keys: Vec<String> = state.epochs.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        keys.iter().for_each(|key| state.record(key, &resource.fingerprint, loaded));
        Ok(())
    }

    async fn superseded(&self, resources: &[Arc<Resource>], loaded: i64) -> Result<Vec<String>, StoreError> {
        let state = self.connected()?;
        let is_later = |row: &Row| (loaded..=state.clock).contains(&row.loaded);
        let is_superseded = |it: &&Arc<Resource>| {
            state.epochs.get(&it.name).is_some_and(|row| row.policy != it.fingerprint && is_later(row))
        };
        Ok(resources.iter().filter(is_superseded).map(|it| it.name.clone()).collect())
    }

    async fn announce_enforced(&self, fingerprints: &[String]) -> Result<(), StoreError> {
        let connection = self.number()?;
        let mut state = self.connected()?;
        let (announced, enforced) = (state.clock, fingerprints.to_vec());
        let State { proxies, listeners, .. } = &mut *state;
        proxies.retain(|_, it| listeners.contains_key(&it.connection) || it.announced + LOST_PROXY_COUNTS >= announced);
        proxies.insert(self.proxy.clone(), Proxy { connection, enforced, announced });
        Ok(())
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.connected()?.proxies.remove(&self.proxy);
        Ok(())
    }

    async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
        Ok(self.connected()?.enforcement(resources))
    }

    async fn has_other_sessions(&self, own: &[Key]) -> Result<bool, StoreError> {
        let state = self.connected()?;
        Ok(state.processes.iter().any(|(pid, it)| !own.contains(&(*pid, it.start.clone()))))
    }

    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError> {
        let state = self.connected()?;
        let open =
            state.processes.iter().filter_map(|(pid, it)| Some(format!("{pid} {}", it.transaction.as_ref()?.number)));
        Ok(open.chain(state.prepared.keys().cloned()).collect())
    }

    async fn denied(
        &self,
        _resource: &Resource,
        privileges: &[RequiredPrivilege],
        role: &Role,
    ) -> Result<Option<String>, StoreError> {
        let (Role::Current(role) | Role::AnyOf(role)) = role;
        let is_forbidden = self.connected()?.forbidden.contains(role);
        let what = |privilege: &RequiredPrivilege| match privilege {
            RequiredPrivilege::Write(relation, _) => format!("table {}", relation.name),
            RequiredPrivilege::Call(function) => format!("function {}", function.name),
        };
        Ok(privileges.first().filter(|_| is_forbidden).map(what))
    }

    async fn admissions(&self, most: usize) -> Result<Bounded<Admission>, StoreError> {
        Ok(self.connected()?.admissions(&self.proxy, most))
    }

    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError> {
        Ok(self.connected()?.fences(resources, most_keys))
    }

    /// The simulated catalog has no paths between relations.
    async fn catalog(&self, _fences: Fenced<'_>, _temporary: Option<&str>) -> Result<Catalog, StoreError> {
        self.server.state().refusal().map_or_else(|| Ok(Catalog::default()), Err)
    }

    async fn dependencies(&self, _fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.server.state().refusal().map_or_else(|| Ok(Dependencies::default()), Err)
    }

    async fn announce_catalog(&self) -> Result<(), StoreError> {
        let own = self.number()?;
        let state = self.connected()?;
        let others = state.listeners.iter().filter(|(number, _)| **number != own);
        others.for_each(|(_, listener)| listener.catalog_changed());
        Ok(())
    }

    async fn notify_process(&self, _who: &Identity) -> Result<(), StoreError> {
        self.connected().map(drop)
    }

    async fn beat(&self) -> Result<f64, StoreError> {
        self.connected().map(|_| 0.0)
    }

    async fn table_locks(&self) -> Result<Vec<Blocker>, StoreError> {
        Ok(Vec::new())
    }

    async fn foreign_databases(&self, role: &Role, databases: &[String]) -> Result<HashSet<String>, StoreError> {
        let is_permitted = self.may_drop_database(role, false).await?;
        Ok(databases.iter().filter(|_| !is_permitted).cloned().collect())
    }

    async fn may_drop_database(&self, role: &Role, by_force: bool) -> Result<bool, StoreError> {
        let (Role::Current(role) | Role::AnyOf(role)) = role;
        let state = self.connected()?;
        let is_refused = state.forbidden.contains(role) || by_force && state.harmless.contains(role);
        Ok(!is_refused)
    }

    fn found(&self) -> Found {
        self.connection().found
    }

    fn proxy_connection(&self) -> u64 {
        let connection = self.connection();
        let state = self.server.state();
        connection.number.filter(|number| state.listeners.contains_key(number)).unwrap_or_default()
    }

    fn is_open(&self) -> bool {
        self.proxy_connection() != 0
    }

    fn keep_closed(&self, until: Option<Instant>) {
        self.connection().closed_until = until;
    }

    fn note_login(&self) {
        self.connection().failed.take_if(|(error, _)| matches!(error, StoreError::NoDatabase { .. }));
    }

    async fn forget_failure(&self) {
        self.connection().failed = None;
    }

    fn close_outdated(&self) {}

    async fn close(&self, _wait: bool) {
        if let Some(number) = self.connection().number.take() {
            self.server.state().lose_connections(|it| it == number);
        }
    }
}
