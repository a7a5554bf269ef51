//! The operations of the store, each executed in one step on the state of the database.

use super::shown::LOST_PROXY_COUNTS;
use super::{Admitted, Proxy, Row, Server, State, version};
use crate::session::{Epoch, Identity, Token};
use crate::store::{
    AdmissionRow, EpochRow, Found, Holder, Key, Listener, Marked, Recorded, Report, ResetReport, Store, StoreError,
};
use crate::{Admission, Blocker, Bounded, Enforcement, Fences, First, Higher, RequiredPrivilege, Role, StoredLease};
use async_trait::async_trait;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_policy::{QualifiedName, Resource};
use std::collections::{BTreeMap, BTreeSet, HashSet};
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

    /// Records an admission.
    fn admission(&self, state: &mut State, identity: &Identity, resource: String, epoch: Epoch) -> AdmissionRow {
        let (at, pid, backend_start) = (state.tick(), identity.pid, identity.backend_start.clone());
        let row = AdmissionRow { pid, backend_start, resource, epoch, version: version(at), ending: false };
        state.admissions.push(Admitted { row: row.clone(), proxy: self.proxy.clone(), at, is_copy: false });
        row
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
            (self.admission(&mut state, identity, name.clone(), epoch), true)
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
        let mut state = self.connected()?;
        let mut rows = Vec::new();
        for First { identity, resource, token, loaded } in firsts {
            let (name, policy) = (resource.name.clone(), resource.fingerprint.clone());
            let is_vacant = !state.epochs.contains_key(&name)
                && state.prepared.is_empty()
                && state.admissions.iter().all(|it| it.row.resource != name);
            let is_issued = resource.lease().is_none_or(|lease| state.has_issued(lease, *token));
            if is_vacant && is_issued && state.unfenceable(identity).is_none() {
                let (epoch, updated) = (Epoch { generation: 1, token: *token }, state.tick());
                state.epochs.insert(name.clone(), Row { epoch, drained: true, policy, loaded: *loaded, updated });
                rows.push(self.admission(&mut state, identity, name, epoch));
            }
        }
        Ok(rows)
    }

    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError> {
        self.server.others_come_first();
        let mut state = self.connected()?;
        let (updated, name) = (state.tick(), resource.name.clone());
        let policy = resource.fingerprint.clone();
        let is_issued = resource.lease().is_none_or(|lease| state.has_issued(lease, target.token));
        let admitted = state.admissions.iter().filter(|it| it.row.resource == name).map(|it| it.row.epoch.generation);
        let generation = 1 + admitted.max().unwrap_or_default();
        match state.epochs.get_mut(&name) {
            _ if !is_issued => {}
            None if known.is_none() => {
                let epoch = Epoch { generation, ..target };
                state.epochs.insert(name, Row { epoch, drained: false, policy, loaded, updated });
            }
            None => {}
            Some(row) => {
                let lowest = known.map_or(0, |known| known.token);
                let is_raised = row.epoch.generation == target.generation && row.epoch.token < target.token;
                if is_raised && row.epoch.token >= lowest && row.policy == policy {
                    (row.epoch, row.drained, row.updated) = (target, false, updated);
                }
            }
        }
        state.announce(&resource.name);
        Ok(state.epochs.get(&resource.name).map(|row| row.epoch))
    }

    async fn mark(&self, resource: &Resource, epoch: Epoch) -> Result<Marked, StoreError> {
        let mut state = self.connected()?;
        let tables: HashSet<&QualifiedName> = resource.tables.iter().map(|table| &table.name).collect();
        let blocking = state.prepared.iter().filter(|(_, (_, it))| it.written.iter().any(|it| tables.contains(it)));
        let gids: Vec<String> = blocking.map(|(gid, _)| gid.clone()).collect();
        let is_free = gids.is_empty() && state.living_below(&resource.name, epoch).next().is_none();
        let updated = state.tick();
        let row = state.epochs.get_mut(&resource.name);
        let is_it = |row: &&mut Row| row.epoch == epoch && !row.drained && row.policy == resource.fingerprint;
        Ok(match row.filter(is_it).filter(|_| is_free) {
            Some(row) => {
                (row.drained, row.updated) = (true, updated);
                Marked::Drained
            }
            None if gids.is_empty() => Marked::Nothing,
            None => Marked::Prepared(gids),
        })
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
        let mut state = self.connected()?;
        let lives =
            |it: &&Admitted| it.row.resource == resource.name && it.row.epoch.token > token && state.is_alive(it);
        let higher = state.admissions.iter().filter(lives);
        let higher: BTreeSet<_> = higher.map(|it| (-it.row.epoch.token, it.row.pid, it.proxy.clone())).collect();
        let is_ours = |proxy: &str| proxy == self.proxy;
        let higher: Vec<Higher> =
            higher.iter().map(|(token, pid, it)| Higher { pid: *pid, token: -token, is_ours: is_ours(it) }).collect();
        let updated = state.tick();
        let Some(row) = state.epochs.get_mut(&resource.name) else {
            state.announce(&resource.name);
            return Ok(ResetReport { before: None, same_policy: false, higher, after: None });
        };
        let (before, same_policy) = (row.epoch, row.policy == resource.fingerprint);
        let after = (same_policy && before == known && (force || higher.is_empty())).then(|| {
            let epoch = Epoch { generation: before.generation + 1, token };
            (row.epoch, row.drained, row.updated) = (epoch, false, updated);
            epoch
        });
        state.announce(&resource.name);
        Ok(ResetReport { before: Some(before), same_policy, higher, after })
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
        let mut state = self.connected()?;
        let is_asked = |row: &AdmissionRow| only.is_none_or(|(name, bound)| row.resource == name && row.epoch < bound);
        let is_due = |it: &Admitted| is_asked(&it.row) && !state.is_alive(it);
        let dead: HashSet<u32> = state.admissions.iter().filter(|it| is_due(it)).map(|it| it.row.version).collect();
        let deleted = state.admissions.extract_if(.., |it| dead.contains(&it.row.version));
        Ok(deleted.map(|it| (it.row.key(), it.row.epoch.token)).collect())
    }

    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError> {
        let mut state = self.connected()?;
        if state.epochs.get(resource).is_none_or(|row| row.epoch < bound) {
            return Ok(());
        }
        let due = state.living_below(resource, bound).filter(|row| processes.contains(&row.key()));
        let due: HashSet<u32> = due.map(|row| row.version).collect();
        let (mut version, mut ended) = (state.tick(), Vec::new());
        for it in state.admissions.iter_mut().filter(|it| due.contains(&it.row.version)) {
            version += 1;
            (it.row.ending, it.row.version) = (true, u32::try_from(version & 0xffff_ffff).unwrap());
            ended.push(it.row.pid);
        }
        state.clock = version;
        if !state.ends_late {
            ended.iter().for_each(|pid| drop(state.processes.remove(pid)));
        }
        Ok(())
    }

    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError> {
        let mut state = self.connected()?;
        let mut deleted = Vec::new();
        for (row, family) in rows {
            let open = state.processes.get(&row.pid).and_then(|process| process.transaction.as_ref());
            let prepared = state.prepared.values().filter(|(pid, _)| *pid == row.pid).map(|(_, it)| it);
            if prepared.chain(open).any(|transaction| transaction.guarded.contains(*family)) {
                continue;
            }
            let is_it =
                |it: &Admitted| AdmissionRow { ending: row.ending, ..it.row.clone() } == **row && !it.row.ending;
            if let Some(place) = state.admissions.iter().position(is_it) {
                deleted.push(state.admissions.remove(place).row);
            }
        }
        Ok(deleted)
    }

    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError> {
        let state = self.connected()?;
        let locks = |pid: &&i32| {
            let transaction = state.processes.get(*pid).and_then(|process| process.transaction.as_ref());
            transaction.is_some_and(|it| {
                let is_locked = resource.tables.iter().any(|table| it.locked.contains(&table.name));
                is_locked || !resource.functions.is_empty() && !it.written.is_empty()
            })
        };
        Ok(pids.iter().filter(locks).copied().collect())
    }

    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError> {
        let state = self.connected()?;
        let Some(process) = state.processes.get(&pid) else { return Ok(None) };
        let passed = process.transaction.as_ref().is_some_and(|it| it.guarded.contains(resource.lock_name()));
        let mut admissions = state.admissions.iter().filter(|it| it.row.pid == pid && state.is_alive(it));
        let is_admitted = admissions.any(|it| it.row.resource == resource.name);
        Ok(state.epochs.get(&resource.name).filter(|_| passed && is_admitted).map(|row| row.epoch))
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
