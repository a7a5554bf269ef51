//! The store in PostgreSQL: the statements and the connection of each operation, and the decoding of its answer.
//!
//! Must never split an operation: each is one Query, which is one transaction.

use super::common::blockers;
use super::connections::Connections;
use super::error::LIMIT;
use super::notification::{CATALOG_CHANGED, process_payload};
use super::rows;
use super::sql::epoch::Operator;
use super::{
    Admission, AdmissionRow, Bounded, Enforcement, EpochRow, Fences, First, Found, Holder, Key, Listener, Marked,
    Report, RequiredPrivilege, ResetReport, Role, Store, StoreError, StoredLease, sql,
};
use crate::obstacle::Blocker;
use crate::session::{Epoch, Identity, Token};
use async_trait::async_trait;
use fencegate_catalog::{Catalog, Dependencies, Fenced, Views};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{column, is_true, number, rows, text};
use fencegate_postgres::tls::ControlConfig;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Time limit of first tokens on the wait for a row that another transaction is creating. Then that key uses the ordinary
/// Admit.
const FIRST_WAIT: Duration = Duration::from_millis(5);

/// A database of PostgreSQL, for one proxy.
#[derive(Debug)]
pub struct Postgres {
    connections: Connections,
    /// The id of this proxy process in the admissions that it grants. Unique to the process.
    proxy: String,
}

impl Postgres {
    /// A store without open connections. `control` includes the database's name. `proxy` is unique to the proxy process.
    pub fn new(control: ControlConfig, proxy: String, listener: Arc<dyn Listener>) -> Self {
        Postgres { connections: Connections::new(control, listener), proxy }
    }

    async fn admit_firsts(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError> {
        let query = sql::admission::admit_first(firsts, &self.proxy);
        let answers = self.connections.publish.run(&sql::lock::with_lock_timeout(FIRST_WAIT, &query)).await?;
        Ok(rows(&answers).filter_map(rows::granted).collect())
    }
}

#[async_trait]
impl Store for Postgres {
    async fn admit(
        &self,
        identity: &Identity,
        resource: &Resource,
        token: Token,
        loaded: i64,
    ) -> Result<Report, StoreError> {
        let query = sql::admission::admit(identity, resource, token, &self.proxy, loaded);
        let answers = self.connections.run_past_blockers(&self.connections.admission, resource, &query).await?;
        let report = rows::report(&answers, &resource.name)?;
        if report.unfenceable.is_some() {
            // If the role can no longer see or terminate other processes, the session only appears to be unfenceable.
            self.connections.look.check_privileges().await?;
        }
        Ok(report)
    }

    async fn admit_current(
        &self,
        identity: &Identity,
        wanted: &[(&Resource, Token)],
    ) -> Result<Vec<(AdmissionRow, bool)>, StoreError> {
        self.connections.listen();
        let query = sql::admission::admit_current(identity, wanted, &self.proxy);
        let answers = self.connections.admission.run(&sql::lock::with_lock_timeout(FIRST_WAIT, &query)).await?;
        Ok(rows(&answers).filter_map(|row| Some((rows::granted(row)?, is_true(row, "is_new")))).collect())
    }

