//! The catalog of a database as last read, and its changes since.
//!
//! Owns whether the last reading still counts. Must never treat a reading as current if it began before a change that
//! precedes the current statement was seen.

use super::{FRESH, SharedDatabase};
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_fence::store::StoreError;
use fencegate_policy::{PolicySet, QualifiedName};
use fencegate_session::host::{CatalogRequest, CatalogView, Changes};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use tokio::time::Instant;

/// The state of a database's catalog, as it was read.
#[derive(Default)]
pub(super) struct CatalogState {
    /// The database's OID, as the latest session reported it.
    database: Option<String>,
    /// The last reading. It stays if a new reading fails.
    pub(super) catalog: Arc<Catalog>,
    /// Changes seen so far.
    seen: Changes,
    /// Changes that the last reading covers; None if the catalog was never read.
    read: Option<Changes>,
    /// Start of the latest reading, the changes seen by then, and the control connection that listened.
    attempted: Option<(Instant, Changes, u64)>,
    /// Alive while a reading is in progress.
    under_way: Weak<()>,
    /// The connection that was listening during the reading. A later connection may have missed changes in between.
    listener: u64,
    /// The error of the last reading, if it failed.
    failure: Option<StoreError>,
    /// Missing fenced tables that the log has reported.
    missing: HashSet<QualifiedName>,
    /// Objects that CASCADE drops. They are read only for statements that need them.
    dependencies: Option<ReadingOnDemand<Dependencies>>,
    /// Readings for sessions whose temporary relations lead to fenced tables, by temporary schema.
    of_sessions: HashMap<Arc<str>, ReadingOnDemand<Catalog>>,
}

/// A reading made only when a statement needs it.
struct ReadingOnDemand<T> {
    attempted: (Instant, Changes),
    read: Result<Arc<T>, StoreError>,
}

impl<T> ReadingOnDemand<T> {
    /// Returns true if there is no reading, if it failed a while ago, or if it lacks some of these changes.
    fn is_due(reading: Option<&Self>, since: Changes) -> bool {
        reading.is_none_or(|ReadingOnDemand { attempted: (at, changes), read }| {
            !changes.has(since) || read.is_err() && at.elapsed() > FRESH
        })
    }
}

impl CatalogState {
    /// Returns true if there was no recent attempt to read the catalog, or none since the last change or the last
    /// change of the listening connection.
    fn is_untried(&self, listener: u64) -> bool {
        self.attempted.is_none_or(|(at, changes, by)| changes != self.seen || listener != by || at.elapsed() > FRESH)
    }

    /// Returns true if objects that CASCADE drops are wanted and have to be read.
    fn lacks_dependencies(&self, wanted: &CatalogRequest) -> bool {
        wanted.cascades && ReadingOnDemand::is_due(self.dependencies.as_ref(), wanted.since)
    }

    /// The schema of the session's temporary relations, if they lead to fenced tables.
    fn left_to_session<'w>(&self, wanted: &'w CatalogRequest) -> Option<&'w Arc<str>> {
        wanted.temporary.as_ref().filter(|schema| self.catalog.leaves_to_session(schema))
    }

    /// The temporary schema, if a reading for it is due.
    fn lacking_session<'w>(&self, wanted: &'w CatalogRequest) -> Option<&'w Arc<str>> {
        self.left_to_session(wanted)
            .filter(|schema| ReadingOnDemand::is_due(self.of_sessions.get(*schema), wanted.since))
    }
}

impl SharedDatabase {
    /// The changes seen so far.
    pub fn changes(&self) -> Changes {
        self.known.lock().seen
    }

