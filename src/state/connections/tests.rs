//! Unit tests of the places of connections.

use super::*;
use tokio::time::timeout;

fn here() -> SourceAddress {
    SourceAddress::new(None)
}

fn seats(connections: &Arc<Connections>, count: u64, most: usize) -> Vec<Seat> {
    (0..count).map(|number| connections.enter(number, here(), most)).collect()
}

async fn is_told(seat: &Seat) -> bool {
    timeout(Duration::ZERO, seat.given_up()).await.is_ok()
}

#[tokio::test]
async fn what_is_held_is_given_back_wherever_it_ends() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 6, 10);
    for seat in &seats[1..4] {
        assert!(seat.take_place(LoginKind::Session, 10).await);
    }
    assert!(seats[2].belongs_to("ada", Some(1)));
    assert!(seats[4].take_place(LoginKind::Console, 10).await);
    seats[4].keep_place();
    seats[5].speaks();
    assert_eq!((connections.places(), connections.taken.borrow().waiting()), (4, 2));
    drop(seats);
    let taken = connections.taken.borrow();
    assert_eq!((taken.places(), taken.waiting(), taken.of_users.len(), taken.under_way), (0, 0, 0, [0, 0]));
}

#[tokio::test]
async fn places_and_users_have_limits() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 4, 2);
    assert!(seats[0].take_place(LoginKind::Session, 2).await && seats[0].belongs_to("ada", Some(1)));
    assert!(seats[1].take_place(LoginKind::Session, 2).await && !seats[1].belongs_to("ada", Some(1)));
    assert!(seats[1].belongs_to("bob", Some(1)));
    assert!(!seats[2].take_place(LoginKind::Session, 2).await, "all places are had by sessions");
    assert!(seats[3].take_place(LoginKind::Console, 2).await, "some are for the console");
    seats.remove(0);
    drop(seats.remove(2));
    assert!(seats[1].take_place(LoginKind::Session, 2).await && seats[1].belongs_to("ada", Some(1)));
}

#[tokio::test]
async fn logins_take_half_of_the_places_and_the_last_that_came_is_next() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 5, 4);
    assert!(seats[0].take_place(LoginKind::Session, 4).await && seats[1].take_place(LoginKind::Session, 4).await);
    let waits = |seat: Seat| tokio::spawn(async move { seat.take_place(LoginKind::Session, 4).await.then_some(seat) });
    let (last, first) = (seats.pop().unwrap(), seats.pop().unwrap());
    let first = waits(first);
    tokio::task::yield_now().await;
    let last = waits(last);
    tokio::task::yield_now().await;
    assert_eq!(connections.taken.borrow().queues[0].len(), 2);
    assert!(seats[0].belongs_to("ada", None));
    let last = last.await.unwrap();
    assert_eq!(connections.taken.borrow().queues[0].len(), 1);
    drop(last);
    assert!(first.await.unwrap().is_some());
}

#[tokio::test]
async fn who_owes_an_answer_makes_room_where_others_wait() {
    let connections = Arc::new(Connections::default());
    let seats = seats(&connections, 2, 2);
    assert!(seats[0].take_place(LoginKind::Session, 2).await);
    let since_long = || {
        let asked = Instant::now().checked_sub(ANSWER_LIMIT);
        connections.taken.send_modify(|taken| taken.logins.values_mut().for_each(|login| login.asked = asked));
    };
    let is_overdue = || connections.taken.borrow().is_overdue(0);
    since_long();
    assert!(!is_overdue(), "nobody waits");
    let waits = seats[1].take_place(LoginKind::Session, 2);
    tokio::pin!(waits);
    assert!(timeout(Duration::ZERO, &mut waits).await.is_err());
    assert!(is_overdue());
    seats[0].asked(true);
    assert!(!is_overdue(), "it was asked just now");
    since_long();
    seats[0].asked(false);
    assert!(!is_overdue(), "it is for the server to say something");
}

#[tokio::test]
async fn those_who_have_said_something_are_not_crowded_out_by_those_who_have_not() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 2, 1);
    seats[0].speaks();
    seats.extend((2..40).map(|number| connections.enter(number, here(), 1)));
    assert!(!is_told(&seats[0]).await && is_told(&seats[1]).await && is_told(&seats[15]).await);
    assert_eq!(connections.taken.borrow().waiting(), WAIT_AT_LEAST);
    let others: Vec<_> = (40..60).map(|number| connections.enter(number, here(), 1)).collect();
    others.iter().for_each(Seat::speaks);
    let _more: Vec<_> = (60..80).map(|number| connections.enter(number, here(), 1)).collect();
    assert!(is_told(&seats[0]).await, "as many have said as much");
}

#[tokio::test]
async fn a_source_with_few_connections_is_spared() {
    let connections = Arc::new(Connections::default());
    let other = SourceAddress::new(Some([192, 0, 2, 1].into()));
    let few = connections.enter(0, other, 4);
    let many: Vec<_> = (1..40).map(|number| connections.enter(number, here(), 4)).collect();
    assert!(!is_told(&few).await && is_told(&many[0]).await);
}
