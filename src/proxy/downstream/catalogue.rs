//! What is known of a database's catalogue, and following its changes.
//!
//! Owns whether what was read still counts. Must never take a reading for current that a change overtook.

use super::{Downstream, FRESH};
use crate::fence::{Catalogue, Hindrance};
use crate::policy::{PolicySet, QualifiedName};
use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Announcements that the catalogue has changed are heard at most this often.
const ANNOUNCEMENTS: Duration = Duration::from_millis(250);

/// The catalogue is read again after this time without an announcement: whoever changed it may have been killed before
/// saying so, or be no proxy.
const UNANNOUNCED: Duration = Duration::from_secs(10);

/// What has been read of a database's catalogue.
#[derive(Default)]
pub(super) struct Known {
    /// As last read; what cannot be read anew stays.
    pub(super) catalogue: Arc<Catalogue>,
    /// Nothing has changed since that may have to do with fenced tables, as far as the proxy saw.
    current: bool,
    /// Counts the changes seen: a reading that one overtook does not have it.
    changes: u64,
    /// Counts those that may have to do with fenced tables: a reading that one overtook is not current.
    doubts: u64,
    /// The changes that it has.
    read: u64,
    /// When a reading began last, and which changes had been seen then.
    pub(super) attempted: Option<(Instant, u64)>,
    /// The control connection that listened then: one that began later may have missed what changed in between.
    listener: u64,
    /// Why the last reading failed, if it did.
    failure: Option<Hindrance>,
    /// The fenced tables that do not exist: the log has said so.
    missing: HashSet<QualifiedName>,
}

/// What is known of a database's catalogue at a moment.
pub struct Seen {
    /// As last read.
    pub catalogue: Arc<Catalogue>,
    /// Nothing has changed since that may have to do with fenced tables.
    pub is_current: bool,
    /// How many such changes there were until now.
    pub doubts: u64,
    /// Why it could not be read last, where it is not current.
    pub unread: Option<Hindrance>,
}

impl Known {
    /// What has to do with fenced tables may have changed since.
    fn is_doubtful(&self, listener: u64) -> bool {
        !self.current || listener != 0 && listener != self.listener
    }

    /// Nobody has tried to read it since the last change, or only a while ago.
    fn is_untried(&self) -> bool {
        self.attempted.is_none_or(|(at, changes)| changes != self.changes || at.elapsed() > FRESH)
    }
}

impl Downstream {
    /// Keeps what is known of the catalogue up to date, for as long as the proxy runs.
    pub fn follow(self: &Arc<Self>) {
        tokio::spawn(follow_catalogue(self.clone()));
        tokio::spawn(follow_harmless_changes(self.clone()));
    }

    /// What is known of the catalogue.
    pub fn catalogue(&self) -> Seen {
        let known = self.known();
        let is_current = self.is_current(&known);
        let unread = known.failure.as_ref().filter(|_| !is_current).cloned();
        Seen { catalogue: known.catalogue.clone(), is_current, doubts: known.doubts, unread }
    }

    /// The catalogue has changed: until it is read, any relation may be fenced.
    pub fn forget_catalogue(&self) {
        let mut known = self.known();
        known.current = false;
        known.changes += 1;
        known.doubts += 1;
    }

    /// The catalogue has changed in a way that had nothing to do with fenced tables when there were so many doubts. False
    /// if there are more by now.
    pub fn note_harmless_change(&self, doubts: u64) -> bool {
        let mut known = self.known();
        let is_harmless = known.doubts == doubts;
        known.changes += u64::from(is_harmless);
        drop(known);
        if is_harmless {
            self.harmless_change.notify_one();
        }
        is_harmless
    }

    /// The catalogue may have changed without a sign: it is due, and what was read before counts until then.
    fn suppose_change(&self) {
        self.known().changes += 1;
    }

    /// Reads the catalogue, if it is due. Cancel-safe: it is due again after a while.
    pub async fn catch_up(&self) {
        let _turn = self.reading.lock().await;
        if self.is_due() {
            self.read_catalogue().await;
        }
    }

