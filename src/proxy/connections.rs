//! How many clients there are, and how many there may be.
//!
//! Owns the counts. Must never let those who have not said who they are take places from sessions, nor keep them
//! from ending: a request to cancel needs no place. Nor let those who claim a name keep out whose it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Places beyond `max_connections` for the console, where somebody may have to find out why there are no others.
pub const RESERVED: usize = 3;

/// All clients' connections.
#[derive(Default)]
pub struct Connections {
    taken: watch::Sender<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Connections whose clients have not said yet what they want, by their number: the first came first.
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// Sessions, also those that are logging in.
    places: usize,
    /// Those of them that are logging in at the console, by a name that may use it.
    claims: BTreeMap<u64, Arc<Notify>>,
    /// Those that have logged in.
    of_users: HashMap<String, usize>,
}

/// A connection's part in the counts, until it is dropped.
pub struct Seat {
    connections: Arc<Connections>,
    number: u64,
    held: Held,
    given_up: Arc<Notify>,
}

enum Held {
    Waiting,
    Claim,
    Place,
    PlaceOf(String),
}

impl Connections {
    /// A client has connected; its number is higher than those before it. Where more than `most` wait, the one that has
    /// waited longest makes room: who means to log in says so at once.
    pub fn enter(self: &Arc<Self>, number: u64, most: usize) -> Seat {
        let given_up = Arc::new(Notify::new());
        self.taken.send_modify(|taken| {
            while taken.waiting.len() >= most {
                let Some((_, longest)) = taken.waiting.pop_first() else { break };
                longest.notify_one();
            }
            taken.waiting.insert(number, given_up.clone());
        });
        Seat { connections: self.clone(), number, held: Held::Waiting, given_up }
    }

    /// How many places are taken.
    pub fn places(&self) -> usize {
        self.taken.borrow().places
    }

    /// Returns when no place is taken. Cancel-safe.
    pub async fn none_left(&self) {
        // The sender is ours: it does not end.
        self.taken.subscribe().wait_for(|taken| taken.places == 0).await.ok();
    }
}

impl Seat {
    /// The connection's number in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the connection has to make room for others. Cancel-safe.
    pub async fn given_up(&self) {
        self.given_up.notified().await;
    }

    /// The client wants a session: it no longer waits, and takes a place. False when `most` are taken.
    #[must_use]
    pub fn take_place(&mut self, most: usize) -> bool {
        let is_free = self.connections.taken.send_if_modified(|taken| {
            let is_free = taken.places < most;
            if is_free {
                taken.waiting.remove(&self.number);
                taken.places += 1;
            }
            is_free
        });
        if is_free {
            self.held = Held::Place;
        }
        is_free
    }

    /// The same for a client of the console, by the name of somebody who may use it. Where `most` are taken, whoever has
    /// been logging in there for longest makes room: anybody may claim that name, and say no more.
    #[must_use]
    pub fn take_console_place(&mut self, most: usize) -> bool {
        let is_free = self.connections.taken.send_if_modified(|taken| {
            if taken.places >= most {
                let Some((_, longest)) = taken.claims.pop_first() else { return false };
                longest.notify_one();
                taken.places -= 1;
            }
            taken.waiting.remove(&self.number);
            taken.places += 1;
            taken.claims.insert(self.number, self.given_up.clone());
            true
        });
        if is_free {
            self.held = Held::Claim;
        }
        is_free
    }

    /// A client of the console has shown who it is: it need not make room any more. False when it had to just before.
    #[must_use]
    pub fn keep_place(&mut self) -> bool {
        if let Held::Claim = self.held {
            let is_kept = self.connections.taken.send_if_modified(|taken| taken.claims.remove(&self.number).is_some());
            if is_kept {
                self.held = Held::Place;
            }
            return is_kept;
        }
        true
    }

    /// The client has shown who it is. False when `most` of that user are there: then the place is not the user's.
    #[must_use]
    pub fn belongs_to(&mut self, user: &str, most: Option<usize>) -> bool {
        let is_free = self.connections.taken.send_if_modified(|taken| {
            let sessions = taken.of_users.get(user).copied().unwrap_or_default();
            let is_free = most.is_none_or(|most| sessions < most);
            if is_free {
                taken.of_users.insert(user.to_owned(), sessions + 1);
            }
            is_free
        });
        if is_free {
            self.held = Held::PlaceOf(user.to_owned());
        }
        is_free
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.taken.send_modify(|taken| {
            match &self.held {
                Held::Waiting => {
                    taken.waiting.remove(&self.number);
                }
                // Where it has made room, the place is another's.
                Held::Claim => taken.places -= usize::from(taken.claims.remove(&self.number).is_some()),
                Held::Place => taken.places -= 1,
                Held::PlaceOf(user) => {
                    taken.places -= 1;
                    if let Some(sessions) = taken.of_users.get_mut(user) {
                        *sessions -= 1;
                        if *sessions == 0 {
                            taken.of_users.remove(user);
                        }
                    }
                }
            };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(connections: &Connections) -> (usize, usize, usize) {
        let taken = connections.taken.borrow();
        (taken.waiting.len(), taken.places, taken.of_users.len())
    }

    #[test]
    fn what_is_held_is_given_back_wherever_it_ends() {
        let connections = Arc::new(Connections::default());
        let mut seats: Vec<_> = (0..3).map(|number| connections.enter(number, 10)).collect();
        assert!(seats[1].take_place(10) && seats[2].take_place(10) && seats[2].belongs_to("ada", Some(1)));
        assert_eq!(counts(&connections), (1, 2, 1));
        drop(seats);
        assert_eq!(counts(&connections), (0, 0, 0));
    }

    #[test]
    fn places_and_users_have_limits() {
        let connections = Arc::new(Connections::default());
        let mut seats: Vec<_> = (0..3).map(|number| connections.enter(number, 10)).collect();
        assert!(seats[0].take_place(2) && seats[1].take_place(2) && !seats[2].take_place(2));
        assert!(seats[0].belongs_to("ada", Some(1)) && !seats[1].belongs_to("ada", Some(1)));
        assert!(seats[1].belongs_to("bob", Some(1)));
        seats.remove(0);
        assert!(seats[1].take_place(2) && seats[1].belongs_to("ada", Some(1)));
    }

    #[tokio::test]
    async fn claims_make_room_for_claims_until_they_are_proven() {
        let connections = Arc::new(Connections::default());
        let mut seats: Vec<_> = (0..5).map(|number| connections.enter(number, 10)).collect();
        assert!(seats[0].take_place(1) && !seats[1].take_place(1) && seats[1].take_console_place(2));
        assert!(seats[2].take_console_place(2));
        seats[1].given_up().await;
        assert!(!seats[1].keep_place() && seats[2].keep_place());
        assert!(!seats[3].take_console_place(2), "the one is a session, the other has shown who it is");
        seats.remove(1);
        assert_eq!(counts(&connections).1, 2);
        seats.clear();
        assert_eq!(counts(&connections), (0, 0, 0));
    }

    #[tokio::test]
    async fn who_has_waited_longest_makes_room() {
        let connections = Arc::new(Connections::default());
        let seats: Vec<_> = (0..3).map(|number| connections.enter(number, 2)).collect();
        seats[0].given_up().await;
        assert_eq!(counts(&connections).0, 2);
        drop(seats);
        assert_eq!(counts(&connections).0, 0);
    }
}
