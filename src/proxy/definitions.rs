//! What the sessions of a database are defining: the suspects of each, for all of them. A write that waits for the lock of
//! a definition was judged before the commit and runs after it; and a commit may be done before the proxy sees it.
//!
//! Owns how long they count, and whether a transaction leaves it in doubt which relations lead to fenced tables. Must never
//! withdraw one before its transaction has ended and the catalogue is forgotten: whoever looks here first, and at the
//! catalogue then, finds it in one of the two.

use super::downstream::{Downstream, Seen};
use super::suspects::Suspects;
use super::touched::touched;
use crate::policy::PolicySet;
use crate::statement::{RelationName, Statement};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The suspects of all sessions of a database whose open definitions may have to do with fenced tables. Of one that only
/// names them there are none.
#[derive(Debug, Default)]
pub struct AllSuspects {
    all: Mutex<All>,
    /// How many they are. Where nobody defines anything, nobody takes the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct All {
    by_session: HashMap<u64, Arc<Suspects>>,
    /// Of transactions that have ended since the catalogue was read, with the doubts that there were then: who came before
    /// that is judged by what was read.
    ended: Vec<(u64, Arc<Suspects>)>,
}

/// More that have ended are all names.
const MOST_ENDED: usize = 1024;

impl AllSuspects {
    fn publish(&self, session: u64, suspects: &Suspects) {
        self.change(|all| {
            all.by_session.insert(session, Arc::new(suspects.clone()));
        });
    }

    /// They count until the catalogue was read with as many doubts as there are now.
    fn withdraw(&self, session: u64, doubts: u64) {
        self.change(|all| {
            let Some(suspects) = all.by_session.remove(&session).filter(|suspects| !suspects.is_empty()) else {
                return;
            };
            if all.ended.len() < MOST_ENDED {
                all.ended.push((doubts, suspects));
            } else {
                all.ended = vec![(doubts, Arc::new(Suspects::everything()))];
            }
        });
    }

    /// The catalogue was read when there were so many doubts.
    pub fn forget_read(&self, doubts: u64) {
        self.change(|all| all.ended.retain(|(since, _)| *since > doubts));
    }

    fn change(&self, how: impl FnOnce(&mut All)) {
        let mut all = self.lock();
        how(&mut all);
        self.count.store(all.by_session.len() + all.ended.len(), Ordering::SeqCst);
    }

