//! A database's epochs as this process remembers them, pending notifications, and the epochs that their issuer has confirmed
//! since the current server accepts writes.
//!
//! Only epoch rows that were read change the memory. A notification only means "read again", because any role can send one.
//! Memory lags behind the database. A promoted standby and a restored backup may lack the last epochs. A server that accepts
//! writes loses none and never changes its timeline until its postmaster ends, so a confirmation is valid for one postmaster.
//!
//! Must never keep a confirmation from another postmaster, nor count a query of the issuer that began before Admit has seen
//! this one accept writes.

use super::session::{Epoch, Identity, Token};
use super::store::Listener;
use fencegate_policy::{Issuer, Resource};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Time for which a verdict from memory is valid without confirmation by the database.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of unread notifications. More are replaced by "read everything again".
const MOST_NEWS: usize = 1024;
/// Number of epoch changes that are kept, the latest ones.
const MAX_EPOCH_CHANGES: usize = 100;

/// The epochs last read, and whether they can be used.
#[derive(Debug, Default)]
pub(super) struct Memory {
    epochs: Mutex<Recent<KnownEpoch>>,
    /// The serial number of the listening connection. 0: no connection listens, and no verdict comes from memory.
    listener: AtomicU64,
    /// The connection that began to listen last, even if it no longer listens.
    last_listener: AtomicU64,
    news: Mutex<News>,
    /// The epochs that their issuer has confirmed on the current server.
    pub(super) confirmed: Confirmed,
    pub(super) wake: tokio::sync::Notify,
    /// Notified when an epoch was read that differs from the remembered one.
    pub(super) changed: tokio::sync::Notify,
    /// Notified when a catalog change was announced.
    pub(super) catalog: tokio::sync::Notify,
    /// The latest last.
    epoch_changes: Mutex<VecDeque<EpochChange>>,
}

/// A fence was raised, by any proxy, or reset.
#[derive(Clone, Debug)]
pub struct EpochChange {
    /// When this proxy read the new epoch.
    pub time: SystemTime,
    /// The resource.
    pub resource: String,
    /// The epoch that this proxy knew before, if any.
    pub before: Option<Epoch>,
    /// The epoch now.
    pub after: Epoch,
}

/// An epoch, and when it was read.
type KnownEpoch = (Epoch, Instant);

#[derive(Debug, Default)]
pub(super) struct News {
    /// Read everything again: notifications may have been missed.
    pub(super) all: bool,
    pub(super) resources: BTreeSet<String>,
    /// Elections whose leases have changed.
    pub(super) leases: BTreeSet<String>,
}

impl Memory {
    /// Remembers an epoch row that was just read. The last reader wins, even with a lower
    /// epoch: after a restore, the lower epoch is the correct one.
    pub(super) fn learn(&self, resource: &str, epoch: Epoch) {
        let before = self.epochs.lock().insert(resource, (epoch, Instant::now()));
        if before.is_none_or(|(before, _)| before != epoch) {
            self.changed.notify_one();
        }
        // The first epoch read for a resource may be old, so it does not count as a change.
        if let Some((before, _)) = before.filter(|it| it.0 != epoch) {
            self.record_epoch_change(resource, Some(before), epoch);
        }
    }

    /// Records that the fence was raised to this epoch. Ignores repeated reports.
    pub(super) fn record_epoch_change(&self, resource: &str, before: Option<Epoch>, after: Epoch) {
        let mut changes = self.epoch_changes.lock();
        if changes.iter().any(|it| it.resource == resource && it.after == after) {
            return;
        }
        if changes.len() >= MAX_EPOCH_CHANGES {
            changes.pop_front();
        }
        changes.push_back(EpochChange { time: SystemTime::now(), resource: resource.to_owned(), before, after });
    }

    /// The latest last.
    pub(super) fn epoch_changes(&self) -> Vec<EpochChange> {
        self.epoch_changes.lock().iter().cloned().collect()
    }

    /// Records that the resource has no epoch row (any more).
    pub(super) fn forget(&self, resource: &str) {
        self.epochs.lock().remove(resource);
    }

    /// The remembered epoch, if it is valid and above the token.
    pub(super) fn above(&self, resource: &str, token: Token) -> Option<Epoch> {
        let (epoch, confirmed) = self.epochs.lock().get(resource).copied()?;
        let believed = self.listener.load(Ordering::Acquire) != 0 && confirmed.elapsed() < CONFIRMED_FOR;
        (believed && token < epoch.token).then_some(epoch)
    }

    /// Returns true if the epoch last read has a lower token. The current epoch may differ.
    pub(super) fn is_below(&self, resource: &str, token: Token) -> bool {
        self.epochs.lock().get(resource).is_some_and(|known| known.0.token < token)
    }

    /// Returns true if the epoch last read has this token.
    pub(super) fn is_current(&self, resource: &str, token: Token) -> bool {
        self.epochs.lock().get(resource).is_some_and(|known| known.0.token == token)
    }

    /// The epoch last read. The current epoch may differ.
    pub(super) fn last_read(&self, resource: &str) -> Option<Epoch> {
        self.epochs.lock().get(resource).map(|(epoch, _)| *epoch)
    }

