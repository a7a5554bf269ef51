//! Pending definitions of all sessions of a database: relations that open transactions may have turned into paths to
//! fenced tables.
//!
//! Must never withdraw a session's definitions before its transaction has ended and the catalog is forgotten: a session
//! that checks here first and the catalog second finds the definitions in one of the two.

use fencegate_session::pending_definitions::PendingDefinitions;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pending definitions of all sessions of a database that may concern fenced tables. Sessions that only name fenced
/// tables have none.
#[derive(Debug, Default)]
pub struct AllDefinitions {
    all: Mutex<All>,
    /// Number of entries. While it is 0, readers do not take the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct All {
    by_session: BTreeMap<u64, Arc<PendingDefinitions>>,
    /// Definitions of transactions that ended since the catalog was read, each with the count of doubts at that end: a
    /// statement that precedes the end may be judged by an older reading.
    ended: Vec<(u64, Arc<PendingDefinitions>)>,
    /// The catalog was read as of this count of doubts.
    read: u64,
}

/// Maximum number of ended transactions. If there are more, all names are suspect.
const MOST_ENDED: usize = 1024;

impl AllDefinitions {
    /// Publishes the pending definitions of a session.
    pub fn publish(&self, session: u64, definitions: &PendingDefinitions) {
        self.change(|all| {
            all.by_session.insert(session, Arc::new(definitions.clone()));
        });
    }

    /// Withdraws a session's definitions. They count until the catalog is read as of this count of doubts. If they failed,
    /// or another session was faster, it was read already, and the next reading may be far off.
    pub fn withdraw(&self, session: u64, doubts: u64) {
        self.change(|all| {
            let withdrawn = all.by_session.remove(&session);
            let Some(definitions) = withdrawn.filter(|definitions| !definitions.is_empty() && doubts > all.read) else {
                return;
            };
            if all.ended.len() < MOST_ENDED {
                all.ended.push((doubts, definitions));
            } else {
                all.ended = vec![(doubts, Arc::new(PendingDefinitions::everything()))];
            }
        });
    }

    /// Removes definitions that the catalog includes, because it was read as of this count of doubts.
    pub fn forget_read(&self, doubts: u64) {
        self.change(|all| {
            all.read = all.read.max(doubts);
            all.ended.retain(|(since, _)| *since > doubts);
        });
    }

    fn change(&self, how: impl FnOnce(&mut All)) {
        let mut all = self.all.lock();
        how(&mut all);
        self.count.store(all.by_session.len() + all.ended.len(), Ordering::SeqCst);
    }

    /// True if no session is defining anything that may concern fenced tables.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Pending definitions of each other session.
    pub fn except(&self, session: u64) -> Vec<Arc<PendingDefinitions>> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.all.lock();
        let open = all.by_session.iter().filter(|(other, _)| **other != session).map(|(_, definitions)| definitions);
        open.chain(all.ended.iter().map(|(_, definitions)| definitions)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement that precedes the end is judged by a catalog read before the end.
    #[test]
    fn ended_definitions_count_until_they_are_read() {
        let all = AllDefinitions::default();
        all.publish(1, &PendingDefinitions::everything());
        assert_eq!((all.except(1).len(), all.except(2).len()), (0, 1));
        all.withdraw(1, 3);
        // Includes its own definitions: its next statement comes later and is judged by a later reading.
        assert_eq!((all.except(1).len(), all.except(2).len()), (1, 1));
        all.forget_read(2);
        assert!(!all.is_empty());
        all.forget_read(3);
        assert!(all.is_empty() && all.except(2).is_empty());
    }

    /// Definitions that failed leave no doubt. For others, a reading can be complete before their session withdraws them.
    #[test]
    fn ended_definitions_do_not_count_if_they_were_read_before() {
        let all = AllDefinitions::default();
        all.publish(1, &PendingDefinitions::everything());
        all.forget_read(3);
        assert!(!all.is_empty());
        all.withdraw(1, 3);
        assert!(all.is_empty());
    }

    #[test]
    fn too_many_ended_definitions_are_merged() {
        let all = AllDefinitions::default();
        for session in 1..=MOST_ENDED as u64 + 1 {
            all.publish(session, &PendingDefinitions::everything());
            all.withdraw(session, session);
        }
        assert_eq!(all.except(0).len(), 1);
        all.forget_read(MOST_ENDED as u64);
        assert!(!all.is_empty());
    }
}
