//! What the sessions of a database are defining: the suspects of each, for all of them. A write that waits for the lock of
//! a definition was judged before the commit and runs after it; and a commit may be done before the proxy sees it.
//!
//! Owns how long they count, and whether a transaction leaves it in doubt which relations lead to fenced tables. Must never
//! withdraw one before its transaction has ended and the catalogue is forgotten: whoever looks here first, and at the
//! catalogue then, finds it in one of the two.

use super::suspects::Suspects;
use super::touched::touched;
use crate::policy::PolicySet;
use crate::state::downstream::{Downstream, Seen};
use crate::statement::Statement;
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
    extent: Extent,
    /// The doubts that there were when the first of them was forwarded.
    since: u64,
    /// One of them may stand before the catalogue's own operators or types in what tells a key.
    shadow_keys: bool,
}

/// How far what a session is defining may go. What is said of one holds for those above it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    #[default]
    Nothing,
    /// It names all that it changes, which has nothing to do with fenced tables.
    Harmless,
    /// It may change what it does not name. That does not count before it is done: who may run it could as well do there
    /// what comes next.
    Unnamed,
    /// Others were defining what may have to do with fenced tables: it may build on that, and counts for others.
    BesideOthers,
    /// It names a fenced table or what leads to one, or it was not known what does: until the transaction ends, the
    /// catalogue says less about fenced tables than there is.
    Fences,
}

impl Definitions {
    /// Of a session that has defined nothing.
    pub fn new(downstream: Arc<Downstream>, session: u64) -> Self {
        let (own, extent) = (Suspects::default(), Extent::default());
        Self { downstream, session, own, extent, since: 0, shadow_keys: false }
    }

    /// What this session is defining.
    pub fn own(&self) -> &Suspects {
        &self.own
    }

    /// Some were forwarded, and it is not known yet what became of them.
    pub fn are_under_way(&self) -> bool {
        self.extent > Extent::Nothing
    }

    /// What each of the others is defining. To be asked before the catalogue is.
    pub fn of_others(&self) -> Vec<Arc<Suspects>> {
        self.downstream.suspects.except(self.session)
    }

    /// A statement is about to be forwarded that was judged by what was seen: see [`Suspects::note`].
    pub fn note(&mut self, statement: &Statement, policies: &PolicySet, seen: &Seen) {
        if !statement.changes_catalogue {
            return;
        }
        let others = self.of_others();
        let shadows = policies.has_keys() && statement.may_shadow_key_types();
        let are_more = self.own.note(statement, policies, seen, &others);
        let extent = if !seen.is_current || shadows || are_more || names_fences(statement, policies, seen) {
            Extent::Fences
        } else if !others.is_empty() {
            Extent::BesideOthers
        } else if statement.changes_unnamed || seen.catalogue.has_event_triggers() || policies.has_functions() {
            // Nor does it name what it calls.
            Extent::Unnamed
        } else {
            Extent::Harmless
        };
        if self.extent == Extent::Nothing {
            self.since = seen.doubts;
        }
        let was_published = self.count_for_others();
        self.extent = self.extent.max(extent);
        self.shadow_keys |= shadows;
        if are_more || self.count_for_others() != was_published {
            self.downstream.suspects.publish(self.session, &self.own);
        }
    }

    /// Until the transaction ends, the catalogue says less about fenced tables than there is.
    pub fn concern_fences(&self) -> bool {
        self.extent == Extent::Fences
    }

    /// Within this transaction the text does not tell which operators and types tell a key.
    pub fn shadow_keys(&self) -> bool {
        self.shadow_keys
    }

    /// What others define meanwhile is not harmless.
    fn count_for_others(&self) -> bool {
        self.extent >= Extent::BesideOthers
    }

    /// The transaction has changed the catalogue, and is about to be withdrawn. True if that has nothing to do with fenced
    /// tables: neither by itself, nor together with what others have defined since or are defining.
    pub fn pass_as_harmless(&self) -> bool {
        // In this order: who is no longer among the others has left a doubt.
        self.extent == Extent::Harmless
            && self.of_others().is_empty()
            && self.downstream.note_harmless_change(self.since)
    }

    /// The transaction has ended, and the catalogue was forgotten since, or need not be.
    pub fn withdraw(&mut self) {
        if self.count_for_others() {
            self.downstream.suspects.withdraw(self.session, self.downstream.changes().doubts);
        }
        (self.own, self.extent, self.shadow_keys) = (Suspects::default(), Extent::Nothing, false);
    }
}

/// It names a fenced table, or what leads to one. Whether what it redirects is suspect is told apart.
fn names_fences(statement: &Statement, policies: &PolicySet, seen: &Seen) -> bool {
    let written = statement.writes.iter().map(|write| &write.relation);
    let redirected = statement.redirects.iter().map(|redirect| &redirect.relation);
    written.chain(redirected).chain(&statement.defines).any(|relation| seen.concerns_fences(relation, policies))
        || !touched(statement, policies, seen).is_empty()
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
