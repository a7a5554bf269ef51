//! Permits to parse texts that may take long. They are few, and each login role has a share of them.
//!
//! Owns the queue of waiting sessions: first come, first served, within each role's share. Must never let one role have
//! all permits, however many sessions it has.

use fencegate_session::task::ParsePermit;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;

/// All permits of one kind.
pub struct ParsePermits {
    all: Arc<Semaphore>,
    /// The share of a role. Its other sessions wait in a separate queue, not in front of other roles.
    of_each: usize,
    /// Shares of the roles that hold a permit or wait for one, by login role.
    roles: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// True if the permits are for parsing in another process.
    apart: bool,
}

impl ParsePermits {
    /// Creates `all` permits. One role may use all but one of them, and at least one.
    pub fn new(all: usize, apart: bool) -> Self {
        let of_each = all.saturating_sub(1).max(1);
        ParsePermits { all: Arc::new(Semaphore::new(all)), of_each, roles: Mutex::default(), apart }
    }

    /// Returns a permit for a session of the role if one is free.
    pub fn try_take(&self, role: &str) -> Option<ParsePermit> {
        let of_role = self.of(role).try_acquire_owned().ok()?;
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        Some(ParsePermit::new((of_all, of_role), self.apart))
    }

    /// Waits for a permit. Cancel-safe.
    pub fn take(&self, role: &str) -> impl Future<Output = Option<ParsePermit>> + Send + use<> {
        let (of_role, of_all, apart) = (self.of(role), self.all.clone(), self.apart);
        async move {
            let of_role = of_role.acquire_owned().await.ok()?;
            let of_all = of_all.acquire_owned().await.ok()?;
            Some(ParsePermit::new((of_all, of_role), apart))
        }
    }

    fn of(&self, role: &str) -> Arc<Semaphore> {
        let mut roles = self.roles.lock();
        if let Some(known) = roles.get(role).and_then(Weak::upgrade) {
            return known;
        }
        roles.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.of_each));
        roles.insert(role.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_role_never_has_all_permits() {
        let permits = ParsePermits::new(3, false);
        let taken: Vec<_> = (0..10).filter_map(|_| permits.try_take("stranger")).collect();
        assert_eq!(taken.len(), 2);
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(permits.take("stranger"))).collect();
        assert!(waiting.iter_mut().all(|it| it.now_or_never().is_none()));
        let leader = permits.try_take("leader");
        assert!(leader.is_some());
        // The leader's next session does not wait behind the stranger's.
        let mut next = Box::pin(permits.take("leader"));
        assert!((&mut next).now_or_never().is_none());
        drop(leader);
        assert!(next.now_or_never().flatten().is_some());
    }

    #[test]
    fn roles_without_permits_are_forgotten() {
        let permits = ParsePermits::new(3, false);
        for number in 0..100 {
            drop(permits.try_take(&number.to_string()));
        }
        assert_eq!(permits.roles.lock().len(), 1);
    }
}