    /// The last reading. It is current if it covers `wanted`, or for None if it covers all changes seen so far.
    pub fn catalog(&self, wanted: Option<&CatalogRequest>) -> CatalogView {
        let known = self.known.lock();
        let is_read = self.is_read(&known, wanted.map_or(known.seen, |wanted| wanted.since));
        let is_listening = self.is_listening(&known);
        let mut seen = CatalogView {
            catalog: known.catalog.clone(),
            dependencies: None,
            is_current: is_read && is_listening,
            lacks_listener: is_read && !is_listening,
            doubts: known.read.map_or(0, |read| read.doubts),
            unread: known.failure.clone(),
        };
        let cascades = wanted.is_some_and(|wanted| wanted.cascades);
        if let Some(wanted) = wanted.filter(|_| cascades)
            && let Some(reading) = known.dependencies.as_ref().filter(|reading| reading.attempted.1.has(wanted.since))
        {
            seen.dependencies = reading.read.as_ref().ok().cloned();
            seen.unread = seen.unread.or(reading.read.as_ref().err().cloned());
        }
        if let Some(wanted) = wanted
            && let Some(schema) = known.left_to_session(wanted)
        {
            let reading = known.of_sessions.get(schema).filter(|reading| reading.attempted.1.has(wanted.since));
            match reading.map(|reading| (&reading.read, reading.attempted.1)) {
                Some((Ok(catalog), changes)) => {
                    (seen.catalog, seen.doubts) = (catalog.clone(), seen.doubts.min(changes.doubts));
                }
                why => {
                    (seen.is_current, seen.lacks_listener) = (false, false);
                    seen.unread = why.and_then(|(read, _)| read.as_ref().err().cloned()).or(seen.unread);
                }
            }
        }
        seen.unread = seen.unread.filter(|_| !seen.is_current || cascades && seen.dependencies.is_none());
        seen
    }

    /// Whether the fenced table exists; None if the catalog was not read since it changed, for example because there
    /// are no sessions.
    pub fn has_table(&self, table: &QualifiedName) -> Option<bool> {
        let known = self.known.lock();
        let is_current = known.read.is_some_and(|read| read.doubts >= known.seen.doubts);
        (is_current && self.fence.has_sessions()).then(|| known.catalog.has(table))
    }

    /// Records a change of the catalog. Until the catalog is read, any relation may be fenced.
    pub fn forget_catalog(&self) {
        let mut known = self.known.lock();
        known.seen.all += 1;
        known.seen.doubts += 1;
    }

    /// Records the database's OID. If it has changed, earlier readings and failures no longer count.
    pub fn note_database(&self, database: String) {
        let mut known = self.known.lock();
        let before = known.database.replace(database);
        if before == known.database {
            return;
        }
        known.attempted = None;
        if before.is_some() {
            drop(known);
            self.forget_catalog();
        }
    }

    /// Records a change that did not concern fenced tables as of that count of doubts. Returns false if the count has
    /// grown.
    pub fn note_harmless_change(&self, doubts: u64) -> bool {
        let mut known = self.known.lock();
        let is_harmless = known.seen.doubts == doubts;
        known.seen.all += u64::from(is_harmless);
        drop(known);
        if is_harmless {
            self.harmless_change.notify_one();
        }
        is_harmless
    }

    /// Assumes an unnoticed change: a reading is due, and the last one counts until then.
    pub(super) fn suppose_change(&self) {
        self.known.lock().seen.all += 1;
    }

    /// Requests a reading soon. Nothing waits for it.
    pub fn read_soon(&self) {
        self.reading_due.notify_one();
    }

    /// Reads the catalog if a reading is due. Cancel-safe: a reading becomes due again after a while.
    pub(super) async fn catch_up(&self) {
        let _turn = self.reading.lock().await;
        if self.is_due() {
            self.read_catalog().await;
        }
    }