    /// No session is defining anything that may have to do with fenced tables.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn except(&self, session: u64) -> Vec<Arc<Suspects>> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.lock();
        let open = all.by_session.iter().filter(|(other, _)| **other != session).map(|(_, suspects)| suspects);
        open.chain(all.ended.iter().map(|(_, suspects)| suspects)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one session is defining.
pub struct Definitions {
    downstream: Arc<Downstream>,
    session: u64,
    own: Suspects,
    /// The doubts that there were when the first of them was forwarded.
    since: Option<u64>,
    /// One of them names a fenced table or what leads to one, or it was not known what does.
    names_fences: bool,
    /// Others were defining what may have to do with fenced tables: this may build on that.
    beside_others: bool,
    /// One of them does not name all that it changes.
    unnamed: bool,
    /// One of them may stand before the catalogue's own operators or types in what tells a key.
    shadow_keys: bool,
}

impl Definitions {
    /// Of a session that has defined nothing.
    pub fn new(downstream: Arc<Downstream>, session: u64) -> Self {
        let own = Suspects::default();
        Self {
            downstream,
            session,
            own,
            since: None,
            names_fences: false,
            beside_others: false,
            unnamed: false,
            shadow_keys: false,
        }
    }

    /// What this session is defining.
    pub fn own(&self) -> &Suspects {
        &self.own
    }

    /// Some were forwarded, and it is not known yet what became of them.
    pub fn are_under_way(&self) -> bool {
        self.since.is_some() || !self.own.is_empty()
    }

    /// What each of the others is defining. To be asked before the catalogue is.
    pub fn of_others(&self) -> Vec<Arc<Suspects>> {
        self.downstream.suspects.except(self.session)
    }

    /// A statement is about to be forwarded that was judged by what was seen: see [`Suspects::note`].
    pub fn note(&mut self, statement: &Statement, policies: &PolicySet, seen: &Seen) {
        let was_published = self.count_for_others();
        let others = self.of_others();
        if statement.changes_catalogue {
            self.since.get_or_insert(seen.doubts);
            self.names_fences |= !seen.is_current || names_fences(statement, policies, seen);
            self.beside_others |= !others.is_empty();
            self.shadow_keys |= policies.has_keys() && statement.may_shadow_key_types();
            // Nor does it name what it calls.
            self.unnamed |=
                statement.changes_unnamed || seen.catalogue.has_event_triggers() || policies.has_functions();
        }
        let are_more = self.own.note(statement, policies, &seen.catalogue, seen.is_current, &others);
        if are_more || self.count_for_others() != was_published {
            self.downstream.suspects.publish(self.session, &self.own);
        }
    }

    /// Until the transaction ends, the catalogue says less about fenced tables than there is. What it has changed without
    /// naming it does not count: who may run that here could as well have done there what comes next.
    pub fn concern_fences(&self) -> bool {
        self.names_fences || self.shadow_keys || !self.own.is_empty()
    }

    /// Within this transaction the text does not tell which operators and types tell a key.
    pub fn shadow_keys(&self) -> bool {
        self.shadow_keys
    }

    /// What others define meanwhile is not harmless.
    fn count_for_others(&self) -> bool {
        self.concern_fences() || self.beside_others
    }

    /// The transaction has changed the catalogue, and is about to be withdrawn. True if that has nothing to do with fenced
    /// tables: neither by itself, nor together with what others have defined since or are defining.
    pub fn pass_as_harmless(&self) -> bool {
        let is_all_known = !self.unnamed && !self.count_for_others();
        // In this order: who is no longer among the others has left a doubt.
        is_all_known
            && self.of_others().is_empty()
            && self.since.is_some_and(|since| self.downstream.note_harmless_change(since))
    }

    /// The transaction has ended, and the catalogue was forgotten since, or need not be.
    pub fn withdraw(&mut self) {
        if self.count_for_others() {
            self.downstream.suspects.withdraw(self.session, self.downstream.changes().doubts);
        }
        self.own = Suspects::default();
        (self.since, self.names_fences, self.beside_others, self.unnamed) = (None, false, false, false);
        self.shadow_keys = false;
    }
}

/// It names a fenced table, or what leads to one. Whether what it redirects is suspect is told apart.
fn names_fences(statement: &Statement, policies: &PolicySet, seen: &Seen) -> bool {
    let is_concerned = |relation: &RelationName| {
        policies.tables_called(relation).next().is_some() || seen.catalogue.leads_from(relation)
    };
    let written = statement.writes.iter().map(|write| &write.relation);
    let redirected = statement.redirects.iter().map(|redirect| &redirect.relation);
    written.chain(redirected).chain(&statement.defines).any(is_concerned)
        || !touched(statement, policies, &seen.catalogue, seen.dependencies.as_deref()).is_empty()
}

impl Drop for Definitions {
    /// Of a session that could not see its last transaction end.
    fn drop(&mut self) {
        if self.are_under_way() {
            self.downstream.forget_catalogue();
            self.withdraw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement that came before that is judged by a reading from before that.
    #[test]
    fn what_has_ended_counts_until_it_is_read() {
        let all = AllSuspects::default();
        all.publish(1, &Suspects::everything());
        assert_eq!((all.except(1).len(), all.except(2).len()), (0, 1));
        all.withdraw(1, 3);
        // Also for itself: its next statement came later, and is judged by what was read later.
        assert_eq!((all.except(1).len(), all.except(2).len()), (1, 1));
        all.forget_read(2);
        assert!(!all.is_empty());
        all.forget_read(3);
        assert!(all.is_empty() && all.except(2).is_empty());
    }

    #[test]
    fn too_many_that_have_ended_are_one() {
        let all = AllSuspects::default();
        for session in 0..=MOST_ENDED as u64 {
            all.publish(session, &Suspects::everything());
            all.withdraw(session, session);
        }
        assert_eq!(all.except(0).len(), 1);
        all.forget_read(MOST_ENDED as u64 - 1);
        assert!(!all.is_empty());
    }
}
