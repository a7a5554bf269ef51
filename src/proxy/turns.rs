//! Turns to read texts that may take long: so many texts at the same time, and of each login role fewer.
//!
//! Owns who is next: the first to come, but for roles that have their share. Must never let one role have all turns,
//! however many sessions it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All turns of one kind.
pub struct Turns {
    all: Arc<Semaphore>,
    /// So many has a role at the same time, at most; what it wants more of does not wait among the others.
    of_each: usize,
    /// Those of the roles that have a turn, or wait for one.
    roles: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to read a text now.
pub struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_role: OwnedSemaphorePermit,
}

impl Turns {
    /// So many at the same time; one role has all but one of them at most.
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
    pub fn take(&self, role: &str) -> impl Future<Output = Option<Turn>> + Send + 'static {
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
