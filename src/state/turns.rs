//! Turns to read texts that may take long. They are few, and each login role has a share of them.
//!
//! Owns the order of the waiting sessions: first come, first served, as long as the role has not used up its share. Must
//! never let one role take all turns, however many sessions it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All turns of one kind.
pub struct Turns {
    all: Arc<Semaphore>,
    /// The share of a role. Its other sessions wait in a queue of their own, not in front of other roles.
    of_each: usize,
    /// By login role: the shares of the roles that have a turn, or wait for one.
    roles: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to read a text now.
pub struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_role: OwnedSemaphorePermit,
}

impl Turns {
    /// That many turns. The share of a role is all but one of them, and one at least.
    pub fn new(all: usize) -> Self {
        Turns { all: Arc::new(Semaphore::new(all)), of_each: all.saturating_sub(1).max(1), roles: Mutex::default() }
    }

    /// A turn for a session of the role, if there is one at once.
    pub fn try_take(&self, role: &str) -> Option<Turn> {
        let of_role = self.of(role).try_acquire_owned().ok()?;
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        Some(Turn { _of_all: of_all, _of_role: of_role })
    }

    /// Waits for a turn. Cancel-safe.
    pub fn take(&self, role: &str) -> impl Future<Output = Option<Turn>> + Send + use<> {
        let (of_role, of_all) = (self.of(role), self.all.clone());
        async move {
            let of_role = of_role.acquire_owned().await.ok()?;
            let of_all = of_all.acquire_owned().await.ok()?;
            Some(Turn { _of_all: of_all, _of_role: of_role })
        }
    }

    fn of(&self, role: &str) -> Arc<Semaphore> {
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = roles.get(role).and_then(Weak::upgrade) {
            return known;
        }
        roles.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(self.of_each));
        roles.insert(role.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_role_never_has_all_turns() {
        let turns = Turns::new(3);
        let taken: Vec<_> = (0..10).filter_map(|_| turns.try_take("stranger")).collect();
        assert_eq!(taken.len(), 2);
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(turns.take("stranger"))).collect();
        assert!(waiting.iter_mut().all(|it| it.now_or_never().is_none()));
        let leader = turns.try_take("leader");
        assert!(leader.is_some());
        // Who comes next does not wait behind all that the stranger wants.
        let mut next = Box::pin(turns.take("leader"));
        assert!((&mut next).now_or_never().is_none());
        drop(leader);
        assert!(next.now_or_never().flatten().is_some());
    }

    #[test]
    fn roles_without_turns_are_forgotten() {
        let turns = Turns::new(3);
        for number in 0..100 {
            drop(turns.try_take(&number.to_string()));
        }
        assert_eq!(turns.roles.lock().unwrap().len(), 1);
    }
}