    /// The number of the listening connection, which may have missed earlier notifications. 0: none listens.
    pub(super) fn listener(&self) -> u64 {
        self.listener.load(Ordering::Acquire)
    }

    /// The number of the connection that began to listen last. 0: none has yet.
    pub(super) fn last_listener(&self) -> u64 {
        self.last_listener.load(Ordering::Acquire)
    }

    fn note(&self, of: fn(&mut News) -> &mut BTreeSet<String>, name: &str) {
        let mut news = self.news.lock();
        if of(&mut news).len() < MOST_NEWS {
            of(&mut news).insert(name.to_owned());
        } else {
            news.all = true;
        }
        drop(news);
        self.wake.notify_one();
    }

    /// Requests that everything is read again, because notifications may have been missed.
    pub(super) fn request_full_read(&self) {
        self.news.lock().all = true;
    }

    /// The notifications since the last call.
    pub(super) fn take_news(&self) -> News {
        std::mem::take(&mut *self.news.lock())
    }
}

impl Listener for Memory {
    /// Forgets all epochs.
    fn listens(&self, connection: u64) {
        *self.epochs.lock() = Recent::default();
        self.last_listener.store(connection, Ordering::Release);
        self.listener.store(connection, Ordering::Release);
        self.news.lock().all = true;
        self.wake.notify_one();
    }

    fn lost(&self, connection: u64) {
        let _ = self.listener.compare_exchange(connection, 0, Ordering::AcqRel, Ordering::Acquire);
        self.wake.notify_one();
    }

    fn announced(&self, resource: &str) {
        self.note(|news| &mut news.resources, resource);
    }

    fn lease_changed(&self, election: &str) {
        self.note(|news| &mut news.leases, election);
    }

    fn catalog_changed(&self) {
        self.catalog.notify_one();
    }
}

/// Half of the maximum number of entries.
pub(super) const GENERATION: usize = 32 * 1024;

/// When `young` is full, it replaces `old`.
#[derive(Debug)]
pub(super) struct Recent<T> {
    pub(super) young: HashMap<String, T>,
    pub(super) old: HashMap<String, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<T> Recent<T> {
    pub(super) fn get(&self, resource: &str) -> Option<&T> {
        self.young.get(resource).or_else(|| self.old.get(resource))
    }

    /// Returns the previous value.
    pub(super) fn insert(&mut self, resource: &str, value: T) -> Option<T> {
        if let Some(there) = self.young.get_mut(resource) {
            return Some(std::mem::replace(there, value));
        }
        let before = self.old.remove(resource);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(resource.to_owned(), value);
        before
    }

    pub(super) fn remove(&mut self, resource: &str) {
        self.young.remove(resource);
        self.old.remove(resource);
    }
}

/// The confirmed epochs of the server that was last seen. In memory, so a new proxy process has none.
#[derive(Debug, Default)]
pub(super) struct Confirmed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    server: Option<Postmaster>,
    /// For each resource, an epoch that was confirmed, and by which issuer. All lost epochs of that issuer are below it.
    epochs: Recent<(Epoch, Issuer)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Postmaster {
    system_identifier: String,
    start: String,
}

impl Postmaster {
    fn is_of(&self, identity: &Identity) -> bool {
        self.system_identifier == identity.system_identifier && self.start == identity.postmaster_start
    }
}

impl State {
    fn is_here(&self, identity: &Identity) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_of(identity))
    }
}

impl Confirmed {
    /// Admit has seen that the server of this process accepts writes. Forgets confirmations of another server.
    pub(super) fn server_accepts_writes(&self, identity: &Identity) {
        let mut state = self.0.lock();
        if !state.is_here(identity) {
            let (system_identifier, start) = (identity.system_identifier.clone(), identity.postmaster_start.clone());
            *state = State { server: Some(Postmaster { system_identifier, start }), epochs: Recent::default() };
        }
    }

    /// Returns true if the server of this process has been seen to accept writes.
    pub(super) fn is_known(&self, identity: &Identity) -> bool {
        self.0.lock().is_here(identity)
    }

    /// Records that the resource's issuer has confirmed the epoch, in a query that began after
    /// [`Self::server_accepts_writes`]. Ignores a resource without an issuer.
    pub(super) fn confirm(&self, identity: &Identity, resource: &Resource, epoch: Epoch) {
        let mut state = self.0.lock();
        if let Some(issuer) = resource.issuer.as_ref().filter(|_| state.is_here(identity)) {
            state.epochs.insert(&resource.name, (epoch, issuer.clone()));
        }
    }

    /// Returns true if the resource's issuer has confirmed this epoch, or one below it, on the server of this process. Also if
    /// the resource has no issuer.
    pub(super) fn covers(&self, identity: &Identity, resource: &Resource, epoch: Epoch) -> bool {
        let Some(issuer) = &resource.issuer else { return true };
        let state = self.0.lock();
        state.is_here(identity) && state.epochs.get(&resource.name).is_some_and(|(it, by)| *it <= epoch && by == issuer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
