//! What the sessions of a database are defining: the suspects of each, for all of them. A write that waits for the lock of
//! a definition was judged before the commit and runs after it.
//!
//! Owns how long they count. Must never withdraw one before its transaction has ended and the catalogue is forgotten:
//! whoever looks here first, and at the catalogue then, finds it in one of the two.

use super::shared::Downstream;
use super::suspects::Suspects;
use crate::fence::Catalogue;
use crate::policy::PolicySet;
use crate::statement::Statement;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The suspects of all sessions of a database that have some.
#[derive(Debug, Default)]
pub struct AllSuspects {
    by_session: Mutex<HashMap<u64, Arc<Suspects>>>,
    /// How many they are. Where nobody defines anything, nobody takes the lock.
    sessions: AtomicUsize,
}

impl AllSuspects {
    fn publish(&self, session: u64, suspects: &Suspects) {
        let mut by_session = self.lock();
        by_session.insert(session, Arc::new(suspects.clone()));
        self.sessions.store(by_session.len(), Ordering::SeqCst);
    }

    fn withdraw(&self, session: u64) {
        let mut by_session = self.lock();
        by_session.remove(&session);
        self.sessions.store(by_session.len(), Ordering::SeqCst);
    }

    fn except(&self, session: u64) -> Vec<Arc<Suspects>> {
        if self.sessions.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        self.lock().iter().filter(|(other, _)| **other != session).map(|(_, suspects)| suspects.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Suspects>>> {
        self.by_session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one session is defining.
pub struct Definitions {
    downstream: Arc<Downstream>,
    session: u64,
    own: Suspects,
}

impl Definitions {
    /// Of a session that has defined nothing.
    pub fn new(downstream: Arc<Downstream>, session: u64) -> Self {
        Self { downstream, session, own: Suspects::default() }
    }

    /// What this session is defining.
    pub fn own(&self) -> &Suspects {
        &self.own
    }

    /// What each of the others is defining. To be asked before the catalogue is.
    pub fn of_others(&self) -> Vec<Arc<Suspects>> {
        self.downstream.suspects.except(self.session)
    }

    /// A statement is about to be forwarded: see [`Suspects::note`].
    pub fn note(&mut self, statement: &Statement, policies: &PolicySet, catalogue: &Catalogue, is_current: bool) {
        if self.own.note(statement, policies, catalogue, is_current) {
            self.downstream.suspects.publish(self.session, &self.own);
        }
    }

    /// The transaction has ended, and the catalogue was forgotten since.
    pub fn withdraw(&mut self) {
        if !self.own.is_empty() {
            self.own = Suspects::default();
            self.downstream.suspects.withdraw(self.session);
        }
    }
}

impl Drop for Definitions {
    /// Of a session that could not see its last transaction end.
    fn drop(&mut self) {
        if !self.own.is_empty() {
            self.downstream.forget_catalogue();
            self.withdraw();
        }
    }
}