    async fn admit_first(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError> {
        let mut admitted = match self.admit_firsts(firsts).await {
            Err(StoreError::LockNotAvailable) => Vec::new(),
            admitted => return admitted,
        };
        // The error does not tell which of them waits. One by one, only that one is left out.
        for first in firsts {
            match self.admit_firsts(&[first]).await {
                Err(StoreError::LockNotAvailable) => {}
                rows => admitted.extend(rows?),
            }
        }
        Ok(admitted)
    }

    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError> {
        let query = sql::epoch::publish(resource, target, known, loaded);
        let answers = self.connections.run_past_blockers(&self.connections.publish, resource, &query).await?;
        self.connections.announcer.announce(&resource.name);
        Ok(rows(&answers).find_map(rows::epoch))
    }

    async fn mark(&self, resource: &Resource, epoch: Epoch) -> Result<Marked, StoreError> {
        let answers = self
            .connections
            .run_past_blockers(&self.connections.publish, resource, &sql::epoch::mark(resource, epoch))
            .await?;
        Ok(rows::marked(&answers))
    }

    async fn reset(
        &self,
        resource: &Resource,
        known: Epoch,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<ResetReport, StoreError> {
        let query = sql::epoch::reset(resource, known, token, &Operator { role, proxy: &self.proxy }, force);
        let answers = self.connections.run_past_blockers(&self.connections.publish, resource, &query).await?;
        self.connections.announcer.announce(&resource.name);
        rows::reset(&answers, &self.proxy)
    }

    async fn holders(&self, resource: &str, bound: Epoch) -> Result<Vec<Holder>, StoreError> {
        let answers = self.connections.look(&sql::admission::holders(resource, bound)).await?;
        let unreadable = || StoreError::UnknownForm("the query for lock holders");
        rows(&answers).map(|row| rows::holder(row).ok_or_else(unreadable)).collect()
    }

    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError> {
        self.connections
            .read(&sql::admission::delete_dead(only), |row| Some((rows::key(row)?, number(row, "token")?)))
            .await
    }

    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError> {
        let answers = self.connections.look(&sql::proxy::terminate(processes, resource, bound)).await?;
        // A role that has lost a privilege sees none of the processes, and the drain would wait until its limit.
        if rows(&answers).next().is_none() {
            self.connections.look.check_privileges().await?;
        }
        Ok(())
    }

    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError> {
        self.connections.read(&sql::admission::delete(rows), rows::granted).await
    }

    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError> {
        self.connections.read(&sql::lock::lockers(resource, pids), |row| number(row, "pid")).await
    }

    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError> {
        Ok(self.connections.read::<_, Vec<_>>(&sql::lock::guarded_write(resource, pid), rows::epoch).await?.pop())
    }

    async fn admissions_of(&self, identity: &Identity) -> Result<Vec<AdmissionRow>, StoreError> {
        self.connections.read(&sql::admission::admissions(identity), rows::granted).await
    }

    async fn epochs(&self, resources: &[&str]) -> Result<Vec<EpochRow>, StoreError> {
        self.connections.read(&sql::epoch::epochs(resources.iter().copied()), rows::standing).await
    }

    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError> {
        let read = |row: &_| Some((text(row, "resource")?, rows::epoch(row)?));
        self.connections.read(&sql::epoch::epochs_above_admissions(&self.proxy), read).await
    }

    async fn leases(&self, elections: &[&str]) -> Result<Vec<StoredLease>, StoreError> {
        self.connections.read(&sql::epoch::leases(elections), rows::lease).await
    }

    async fn all_leases(&self, most: usize) -> Result<Bounded<StoredLease>, StoreError> {
        let answers = self.connections.look(&sql::epoch::all_leases(most)).await?;
        let [list, count] = answers.as_slice() else { return Err(StoreError::UnknownForm("the query for leases")) };
        Ok(rows::bounded([list, count], "leases", rows::lease))
    }

    async fn now(&self) -> Result<i64, StoreError> {
        let answers = self.connections.look(&sql::epoch::now()).await?;
        Ok(rows(&answers).find_map(|row| number(row, "now")).unwrap_or_default())
    }

    async fn record_policy(&self, resource: &Resource, loaded: i64) -> Result<(), StoreError> {
        let Some(keyed) = &resource.keyed else {
            // One row per transaction, so that two proxies that load at once cannot deadlock.
            let query = sql::epoch::record_policy(resource, loaded);
            self.connections.run_past_blockers(&self.connections.publish, resource, &query).await?;
            return Ok(());
        };
        let mut after = String::new();
        loop {
            let page = sql::epoch::record_policy_of_keys(resource, &keyed.names, &after, loaded);
            let answers = self.connections.run_past_blockers(&self.connections.publish, resource, &page).await?;
            let last = rows(&answers).find_map(|row| column(row, "last"));
            let Some(last) = last else { return Ok(()) };
            after = last.to_owned();
        }
    }

    async fn superseded(&self, resources: &[Arc<Resource>], loaded: i64) -> Result<Vec<String>, StoreError> {
        let answers = self.connections.look(&sql::epoch::superseded(resources, loaded)).await?;
        Ok(rows(&answers).filter_map(|row| text(row, "resource")).collect())
    }

    async fn announce_enforced(&self, fingerprints: &[String]) -> Result<(), StoreError> {
        // The first session of a database waits for this, and then for a reading, which needs both connections.
        self.connections.listen();
        self.connections.look(&sql::proxy::announce_enforced(&self.proxy, fingerprints)).await?;
        Ok(())
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.connections.look(&sql::proxy::leave(&self.proxy)).await?;
        Ok(())
    }

    async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
        let fingerprints: Vec<_> = resources.iter().map(|resource| resource.fingerprint.as_str()).collect();
        let tables: Vec<_> = resources.iter().flat_map(|resource| resource.tables.iter().map(|it| &it.name)).collect();
        let answers = self.connections.look(&sql::proxy::enforcement(&fingerprints, &tables)).await?;
        let [reach, unresolved] = answers.as_slice() else { return Err(StoreError::UnknownForm("its proxies")) };
        Ok(Enforcement {
            reach: reach.rows.iter().filter_map(rows::reach).collect(),
            unresolved: unresolved.rows.iter().filter_map(rows::name).collect(),
        })
    }

    async fn has_other_sessions(&self, own: &[Key]) -> Result<bool, StoreError> {
        Ok(rows(&self.connections.look(&sql::proxy::other_sessions(own)).await?).any(|row| is_true(row, "exist")))
    }

    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError> {
        self.connections.read(&sql::proxy::open_transactions(), |row| text(row, "transaction")).await
    }

    async fn denied(
        &self,
        resource: &Resource,
        privileges: &[RequiredPrivilege],
        role: &Role,
    ) -> Result<Option<String>, StoreError> {
        let answers = self.connections.look(&sql::privilege::permits(resource, privileges, role)).await?;
        match rows(&answers).find(|row| !is_true(row, "permitted")) {
            None if rows(&answers).count() == privileges.len() => Ok(None),
            denied => Ok(Some(denied.and_then(|row| column(row, "what")).unwrap_or("what it names").to_owned())),
        }
    }

    async fn admissions(&self, most: usize) -> Result<Bounded<Admission>, StoreError> {
        let answers = self.connections.look(&sql::admission::all_admissions(most)).await?;
        let [list, count] = answers.as_slice() else {
            return Err(StoreError::UnknownForm("the query for admissions"));
        };
        Ok(rows::bounded([list, count], "admissions", |row| rows::admission(row, &self.proxy)))
    }

    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError> {
        let answers = self.connections.look(&sql::epoch::fences(resources, most_keys)).await?;
        let [plain, of_keys, count] = answers.as_slice() else {
            return Err(StoreError::UnknownForm("the query for fences"));
        };
        let Bounded { list: of_keys, left_out } = rows::bounded([of_keys, count], "keys", rows::fence);
        Ok(Fences { plain: plain.rows.iter().filter_map(rows::fence).collect(), of_keys, left_out })
    }

    async fn catalog(&self, fences: Fenced<'_>, temporary: Option<&str>) -> Result<Catalog, StoreError> {
        let question = |views| fencegate_catalog::question(fences, temporary, views);
        let answers = match temporary {
            // For one session, over a separate connection: a session with many temporary relations must not delay others.
            Some(_) => self.connections.query_once(&question(Views::Reported)).await,
            None => self.connections.read_catalog(&sql::lanes::read(fences)).await,
        };
        let answers = match answers {
            Ok(answers) => answers,
            // A view is being altered. Treat all views as writable.
            Err(error) if temporary.is_none() && error.is_answer() => {
                self.connections.reading.run(&question(Views::AllWritable)).await?
            }
            // A database without fences needs no `fencegate init`. A recent failure, while the database was being
            // created, need not occur again.
            Err(_) => self.connections.query_once(&question(Views::AllWritable)).await?,
        };
        Ok(Catalog::read(&answers, fencegate_catalog::most_rows(temporary))?)
    }

    async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        let answers = match self.connections.read_catalog(&sql::lanes::dependencies(fences)).await {
            Ok(answers) => answers,
            Err(_) => self.connections.query_once(&fencegate_catalog::question_of_dependencies(fences)).await?,
        };
        Ok(Dependencies::read(&answers)?)
    }

