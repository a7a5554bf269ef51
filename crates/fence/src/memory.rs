//! A database's epochs as this process remembers them, and pending notifications.
//!
//! Only epoch rows that were read change the memory. A notification only means "read again", because
//! any role can send one. Memory lags behind the database, which is safe for refusals. Memory must
//! never decide that a session may write. It may forget epochs that were not read recently: a caller
//! that finds none queries the database.

use super::confirmed::Confirmed;
use super::recent::Recent;
use super::session::{Epoch, Token};
use super::store::Listener;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Time for which a verdict from memory is valid without confirmation by the database.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of unread notifications. More are replaced by "read everything again".
const MOST_NEWS: usize = 1024;
/// Maximum number of rises that are kept, the latest ones.
const MOST_RISES: usize = 100;

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
    rises: Mutex<VecDeque<Rise>>,
}

/// A fence was raised, by any proxy, or reset.
#[derive(Clone, Debug)]
pub struct Rise {
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
        // The first epoch read for a resource may be old, so it is not a rise.
        if let Some((before, _)) = before.filter(|it| it.0 != epoch) {
            self.rose(resource, Some(before), epoch);
        }
    }

    /// Records that the fence was raised to this epoch. Ignores repeated reports.
    pub(super) fn rose(&self, resource: &str, before: Option<Epoch>, after: Epoch) {
        let mut rises = self.rises.lock();
        if rises.iter().any(|it| it.resource == resource && it.after == after) {
            return;
        }
        if rises.len() >= MOST_RISES {
            rises.pop_front();
        }
        rises.push_back(Rise { time: SystemTime::now(), resource: resource.to_owned(), before, after });
    }

    /// The latest last.
    pub(super) fn rises(&self) -> Vec<Rise> {
        self.rises.lock().iter().cloned().collect()
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
    pub(super) fn suppose_news(&self) {
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

#[cfg(test)]
mod tests {
    use super::super::recent::GENERATION;
    use super::*;
    use futures_util::FutureExt;

    const FIVE: Epoch = Epoch { generation: 1, token: 5 };

    #[test]
    fn epochs_are_trusted_only_while_a_connection_listens() {
        let memory = Memory::default();
        memory.learn("r", FIVE);
        assert_eq!(memory.above("r", 4), None);
        assert_eq!((memory.listener(), memory.last_listener()), (0, 0));
        memory.listens(1);
        assert_eq!(memory.above("r", 4), None, "what was learnt before is forgotten");
        memory.learn("r", FIVE);
        assert_eq!(memory.above("r", 4), Some(FIVE));
        assert_eq!(memory.above("r", 5), None);
        assert_eq!(memory.above("other", 4), None);
        memory.lost(2);
        assert_eq!(memory.above("r", 4), Some(FIVE), "another connection's loss is none of ours");
        assert_eq!((memory.listener(), memory.last_listener()), (1, 1));
        memory.lost(1);
        assert_eq!(memory.above("r", 4), None);
        assert_eq!((memory.listener(), memory.last_listener()), (0, 1));
    }

    #[test]
    fn an_epoch_expires_without_confirmation() {
        let memory = Memory::default();
        memory.listens(1);
        memory.epochs.lock().insert("r", (FIVE, Instant::now() - CONFIRMED_FOR));
        assert_eq!(memory.above("r", 4), None);
    }

    #[test]
    fn only_a_changed_epoch_wakes_the_waiter() {
        let memory = Memory::default();
        let has_changed = || memory.changed.notified().now_or_never().is_some();
        assert!(!has_changed());
        for (epoch, changes) in [(FIVE, true), (FIVE, false), (Epoch { token: 6, ..FIVE }, true), (FIVE, true)] {
            memory.learn("r", epoch);
            assert_eq!(has_changed(), changes, "{epoch:?}");
        }
    }

    #[test]
    fn a_resource_without_an_epoch_is_forgotten() {
        let memory = Memory::default();
        memory.listens(1);
        memory.learn("r", FIVE);
        memory.forget("r");
        assert_eq!(memory.above("r", 4), None);
        assert!(!memory.is_below("r", 6) && !memory.is_current("r", 5));
    }

    #[test]
    fn recently_read_epochs_are_kept_up_to_a_limit() {
        let memory = Memory::default();
        memory.listens(1);
        let name = |number: usize| format!("shard/{number}");
        for number in 0..5 * GENERATION {
            memory.learn(&name(number), FIVE);
            memory.learn("in use", FIVE);
            let epochs = memory.epochs.lock();
            assert!(epochs.young.len() + epochs.old.len() <= 2 * GENERATION);
        }
        assert!(memory.is_current("in use", 5) && memory.is_current(&name(5 * GENERATION - 1), 5));
        assert!(memory.is_current(&name(4 * GENERATION + 1), 5));
        assert!(!memory.is_current(&name(0), 5));
    }

    #[test]
    fn each_rise_is_kept_once_up_to_a_limit() {
        let memory = Memory::default();
        let epoch = |token| Epoch { generation: 1, token };
        memory.learn("r", epoch(1));
        assert!(memory.rises().is_empty(), "it may be old");
        memory.rose("r", None, epoch(1));
        memory.learn("r", epoch(2));
        memory.rose("r", Some(epoch(1)), epoch(2));
        let rises: Vec<_> = memory.rises().iter().map(|it| (it.before, it.after)).collect();
        assert_eq!(rises, [(None, epoch(1)), (Some(epoch(1)), epoch(2))]);
        (3..300).for_each(|token| memory.learn("r", epoch(token)));
        assert_eq!((memory.rises().len(), memory.rises().last().unwrap().after), (MOST_RISES, epoch(299)));
    }

    #[test]
    fn too_many_notifications_are_merged() {
        let memory = Memory::default();
        for number in 0..2 * MOST_NEWS {
            memory.announced(&number.to_string());
        }
        let news = memory.take_news();
        assert!(news.all);
        assert_eq!(news.resources.len(), MOST_NEWS);
        assert!(!memory.take_news().all);
    }
}
