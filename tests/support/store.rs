//! The fence's store in memory: one database that several proxies share, with server processes that one can begin, let
//! write, and end.
//!
//! Must answer as PostgreSQL does; `fence::store` runs the same operations on both. Needs no runtime: each operation is done
//! when it is first polled. Knows no strangers who hold locks of resources, and no privileges but [`Server::forbid`].

use async_trait::async_trait;
use fencegate::catalogue::{Catalogue, Dependencies, Fenced};
use fencegate::fence::session::{Epoch, Identity, Token};
use fencegate::fence::store::{
    Found, Granted, Holder, Key, Listener, Marked, Recorded, Report, ResetReport, Standing, Store, StoreError,
};
use fencegate::fence::{
    Admission, Admissions, Deed, Enforcement, Fence, Fences, Higher, Hindrance, Obstacle, Reach, Remedy, Role,
};
use fencegate::policy::{QualifiedName, Resource};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// As long as a lost proxy counts, in microseconds.
const LOST_PROXY_COUNTS: i64 = 600_000_000;

/// One database of one server.
#[derive(Debug)]
pub struct Server(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Microseconds since 1970. Goes on by one whenever something is changed, and by [`Server::pass`].
    clock: i64,
    system_identifier: String,
    postmaster_start: String,
    tables: HashSet<QualifiedName>,
    epochs: BTreeMap<String, Row>,
    admissions: Vec<Admitted>,
    processes: BTreeMap<i32, Process>,
    /// With the process that each was of.
    prepared: BTreeMap<String, (i32, Transaction)>,
    proxies: BTreeMap<String, Proxy>,
    connections: u64,
    listeners: BTreeMap<u64, Arc<dyn Listener>>,
    forbidden: HashSet<String>,
}

/// Of the table of epochs.
#[derive(Debug)]
struct Row {
    epoch: Epoch,
    drained: bool,
    policy: String,
    loaded: i64,
    updated: i64,
}

/// Of the table of admissions.
#[derive(Debug)]
struct Admitted {
    row: Granted,
    proxy: String,
    at: i64,
}

#[derive(Debug)]
struct Process {
    start: String,
    transaction: Option<Transaction>,
}

#[derive(Debug, Default)]
struct Transaction {
    number: u64,
    /// Of which it has locked rows, or written some.
    locked: HashSet<QualifiedName>,
    written: HashSet<QualifiedName>,
    /// The families of whose resources the guard let a write pass.
    guarded: HashSet<String>,
}

/// Of the table of proxies.
#[derive(Debug)]
struct Proxy {
    connection: u64,
    enforced: Vec<String>,
    announced: i64,
}

impl Server {
    /// With the tables; whose postmaster and system these are is as in [`Identity`].
    pub fn new(clock: i64, of: &Identity, tables: impl IntoIterator<Item = QualifiedName>) -> Arc<Server> {
        Arc::new(Server(Mutex::new(State {
            clock,
            system_identifier: of.system_identifier.clone(),
            postmaster_start: of.postmaster_start.clone(),
            tables: tables.into_iter().collect(),
            ..State::default()
        })))
    }

    /// The database, as that proxy sees it. No connection is open yet.
    pub fn store(self: &Arc<Self>, proxy: &str, listener: Arc<dyn Listener>) -> Arc<dyn Store> {
        let connection = Mutex::default();
        Arc::new(InMemory { server: self.clone(), proxy: proxy.to_owned(), listener, connection })
    }

    /// A server process begins.
    pub fn begin_process(&self, who: &Identity) {
        let process = Process { start: who.backend_start.clone(), transaction: None };
        self.state().processes.insert(who.pid, process);
    }

    /// It ends, with its transaction.
    pub fn end_process(&self, pid: i32) {
        self.state().processes.remove(&pid);
    }

    pub fn lives(&self, pid: i32) -> bool {
        self.state().processes.contains_key(&pid)
    }

    /// The process writes to the table, or locks rows of it, in a transaction that stays open.
    pub fn write(&self, pid: i32, table: &QualifiedName, only_locks: bool) {
        self.in_transaction(pid, |transaction| {
            transaction.locked.insert(table.clone());
            if !only_locks {
                transaction.written.insert(table.clone());
            }
        });
    }

    /// The guard lets the process write to a resource of that family, on the strength of an admission.
    pub fn guard_passes(&self, pid: i32, family: &str) {
        self.in_transaction(pid, |transaction| transaction.guarded.extend([family.to_owned()]));
    }

    /// Its transaction ends.
    pub fn end_transaction(&self, pid: i32) {
        self.state().processes.get_mut(&pid).unwrap().transaction = None;
    }