    async fn announce_catalog(&self) -> Result<(), StoreError> {
        self.connections.announcer.announced(CATALOG_CHANGED).await
    }

    async fn notify_process(&self, identity: &Identity) -> Result<(), StoreError> {
        self.connections.announcer.announced(&process_payload(identity)).await
    }

    async fn beat(&self) -> Result<f64, StoreError> {
        self.connections.close_outdated();
        self.connections.look("SELECT").await?;
        let answers = self.connections.query_listener(sql::epoch::queue_usage()).await?;
        rows(&answers)
            .find_map(|row| number(row, "usage"))
            .ok_or_else(|| StoreError::UnknownForm("the query for the notification queue"))
    }

    async fn table_locks(&self) -> Result<Vec<Blocker>, StoreError> {
        let query = sql::lock::all();
        let asked = timeout(LIMIT, self.connections.query_once(&query)).await;
        Ok(blockers(&asked.map_err(|_| StoreError::TimedOut(LIMIT))??))
    }

    async fn foreign_databases(&self, role: &Role, databases: &[String]) -> Result<HashSet<String>, StoreError> {
        self.connections.read(&sql::privilege::foreign_databases(role, databases), |row| text(row, "datname")).await
    }

    async fn may_drop_database(&self, role: &Role, by_force: bool) -> Result<bool, StoreError> {
        let answers = if by_force {
            // The answer has to cover all connections of this proxy.
            self.connections.look_alone(|own| sql::privilege::is_disposable_by_force(role, own)).await?
        } else {
            self.connections.look(&sql::privilege::is_disposable(role)).await?
        };
        Ok(rows(&answers).any(|row| is_true(row, "disposable")))
    }

    fn found(&self) -> Found {
        self.connections.common.found()
    }

    fn proxy_connection(&self) -> u64 {
        self.connections.look.serial()
    }

    fn is_open(&self) -> bool {
        self.connections.is_open()
    }

    fn keep_closed(&self, until: Option<Instant>) {
        self.connections.common.keep_closed(until);
    }

    fn note_login(&self) {
        self.connections.common.note_login();
    }

    async fn forget_failure(&self) {
        self.connections.forget_failure().await;
    }

    fn close_outdated(&self) {
        self.connections.close_outdated();
    }

    async fn close(&self, wait: bool) {
        self.connections.close(wait).await;
    }
}