    /// Like `Self::catch_up`, for the information that a statement needs. Cancel-safe, as `Self::catch_up`.
    pub async fn catch_up_with(&self, wanted: &CatalogRequest) {
        let turn = self.reading.lock().await;
        let lacks = |known: &CatalogState| !self.is_read(known, wanted.since) || !self.is_listening(known);
        if lacks(&self.known.lock()) && self.is_due() {
            self.read_catalog().await;
        }
        let policies = self.policies.borrow().clone();
        let fences = Fenced(&policies.resources);
        if self.known.lock().lacks_dependencies(wanted) {
            let attempted = (Instant::now(), self.changes());
            let read = self.fence.dependencies(fences).await.map(Arc::new);
            self.known.lock().dependencies = Some(ReadingOnDemand { attempted, read });
        }
        drop(turn);
        // Only this session can have created them, so no other session waits.
        let _turn = self.session_reading.lock().await;
        let schema = self.known.lock().lacking_session(wanted).cloned();
        if let Some(schema) = schema {
            let attempted = (Instant::now(), self.changes());
            let read = self.fence.catalog_of_session(fences, &schema).await.map(Arc::new);
            self.known.lock().of_sessions.insert(schema, ReadingOnDemand { attempted, read });
        }
    }

    /// Reads the catalog. If that fails, the last reading stays. Cancel-safe, as [`Self::catch_up`].
    pub(super) async fn read_catalog(&self) {
        let under_way = Arc::new(());
        let policies = self.policies.borrow().clone();
        let (listener, last_listener) = (self.fence.listener(), self.fence.last_listener());
        let changes = {
            let mut known = self.known.lock();
            known.attempted = Some((Instant::now(), known.seen, listener));
            known.under_way = Arc::downgrade(&under_way);
            known.seen
        };
        let read = self.fence.catalog(Fenced(&policies.resources)).await;
        // The first listening connection is opened before the reading. If it is already lost, this reading does not
        // count, and the next one need not wait.
        let is_opened = listener == 0 && self.fence.last_listener() != last_listener;
        let listener = if is_opened { self.fence.last_listener() } else { listener };
        let mut known = self.known.lock();
        drop(under_way);
        match read {
            Ok(catalog) => {
                for resource in policies.resources.iter().filter(|resource| catalog.may_have(resource)) {
                    let (database, mode) = (self.fence.name(), resource.mode.name());
                    self.metrics.expect_writes(database, &resource.name, mode);
                    for verdict in ["unverifiable", "unavailable"].iter().filter(|_| catalog.has_fenced_tables()) {
                        self.metrics.write(database, "", mode, verdict);
                    }
                }
                self.report_missing(&policies, &catalog, &mut known.missing);
                known.failure = None;
                known.of_sessions.retain(|schema, _| catalog.leaves_to_session(schema));
                known.catalog = Arc::new(catalog);
                known.read = Some(changes);
                (known.attempted, known.listener) = (Some((Instant::now(), changes, listener)), listener);
                self.definitions.forget_read(changes.doubts);
            }
            Err(error) => {
                if known.failure.as_ref() != Some(&error) {
                    tracing::warn!(database = self.fence.name(), %error, "catalog_unreadable");
                }
                known.failure = Some(error);
            }
        }
    }

    /// Logs once which fenced tables are missing, and which have been created. If nothing is fenced, logs that for the
    /// database.
    fn report_missing(&self, policies: &PolicySet, catalog: &Catalog, missing: &mut HashSet<QualifiedName>) {
        let before = std::mem::take(missing);
        if self.is_unconcerned() {
            return;
        }
        let database = self.fence.name();
        for resource in &policies.resources {
            for table in resource.tables.iter().filter(|it| it.is_expected_in(database)).map(|table| &table.name) {
                let (resource, was_missing) = (&resource.name, before.contains(table));
                if !catalog.has(table) {
                    if !was_missing {
                        tracing::warn!(database, resource, %table, "fenced_table_missing");
                    }
                    missing.insert(table.clone());
                } else if was_missing {
                    tracing::info!(database, resource, %table, "fenced_table_found");
                }
            }
        }
    }

    /// Returns true if [`Self::catch_up_with`] would read the catalog or wait for a reading in progress. A taken lock
    /// proves neither: a session may hold it only to find that the last reading just failed, and two such sessions
    /// would wait for each other in turn.
    pub fn is_unread(&self, wanted: &CatalogRequest) -> bool {
        let known = self.known.lock();
        if !self.is_read(&known, wanted.since) || !wanted.is_plain && !self.is_listening(&known) {
            return known.is_untried(self.fence.listener()) || known.under_way.strong_count() > 0;
        }
        known.lacks_dependencies(wanted) || known.lacking_session(wanted).is_some()
    }

