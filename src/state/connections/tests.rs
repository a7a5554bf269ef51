//! Unit tests of connection places.

use super::*;
use tokio::time::timeout;

fn here() -> SourceAddress {
    SourceAddress::new(None)
}

fn seats(connections: &Arc<Connections>, count: u64, most: usize) -> Vec<Seat> {
    (0..count).map(|number| connections.enter(number, here(), most)).collect()
}

fn elsewhere(last: u8) -> SourceAddress {
    SourceAddress::new(Some([192, 0, 2, last].into()))
}

fn of_user(user: &str, most: Option<NonZeroUsize>) -> Vec<(SessionGroup, Option<NonZeroUsize>)> {
    vec![(SessionGroup::User(user.to_owned()), most)]
}

async fn is_evicted(seat: &Seat) -> bool {
    timeout(Duration::ZERO, seat.given_up()).await.is_ok()
}

#[tokio::test]
async fn places_are_released_at_every_exit() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 6, 10);
    for seat in &seats[1..4] {
        assert_eq!(seat.take_place(LoginKind::Session, 10).await, Ok(()));
    }
    assert_eq!(seats[2].belongs_to(of_user("ada", NonZeroUsize::new(1))), Ok(()));
    assert_eq!(seats[4].take_place(LoginKind::Console, 10).await, Ok(()));
    seats[4].keep_place();
    seats[5].speaks();
    assert_eq!((connections.places(), connections.taken.borrow().waiting()), (4, 2));
    drop(seats);
    let taken = connections.taken.borrow();
    assert_eq!((taken.places(), taken.waiting(), taken.sessions_of.len(), taken.under_way), (0, 0, 0, [0, 0]));
}

#[tokio::test]
async fn places_and_users_have_limits() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 4, 2);
    assert_eq!(seats[0].take_place(LoginKind::Session, 2).await, Ok(()));
    assert_eq!(seats[0].belongs_to(of_user("ada", NonZeroUsize::new(1))), Ok(()));
    assert_eq!(seats[1].take_place(LoginKind::Session, 2).await, Ok(()));
    assert_eq!(seats[1].belongs_to(of_user("ada", NonZeroUsize::new(1))), Err(SessionGroup::User("ada".to_owned())));
    assert_eq!(seats[1].belongs_to(of_user("bob", NonZeroUsize::new(1))), Ok(()));
    assert_eq!(seats[2].take_place(LoginKind::Session, 2).await, Err(NoPlace::Sessions));
    assert_eq!(seats[3].take_place(LoginKind::Console, 2).await, Ok(()), "some places are reserved for the console");
    seats.remove(0);
    drop(seats.remove(2));
    assert_eq!(seats[1].take_place(LoginKind::Session, 2).await, Ok(()));
    assert_eq!(seats[1].belongs_to(of_user("ada", NonZeroUsize::new(1))), Ok(()));
}

/// Requests a place. The seat stays in the queue if none is free.
async fn requests_place(seat: &Seat, most: usize) -> bool {
    timeout(Duration::ZERO, seat.take_place(LoginKind::Session, most)).await.is_ok_and(|place| place.is_ok())
}

#[tokio::test]
async fn logins_take_half_of_the_places_and_sources_without_logins_go_first() {
    let connections = Arc::new(Connections::default());
    let mut seats: Vec<Seat> = (0..4).map(|number| connections.enter(number, elsewhere(number as u8 / 2), 4)).collect();
    assert!(requests_place(&seats[0], 4).await && requests_place(&seats[2], 4).await);
    assert!(!requests_place(&seats[1], 4).await && !requests_place(&seats[3], 4).await);
    assert_eq!(seats[0].belongs_to(of_user("ada", None)), Ok(()));
    let may = |number| connections.taken.borrow().logins.contains_key(&number);
    assert!(!may(3) && may(1), "its address has no login under way");
    assert_eq!(connections.taken.borrow().queues[0].len(), 1);
    drop(seats.remove(2));
    assert!(may(3));
}

#[tokio::test]
async fn an_address_leaves_logins_to_other_addresses() {
    let connections = Arc::new(Connections::default());
    let many: Vec<Seat> = (0..60).map(|number| connections.enter(number, here(), 1000)).collect();
    let mut begun = 0;
    for seat in &many {
        begun += usize::from(requests_place(seat, 1000).await);
    }
    assert_eq!(begun, LOGINS_AT_ONCE - LOGINS_AT_ONCE / OTHERS_SHARE);
    for number in 0..3 {
        assert!(requests_place(&connections.enter(60, elsewhere(number), 1000), 1000).await);
    }
    // The limit also applies to the remaining places.
    let connections = Arc::new(Connections::default());
    let seats: Vec<Seat> = (0..3).map(|number| connections.enter(number, here(), 3)).collect();
    assert!(
        requests_place(&seats[0], 6).await && requests_place(&seats[1], 6).await && !requests_place(&seats[2], 6).await
    );
    assert!(requests_place(&connections.enter(3, elsewhere(1), 6), 6).await);
}