    /// Its transaction goes on without it.
    pub fn prepare(&self, pid: i32, gid: &str) {
        let mut state = self.state();
        let transaction = state.processes.get_mut(&pid).unwrap().transaction.take().unwrap();
        state.prepared.insert(gid.to_owned(), (pid, transaction));
    }

    /// The end of such a transaction.
    pub fn end_prepared(&self, gid: &str) {
        self.state().prepared.remove(gid);
    }

    /// `fencegate.prune`, of this one resource.
    pub fn prune(&self, resource: &str) {
        let mut state = self.state();
        if !state.admissions.iter().any(|it| it.row.resource == resource) && state.epochs.remove(resource).is_some() {
            state.announce(resource);
        }
    }

    /// The role may do nothing.
    pub fn forbid(&self, role: &str) {
        self.state().forbidden.insert(role.to_owned());
    }

    /// Time goes by.
    pub fn pass(&self, time: Duration) {
        self.state().clock += i64::try_from(time.as_micros()).unwrap();
    }

    fn in_transaction(&self, pid: i32, does: impl FnOnce(&mut Transaction)) {
        let mut state = self.state();
        state.connections += 1;
        let number = state.connections;
        let process = state.processes.get_mut(&pid).unwrap();
        does(process.transaction.get_or_insert_with(|| Transaction { number, ..Transaction::default() }));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    fn is_alive(&self, (pid, start): &Key) -> bool {
        self.processes.get(pid).is_some_and(|process| process.start == *start)
    }

    fn living_below(&self, resource: &str, bound: Epoch) -> impl Iterator<Item = &Granted> {
        self.below(resource, bound).map(|it| &it.row).filter(|row| self.is_alive(&row.key()))
    }

    fn below(&self, resource: &str, bound: Epoch) -> impl Iterator<Item = &Admitted> {
        self.admissions.iter().filter(move |it| it.row.resource == resource && it.row.epoch < bound)
    }

    fn announce(&self, resource: &str) {
        self.listeners.values().for_each(|listener| listener.announced(resource));
    }

    /// The first of the reasons, as Admit looks for them.
    fn unfenceable(&self, who: &Identity) -> Option<Hindrance> {
        let process = self.processes.get(&who.pid);
        let remedy = match process {
            _ if who.system_identifier != self.system_identifier => Remedy::SameServer,
            _ if who.postmaster_start != self.postmaster_start => Remedy::TryAgain,
            None => Remedy::SameServer,
            Some(process) if process.start != who.backend_start => Remedy::TryAgain,
            Some(_) => return None,
        };
        Some(Hindrance::new(format!("process {} is not what it says", who.pid), remedy))
    }

    fn record(&mut self, resource: &str, fingerprint: &str, loaded: i64) {
        let now = self.clock;
        let row = self.epochs.get_mut(resource);
        if let Some(row) = row.filter(|row| row.loaded < loaded || row.loaded > now) {
            (row.policy, row.loaded) = (fingerprint.to_owned(), loaded);
        }
    }
}

/// What one proxy has of it.
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
}

impl InMemory {
    /// The database, over a connection that is opened if there is none.
    fn connected(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut connection = self.connection();
        let mut state = self.server.state();
        if connection.number.is_none() {
            if connection.closed_until.is_some_and(|until| Instant::now() < until) {
                return Err(StoreError::Unavailable("the database is being dropped".into()));
            }
            state.connections += 1;
            let number = state.connections;
            connection.number = Some(number);
            state.listeners.insert(number, self.listener.clone());
            self.listener.listens(number);
        }
        state.tick();
        Ok(state)
    }

