//! Room for long messages, of which all sessions together may hold so much.
//!
//! Owns who has room and who is next. Must never give more than there is, nor let those who have it and do not use it keep
//! others from it.

use crate::session::task::HeldRoom;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// A session waits this long for room at most.
const ROOM_LIMIT: Duration = Duration::from_secs(30);

/// While others wait, a message that has room makes headway: so much of it has to come in each such time.
pub const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The part of a message that is headway: all of it takes ten seconds.
const HEADWAY: usize = 20;

/// All the room of one kind.
pub struct Rooms(Mutex<Rest>);

struct Rest {
    /// Bytes that nobody has.
    free: usize,
    /// Those who wait, the first to come first.
    waiting: Vec<Waiting>,
}

struct Waiting {
    bytes: usize,
    /// How much of the message was there when it began to wait: no more is read meanwhile.
    there: usize,
    tell: oneshot::Sender<Room>,
}

/// The right to hold a long message, until it is dropped.
pub struct Room {
    rooms: Arc<Rooms>,
    bytes: usize,
    /// When it was looked at last, and how much of the message was there then.
    looked: (Instant, usize),
}

impl Rooms {
    /// So many bytes, all of them free.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Rooms(Mutex::new(Rest { free: bytes, waiting: Vec::new() })))
    }

    /// Room for a message of that many bytes, of which so many are there, if there is any.
    pub fn try_take(self: &Arc<Self>, bytes: usize, there: usize) -> Option<Room> {
        self.rest().take(bytes).then(|| self.room(bytes, there))
    }

    /// The same, waited for; None after a while. Who calls it first is not the first to get it. Cancel-safe.
    pub fn take(self: &Arc<Self>, bytes: usize, there: usize) -> impl Future<Output = Option<Room>> + Send + use<> {
        let mut rest = self.rest();
        let taken = if rest.take(bytes) {
            Ok(self.room(bytes, there))
        } else {
            let (tell, told) = oneshot::channel();
            rest.waiting.push(Waiting { bytes, there, tell });
            Err(told)
        };
        drop(rest);
        async move {
            match taken {
                Ok(room) => Some(room),
                Err(told) => timeout(ROOM_LIMIT, told).await.ok()?.ok(),
            }
        }
    }

    /// Gives what is free to whoever waits and has come last: those before may be many who want it only to keep it.
    fn give(self: &Arc<Self>) {
        loop {
            let mut rest = self.rest();
            rest.waiting.retain(|it| !it.tell.is_closed());
            let free = rest.free;
            let Some(next) = rest.waiting.iter().rposition(|it| it.bytes <= free) else { return };
            let Waiting { bytes, there, tell } = rest.waiting.remove(next);
            rest.free -= bytes;
            drop(rest);
            // Nobody is there any more to take it: dropping it would come back here.
            if let Err(mut untaken) = tell.send(self.room(bytes, there)) {
                self.rest().free += std::mem::take(&mut untaken.bytes);
            }
        }
    }

    fn room(self: &Arc<Self>, bytes: usize, there: usize) -> Room {
        Room { rooms: self.clone(), bytes, looked: (Instant::now(), there) }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rest {
    /// False where there is not so much.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }
}

impl HeldRoom for Room {
    /// Looks when it is time.
    fn is_overdue(&mut self, there: usize) -> bool {
        let (at, before) = self.looked;
        if at.elapsed() < LOOK_AGAIN {
            return false;
        }
        self.looked = (Instant::now(), there);
        let made_headway = there.saturating_sub(before) >= self.bytes / HEADWAY;
        !made_headway && !self.rooms.rest().waiting.is_empty()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.rooms.rest().free += self.bytes;
            self.rooms.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn rooms() -> Arc<Rooms> {
        Rooms::new(10)
    }

    /// What has been given is there at once.
    async fn given(waiting: &mut (impl Future<Output = Option<Room>> + Unpin)) -> Option<Room> {
        waiting.now_or_never()?
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_the_last_who_fits() {
        let rooms = rooms();
        let (all, ask) = (rooms.try_take(10, 0).unwrap(), |bytes| Box::pin(rooms.take(bytes, 0)));
        let (mut first, mut small, mut last) = (ask(6), ask(2), ask(5));
        assert!(given(&mut first).await.is_none());
        drop(all);
        let last = given(&mut last).await.unwrap();
        let small = given(&mut small).await.unwrap();
        assert!(given(&mut first).await.is_none());
        drop((last, small));
        assert!(given(&mut first).await.is_some());
        assert_eq!(rooms.rest().free, 10);
    }

    #[tokio::test]
    async fn who_does_not_wait_any_more_gets_nothing() {
        let rooms = rooms();
        let all = rooms.try_take(10, 0).unwrap();
        drop(rooms.take(5, 0));
        drop(all);
        assert!(rooms.try_take(10, 0).is_some());
    }

    #[tokio::test]
    async fn who_makes_no_headway_while_others_wait_is_overdue() {
        let rooms = Rooms::new(100);
        let mut room = rooms.try_take(100, 45).unwrap();
        let mut look = |there| {
            room.looked.0 = Instant::now().checked_sub(LOOK_AGAIN).unwrap();
            room.is_overdue(there)
        };
        assert!(!look(50) && !look(50), "nobody waits");
        let _waiting = rooms.take(1, 0);
        assert!(!look(55) && look(58) && !look(63));
    }
}