    /// Reads the catalogue. While it cannot be read, what was read before stays. Cancel-safe, as [`Self::catch_up`].
    pub(super) async fn read_catalogue(&self) {
        let policies = self.policies.borrow().clone();
        let listener = self.fence.listener();
        let (changes, doubts) = {
            let mut known = self.known();
            known.attempted = Some((Instant::now(), known.changes));
            (known.changes, known.doubts)
        };
        let tables: Vec<_> = policies
            .resources
            .iter()
            .flat_map(|resource| resource.tables.iter().map(|table| (&**resource, table)))
            .collect();
        let read = self.fence.catalogue(&tables).await;
        let mut known = self.known();
        match read {
            Ok(catalogue) => {
                for resource in policies.resources.iter().filter(|resource| catalogue.may_have(resource)) {
                    self.metrics.expect_writes(self.fence.name(), &resource.name, resource.mode.name());
                }
                self.tell_missing(&policies, &catalogue, &mut known.missing);
                known.failure = None;
                known.catalogue = Arc::new(catalogue);
                known.current = known.doubts == doubts;
                known.read = changes;
                // The first connection that listens is opened for the reading itself, before it.
                known.listener = if listener == 0 { self.fence.listener() } else { listener };
            }
            Err(error) => {
                if known.failure.as_ref() != Some(&error) {
                    tracing::warn!(database = self.fence.name(), %error, "catalogue_unreadable");
                }
                known.failure = Some(error);
            }
        }
    }

    /// Says once which fenced tables do not exist, and which have come. Where nothing at all is fenced, that is said of
    /// the database.
    fn tell_missing(&self, policies: &PolicySet, catalogue: &Catalogue, missing: &mut HashSet<QualifiedName>) {
        let before = std::mem::take(missing);
        if self.is_unconcerned() {
            return;
        }
        let database = self.fence.name();
        for resource in &policies.resources {
            for table in resource.tables.iter().map(|table| &table.name) {
                let (resource, was_missing) = (&resource.name, before.contains(table));
                if !catalogue.has(table) {
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

    /// It is worth waiting for [`Self::catch_up`].
    pub fn is_unread(&self) -> bool {
        let known = self.known();
        let is_current = self.is_current(&known);
        let is_doubtful = !is_current || known.is_doubtful(self.fence.listener());
        is_doubtful && known.is_untried() || !is_current && self.reading.try_lock().is_err()
    }

    /// Nothing that has not been read may have to do with fenced tables. What was harmless by itself may lead to what
    /// somebody is defining.
    fn is_current(&self, known: &Known) -> bool {
        known.current && (known.read == known.changes || self.suspects.is_empty())
    }

    /// The catalogue has changed, or may have, since it was read; and nobody has tried to read it since, or only a
    /// while ago.
    pub(super) fn is_due(&self) -> bool {
        let known = self.known();
        (known.is_doubtful(self.fence.listener()) || known.read != known.changes) && known.is_untried()
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the catalogue when somebody else says that it has changed, at most once in a while: anybody can say so. And now
/// and then in case nobody said so: writes need not wait for that.
async fn follow_catalogue(database: Arc<Downstream>) {
    loop {
        match timeout(UNANNOUNCED, database.fence.catalogue_announced()).await {
            Ok(()) => database.forget_catalogue(),
            // Whoever comes to listen reads it anyway.
            Err(_) if database.fence.listener() == 0 => continue,
            Err(_) => database.suppose_change(),
        }
        // No connection is opened to a database in which this proxy has no sessions: it may be about to be dropped.
        if database.fence.has_sessions() {
            database.catch_up().await;
        }
        tokio::time::sleep(ANNOUNCEMENTS).await;
    }
}

/// Reads the catalogue after changes that have nothing to do with fenced tables, for those that build on them later: here,
/// and in other proxies. At most once in a while: nobody waits for it.
async fn follow_harmless_changes(database: Arc<Downstream>) {
    loop {
        database.harmless_change.notified().await;
        if database.fence.has_sessions() {
            database.catch_up().await;
            database.fence.announce_catalogue().await;
        }
        tokio::time::sleep(ANNOUNCEMENTS).await;
    }
}