    /// The number of that connection.
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
        who: &Identity,
        resource: &Resource,
        token: Token,
        loaded: i64,
    ) -> Result<Report, StoreError> {
        let mut state = self.connected()?;
        let unfenceable = state.unfenceable(who);
        let Some(row) = state.epochs.get(&resource.name) else {
            return Ok(Report { unfenceable, current: None, admission: None });
        };
        let recorded = match row.policy == resource.fingerprint {
            true => Recorded::Same,
            false if row.loaded < loaded => Recorded::Older,
            false => Recorded::Others,
        };
        let (name, epoch) = (resource.name.clone(), row.epoch);
        let current = Some((Standing { resource: name.clone(), epoch, drained: row.drained }, recorded));
        let is_due = epoch.token == token && row.drained && recorded == Recorded::Same && unfenceable.is_none();
        let admission = is_due.then(|| {
            let at = state.tick();
            let version = u32::try_from(at & 0xffff_ffff).unwrap();
            let is_it = |it: &&mut Admitted| {
                it.row.key() == (who.pid, who.backend_start.clone()) && it.row.resource == name && it.row.epoch == epoch
            };
            if let Some(there) = state.admissions.iter_mut().find(is_it) {
                (there.at, there.row.version) = (at, version);
                return (there.row.clone(), false);
            }
            let (pid, backend_start) = (who.pid, who.backend_start.clone());
            let row = Granted { pid, backend_start, resource: name, epoch, version, ending: false };
            state.admissions.push(Admitted { row: row.clone(), proxy: self.proxy.clone(), at });
            (row, true)
        });
        Ok(Report { unfenceable, current, admission })
    }

    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError> {
        let mut state = self.connected()?;
        let (updated, name) = (state.tick(), resource.name.clone());
        let policy = resource.fingerprint.clone();
        match state.epochs.get_mut(&name) {
            None if known.is_none() => {
                let epoch = Epoch { generation: 1, ..target };
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
        let in_the_way = state.prepared.iter().filter(|(_, (_, it))| it.written.iter().any(|it| tables.contains(it)));
        let gids: Vec<String> = in_the_way.map(|(gid, _)| gid.clone()).collect();
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
        let mut state = self.connected()?;
        let lives = |it: &&Admitted| {
            it.row.resource == resource.name && it.row.epoch.token > token && state.is_alive(&it.row.key())
        };
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
            obstacle: Obstacle { who: format!("process {}", it.row.pid), query: String::new() },
            row: it.row.clone(),
            proxy: it.proxy.clone(),
        };
        Ok(state.below(resource, bound).map(holder).collect())
    }

    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError> {
        let mut state = self.connected()?;
        let is_asked = |row: &Granted| only.is_none_or(|(name, bound)| row.resource == name && row.epoch < bound);
        let is_due = |it: &Admitted| is_asked(&it.row) && !state.is_alive(&it.row.key());
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
        ended.iter().for_each(|pid| drop(state.processes.remove(pid)));
        Ok(())
    }

    async fn delete(&self, rows: &[(&Granted, &str)]) -> Result<Vec<Granted>, StoreError> {
        let mut state = self.connected()?;
        let mut deleted = Vec::new();
        for (row, family) in rows {
            let open = state.processes.get(&row.pid).and_then(|process| process.transaction.as_ref());
            let prepared = state.prepared.values().filter(|(pid, _)| *pid == row.pid).map(|(_, it)| it);
            if prepared.chain(open).any(|transaction| transaction.guarded.contains(*family)) {
                continue;
            }
            let is_it = |it: &Admitted| Granted { ending: row.ending, ..it.row.clone() } == **row && !it.row.ending;
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
        let is_admitted = state
            .admissions
            .iter()
            .any(|it| it.row.key() == (pid, process.start.clone()) && it.row.resource == resource.name);
        Ok(state.epochs.get(&resource.name).filter(|_| passed && is_admitted).map(|row| row.epoch))
    }

    async fn admissions_of(&self, who: &Identity) -> Result<Vec<Granted>, StoreError> {
        let state = self.connected()?;
        let rows = state.admissions.iter().map(|it| it.row.clone());
        Ok(rows.filter(|row| row.key() == (who.pid, who.backend_start.clone())).collect())
    }

    async fn epochs(&self, resources: &[&str]) -> Result<Vec<Standing>, StoreError> {
        let state = self.connected()?;
        let rows = state.epochs.iter().filter(|(resource, _)| resources.contains(&resource.as_str()));
        let standing = |(resource, row): (&String, &Row)| Standing {
            resource: resource.clone(),
            epoch: row.epoch,
            drained: row.drained,
        };
        Ok(rows.map(standing).collect())
    }

    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError> {
        let state = self.connected()?;
        let mut above = BTreeMap::new();
        for it in state.admissions.iter().filter(|it| it.proxy == self.proxy) {
            let current = state.epochs.get(&it.row.resource).map(|row| row.epoch);
            above.extend(
                current.filter(|current| it.row.epoch < *current).map(|it_is| (it.row.resource.clone(), it_is)),
            );
        }
        Ok(above.into_iter().collect())
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
        let state = self.connected()?;
        let mut reach = HashMap::new();
        for resource in resources {
            let of: &mut Reach = reach.entry(resource.fingerprint.clone()).or_default();
            *of = Reach::default();
            for proxy in state.proxies.values() {
                let lives = state.listeners.contains_key(&proxy.connection);
                let counts = lives || proxy.announced + LOST_PROXY_COUNTS > state.clock;
                of.proxies += u64::from(counts);
                of.lost += u64::from(counts && !lives);
                of.enforcing += u64::from(lives && proxy.enforced.contains(&resource.fingerprint));
            }
        }
        let tables = resources.iter().flat_map(|resource| resource.tables.iter().map(|table| &table.name));
        let unresolved = tables.filter(|table| !state.tables.contains(*table)).cloned().collect();
        Ok(Enforcement { reach, unresolved })
    }

    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError> {
        let state = self.connected()?;
        let open =
            state.processes.iter().filter_map(|(pid, it)| Some(format!("{pid} {}", it.transaction.as_ref()?.number)));
        Ok(open.chain(state.prepared.keys().cloned()).collect())
    }

    async fn denied(&self, _resource: &Resource, deeds: &[Deed], role: &Role) -> Result<Option<String>, StoreError> {
        let (Role::Current(role) | Role::AnyOf(role)) = role;
        let is_forbidden = self.connected()?.forbidden.contains(role);
        let what = |deed: &Deed| match deed {
            Deed::Write(relation, _) => format!("table {}", relation.name),
            Deed::Call(function) => format!("function {}", function.name),
        };
        Ok(deeds.first().filter(|_| is_forbidden).map(what))
    }

    async fn admissions(&self, most: usize) -> Result<Admissions, StoreError> {
        let state = self.connected()?;
        let time = |micros: i64| Some(UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).ok()?));
        let admission = |it: &Admitted| Admission {
            resource: it.row.resource.clone(),
            epoch: it.row.epoch,
            pid: it.row.pid,
            backend_start: started(&it.row.backend_start),
            admitted: time(it.at),
            proxy: it.proxy.clone(),
            is_ours: it.proxy == self.proxy,
            is_alive: state.is_alive(&it.row.key()),
        };
        let mut list: Vec<Admission> = state.admissions.iter().map(admission).collect();
        list.sort_by(|one, other| (&one.resource, one.epoch, one.pid).cmp(&(&other.resource, other.epoch, other.pid)));
        let left_out = list.len().saturating_sub(most);
        list.truncate(most);
        Ok(Admissions { list, left_out })
    }

    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError> {
        let state = self.connected()?;
        let fence = |(name, row): (&String, &Row)| {
            let admissions = state.admissions.iter().filter(|it| it.row.resource == *name).count() as u64;
            (name.clone(), Fence { epoch: row.epoch, drained: row.drained, admissions })
        };
        let is_plain = |name: &str| resources.iter().any(|it| it.keyed.is_none() && it.name == name);
        let is_key = |name: &str| resources.iter().any(|it| it.keyed.is_some() && it.is_called(name));
        let mut of_keys: Vec<_> = state.epochs.iter().filter(|(name, _)| is_key(name)).collect();
        of_keys.sort_by_key(|(_, row)| -row.updated);
        let left_out = of_keys.len().saturating_sub(most_keys);
        Ok(Fences {
            plain: state.epochs.iter().filter(|(name, _)| is_plain(name)).map(fence).collect(),
            of_keys: of_keys.into_iter().take(most_keys).map(fence).collect(),
            left_out,
        })
    }

    /// No relation leads to another.
    async fn catalogue(&self, _fences: Fenced<'_>, _temporary: Option<&str>) -> Result<Catalogue, Hindrance> {
        Ok(Catalogue::default())
    }

    async fn dependencies(&self, _fences: Fenced<'_>) -> Result<Dependencies, Hindrance> {
        Ok(Dependencies::default())
    }

    async fn announce_catalogue(&self) -> Result<(), StoreError> {
        let own = self.number()?;
        let state = self.connected()?;
        let others = state.listeners.iter().filter(|(number, _)| **number != own);
        others.for_each(|(_, listener)| listener.catalogue_changed());
        Ok(())
    }

    async fn beat(&self) -> Result<(), StoreError> {
        self.connected().map(drop)
    }

    async fn may_have_alone(&self, role: &Role, _by_force: bool) -> Result<bool, StoreError> {
        let (Role::Current(role) | Role::AnyOf(role)) = role;
        Ok(!self.connected()?.forbidden.contains(role))
    }

    fn found(&self) -> Found {
        Found::Nothing
    }

    fn is_open(&self) -> bool {
        self.connection().number.is_some()
    }

    fn keep_closed(&self, until: Option<Instant>) {
        self.connection().closed_until = until;
    }

    fn session_comes(&self) {}

    async fn ask_anew(&self) {}

    async fn close(&self, _wait: bool) {
        if let Some(number) = self.connection().number.take() {
            self.server.state().listeners.remove(&number);
            self.listener.lost(number);
        }
    }
}

/// As [`Identity::backend_start`] has it.
fn started(seconds: &str) -> Option<SystemTime> {
    let (whole, fraction) = seconds.split_once('.')?;
    let micros: u64 = format!("{fraction:0<6}").parse().ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(whole.parse().ok()?) + Duration::from_micros(micros))
}
