//! The memory budget for long messages, and permits to parse texts that may take long. Sessions share both, and wait for them.
//!
//! Owns the reservations, the permits, and the queues of waiting sessions. Must never
//! - reserve more than the budget, or let a session with an unused reservation block the others;
//! - let one login role have all permits, however many sessions it has.

use fencegate_session::task::{HeldRoom, ParsePermit};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};

/// The longest time that a session waits for a reservation.
const ROOM_LIMIT: Duration = Duration::from_secs(30);

/// While others wait, at least one part in `HEADWAY` of a message with a reservation has to arrive in each such
/// interval.
pub const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// At this pace a whole message takes ten seconds.
const HEADWAY: usize = 20;

/// A budget in bytes, and the sessions that wait for a part of it.
pub struct MessageBudget(Mutex<Budget>);

struct Budget {
    /// Bytes that are not reserved.
    free: usize,
    /// In the order of their arrival.
    waiting: Vec<Waiting>,
}

struct Waiting {
    bytes: usize,
    /// Bytes of the message that had arrived when the wait began. No more are read meanwhile.
    there: usize,
    sender: oneshot::Sender<Reservation>,
}

/// The right to hold a long message. Dropping it releases the bytes.
pub struct Reservation {
    budget: Arc<MessageBudget>,
    bytes: usize,
    /// Time of the last check, and the number of the message's bytes that had arrived then.
    looked: (Instant, usize),
}

impl MessageBudget {
    /// A budget of this many bytes, none of them reserved.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(MessageBudget(Mutex::new(Budget { free: bytes, waiting: Vec::new() })))
    }

    /// Reserves the size of a message immediately, or fails. `there`: bytes of it that have arrived.
    pub fn try_take(self: &Arc<Self>, bytes: usize, there: usize) -> Option<Reservation> {
        self.0.lock().take(bytes).then(|| self.room(bytes, there))
    }

    /// Waits for a reservation; None on timeout. Not in the order of the calls: see `give`. Cancel-safe.
    pub fn take(
        self: &Arc<Self>,
        bytes: usize,
        there: usize,
    ) -> impl Future<Output = Option<Reservation>> + Send + use<> {
        let mut inner = self.0.lock();
        let taken = if inner.take(bytes) {
            Ok(self.room(bytes, there))
        } else {
            let (sender, receiver) = oneshot::channel();
            inner.waiting.push(Waiting { bytes, there, sender });
            Err(receiver)
        };
        drop(inner);
        async move {
            match taken {
                Ok(room) => Some(room),
                Err(receiver) => timeout(ROOM_LIMIT, receiver).await.ok()?.ok(),
            }
        }
    }

    /// Gives free bytes to the waiting session that came last: the earlier ones may be an attacker's, made to keep
    /// memory reserved.
    fn give(self: &Arc<Self>) {
        loop {
            let mut inner = self.0.lock();
            inner.waiting.retain(|it| !it.sender.is_closed());
            let free = inner.free;
            let Some(next) = inner.waiting.iter().rposition(|it| it.bytes <= free) else { return };
            let Waiting { bytes, there, sender } = inner.waiting.remove(next);
            inner.free -= bytes;
            drop(inner);
            // The session has ended. Dropping the reservation would call this function again.
            if let Err(mut untaken) = sender.send(self.room(bytes, there)) {
                self.0.lock().free += std::mem::take(&mut untaken.bytes);
            }
        }
    }

    fn room(self: &Arc<Self>, bytes: usize, there: usize) -> Reservation {
        Reservation { budget: self.clone(), bytes, looked: (Instant::now(), there) }
    }
}

impl Budget {
    /// Returns false if fewer bytes are free.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }
}

impl HeldRoom for Reservation {
    /// Checks once in each interval.
    fn is_overdue(&mut self, there: usize) -> bool {
        let (at, before) = self.looked;
        if at.elapsed() < LOOK_AGAIN {
            return false;
        }
        self.looked = (Instant::now(), there);
        let made_headway = there.saturating_sub(before) >= self.bytes / HEADWAY;
        // Ended sessions no longer wait.
        !made_headway && self.budget.0.lock().waiting.iter().any(|it| !it.sender.is_closed())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.0.lock().free += self.bytes;
            self.budget.give();
        }
    }
}

/// All permits of one kind.
pub struct ParsePermits {
    all: Arc<Semaphore>,
    /// The share of a role. Its other sessions wait in a separate queue, not in front of other roles.
    of_each: usize,
    /// Shares of the roles that hold a permit or wait for one, by login role.
    roles: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// True if the permits are for parsing in another process.
    out_of_process: bool,
}

impl ParsePermits {
    /// Creates `all` permits. One role may use all but one of them, and at least one.
    pub fn new(all: usize, out_of_process: bool) -> Self {
        let of_each = all.saturating_sub(1).max(1);
        ParsePermits { all: Arc::new(Semaphore::new(all)), of_each, roles: Mutex::default(), out_of_process }
    }

    /// Returns a permit for a session of the role if one is free.
    pub fn try_take(&self, role: &str) -> Option<ParsePermit> {
        let of_role = self.of(role).try_acquire_owned().ok()?;
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        Some(ParsePermit::new((of_all, of_role), self.out_of_process))
    }

    /// Waits for a permit. Cancel-safe.
    pub fn take(&self, role: &str) -> impl Future<Output = Option<ParsePermit>> + Send + use<> {
        let (of_role, of_all, out_of_process) = (self.of(role), self.all.clone(), self.out_of_process);
        async move {
            let of_role = of_role.acquire_owned().await.ok()?;
            let of_all = of_all.acquire_owned().await.ok()?;
            Some(ParsePermit::new((of_all, of_role), out_of_process))
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

    fn budget() -> Arc<MessageBudget> {
        MessageBudget::new(10)
    }

    /// Expects a reservation that is granted immediately.
    async fn given(waiting: &mut (impl Future<Output = Option<Reservation>> + Unpin)) -> Option<Reservation> {
        waiting.now_or_never()?
    }

    #[tokio::test]
    async fn released_room_goes_to_a_waiter_that_fits() {
        let budget = budget();
        let (all, ask) = (budget.try_take(10, 0).unwrap(), |bytes| Box::pin(budget.take(bytes, 0)));
        let (mut first, mut small, mut last) = (ask(6), ask(2), ask(5));
        assert!(given(&mut first).await.is_none());
        drop(all);
        let last = given(&mut last).await.unwrap();
        let small = given(&mut small).await.unwrap();
        assert!(given(&mut first).await.is_none());
        drop((last, small));
        assert!(given(&mut first).await.is_some());
        assert_eq!(budget.0.lock().free, 10);
    }

    #[tokio::test]
    async fn a_canceled_waiter_receives_nothing() {
        let budget = budget();
        let all = budget.try_take(10, 0).unwrap();
        drop(budget.take(5, 0));
        drop(all);
        assert!(budget.try_take(10, 0).is_some());
    }

    #[tokio::test]
    async fn a_login_without_progress_is_overdue_while_others_wait() {
        let budget = MessageBudget::new(100);
        let mut room = budget.try_take(100, 45).unwrap();
        let mut look = |there| {
            room.looked.0 = Instant::now().checked_sub(LOOK_AGAIN).unwrap();
            room.is_overdue(there)
        };
        assert!(!look(50) && !look(50), "nobody waits");
        let waiting = budget.take(1, 0);
        assert!(!look(55) && look(58) && !look(63));
        drop(waiting);
        assert!(!look(64), "nobody waits any more");
    }
}

#[cfg(test)]
mod parse_permits_tests {
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