#[tokio::test]
async fn a_login_without_an_answer_yields_to_other_addresses() {
    let connections = Arc::new(Connections::default());
    let seats = seats(&connections, 2, 2);
    assert!(requests_place(&seats[0], 2).await);
    let since_long = || {
        let owes_since = Instant::now().checked_sub(ANSWER_LIMIT);
        connections
            .taken
            .send_modify(|taken| taken.logins.values_mut().for_each(|login| login.owes_since = owes_since));
    };
    let is_overdue = || connections.taken.borrow().is_overdue(0);
    since_long();
    assert!(!is_overdue(), "no client waits");
    assert!(!requests_place(&seats[1], 2).await);
    assert!(!is_overdue(), "only clients from its own address wait");
    let other = connections.enter(2, elsewhere(1), 2);
    assert!(!requests_place(&other, 2).await && is_overdue());
    seats[0].set_awaiting_answer(true);
    assert!(!is_overdue(), "the server has just sent its request");
    since_long();
    seats[0].set_awaiting_answer(false);
    assert!(!is_overdue(), "the server has to send the next message");
}

#[tokio::test]
async fn a_source_does_not_make_its_own_logins_overdue() {
    let connections = Arc::new(Connections::default());
    let slow = connections.enter(0, elsewhere(1), 10);
    assert!(requests_place(&slow, 10).await);
    let many: Vec<Seat> = (1..8).map(|number| connections.enter(number, here(), 10)).collect();
    let mut begun = 0;
    for seat in &many {
        begun += usize::from(requests_place(seat, 10).await);
    }
    assert_eq!(begun, 4, "the others wait for logins of their own source");
    let owes_since = Instant::now().checked_sub(ANSWER_LIMIT);
    connections.taken.send_modify(|taken| taken.logins.values_mut().for_each(|login| login.owes_since = owes_since));
    assert!(!connections.taken.borrow().is_overdue(0));
}

#[tokio::test]
async fn an_evicted_waiter_is_notified() {
    let connections = Arc::new(Connections::default());
    let seats = seats(&connections, 2, 2);
    assert!(requests_place(&seats[0], 2).await);
    let waits = seats[1].take_place(LoginKind::Session, 2);
    tokio::pin!(waits);
    assert!(timeout(Duration::ZERO, &mut waits).await.is_err());
    let mut later = Vec::new();
    for number in 2..2 + WAIT_AT_LEAST as u64 {
        later.push(connections.enter(number, here(), 2));
        assert!(!requests_place(&later[later.len() - 1], 2).await);
    }
    assert_eq!(timeout(Duration::from_secs(60), waits).await, Ok(Err(NoPlace::Queue)));
}

#[tokio::test]
async fn clients_that_have_sent_data_are_not_evicted_by_silent_ones() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 2, 1);
    seats[0].speaks();
    seats.extend((2..40).map(|number| connections.enter(number, here(), 1)));
    assert!(!is_evicted(&seats[0]).await && is_evicted(&seats[1]).await && is_evicted(&seats[15]).await);
    assert_eq!(connections.taken.borrow().waiting(), WAIT_AT_LEAST);
    let others: Vec<_> = (40..60).map(|number| connections.enter(number, here(), 1)).collect();
    others.iter().for_each(Seat::speaks);
    let _more: Vec<_> = (60..80).map(|number| connections.enter(number, here(), 1)).collect();
    assert!(is_evicted(&seats[0]).await, "many other clients have sent as much data");
}

#[tokio::test]
async fn a_source_with_few_connections_is_not_evicted() {
    let connections = Arc::new(Connections::default());
    let other = SourceAddress::new(Some([192, 0, 2, 1].into()));
    let few = connections.enter(0, other, 4);
    let many: Vec<_> = (1..40).map(|number| connections.enter(number, here(), 4)).collect();
    assert!(!is_evicted(&few).await && is_evicted(&many[0]).await);
}

#[tokio::test]
async fn a_session_that_is_refused_counts_in_no_group() {
    let connections = Arc::new(Connections::default());
    let mut seats = seats(&connections, 3, 9);
    for seat in &seats {
        assert_eq!(seat.take_place(LoginKind::Session, 9).await, Ok(()));
    }
    let (ada, app) = (SessionGroup::User("ada".to_owned()), SessionGroup::Database("app".to_owned()));
    let groups = |database| vec![(ada.clone(), None), (app.clone(), NonZeroUsize::new(database))];
    assert_eq!(seats[0].belongs_to(groups(1)), Ok(()));
    assert_eq!(seats[1].belongs_to(groups(1)), Err(app.clone()));
    assert!(seats[2].is_full(&ada, 1) && !seats[2].is_full(&ada, 2));
    drop(seats.remove(0));
    assert!(connections.taken.borrow().sessions_of.is_empty());
}