    /// True if every change that may concern fenced tables has been read. A change that was harmless by itself may lead
    /// to an object that a session is defining.
    fn is_read(&self, known: &CatalogState, since: Changes) -> bool {
        let has_all = |read: Changes| read.all >= since.all || self.definitions.is_empty();
        known.read.is_some_and(|read| read.doubts >= since.doubts && has_all(read))
    }

    /// True if the connection that listened to other proxies during the reading still does. Required even if no table
    /// was fenced then, because the first may be added at any time. A database without the schema never has such a
    /// connection.
    fn is_listening(&self, known: &CatalogState) -> bool {
        let listener = self.fence.listener();
        self.fence.is_unprepared() || listener != 0 && listener == known.listener
    }

    /// Returns true if the catalog may have changed since it was read, and no recent attempt was made to read it.
    pub(super) fn is_due(&self) -> bool {
        let (known, listener) = (self.known.lock(), self.fence.listener());
        let is_another = listener != 0 && listener != known.listener;
        (known.read != Some(known.seen) || is_another || !self.is_listening(&known)) && known.is_untried(listener)
    }

    /// Returns true if the last attempt to read the catalog was a while ago.
    pub(super) fn is_old(&self) -> bool {
        self.known.lock().attempted.is_none_or(|(at, ..)| at.elapsed() > FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::super::follow::receive_changes;
    use super::*;
    use crate::metrics::Metrics;
    use fencegate_fence::Database;
    use fencegate_fence::background::Background;
    use fencegate_fence::session::Identity;
    use fencegate_fence::simulated::Server;
    use fencegate_policy::PolicySet;
    use tokio::sync::watch;

    fn database() -> Arc<SharedDatabase> {
        let [backend_start, system_identifier, postmaster_start] = [const { String::new() }; 3];
        let process = Identity { pid: 1, backend_start, system_identifier, postmaster_start };
        let (server, metrics) = (Server::new(0, &process, []), Arc::new(Metrics::new().unwrap()));
        let fence = Database::over(
            |it| server.store("one", it),
            "postgres",
            "one",
            fencegate_fence::Authority::new(Background::current()),
            metrics.fence.clone(),
            Background::current(),
        );
        let policies = watch::Sender::new(Arc::new(PolicySet::default()));
        SharedDatabase::new(fence, policies.subscribe(), metrics)
    }

    /// Otherwise, two sessions that both found the lock taken could wait for each other without end.
    #[tokio::test]
    async fn a_session_waits_only_for_a_catalog_read() {
        let database = database();
        database.forget_catalog();
        let wanted = CatalogRequest { since: database.changes(), temporary: None, cascades: false, is_plain: true };
        assert!(database.is_unread(&wanted), "no attempt was made");
        let another_looks = database.reading.lock().await;
        let failed = (Instant::now(), wanted.since, database.fence.listener());
        database.known.lock().attempted = Some(failed);
        assert!(!database.is_unread(&wanted), "the reading has failed a moment ago");
        let reading = Arc::new(());
        database.known.lock().under_way = Arc::downgrade(&reading);
        assert!(database.is_unread(&wanted), "a reading is under way");
        drop((reading, another_looks));
        assert!(!database.is_unread(&wanted), "the reading is over");
    }

    /// Announcements that arrive while the receiver is stopped are not repeated.
    #[tokio::test(start_paused = true)]
    async fn a_restarted_receiver_assumes_a_change() {
        let database = database();
        let before = database.changes();
        let receiver = tokio::spawn(receive_changes(Arc::downgrade(&database)));
        tokio::task::yield_now().await;
        receiver.abort();
        assert!(!before.has(database.changes()));
    }
}
