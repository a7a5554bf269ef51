//! Work under a leadership ends before a loss is reported, and its result counts only while the lease lives.

use super::loss::is_announced_in_time;
use super::{LONG, current, election, is_silence, keys, lease, run, soon, wait_for_keys, win};
use crate::support::Stalls;
use crate::support::etcd::Etcd;
use fencegate_leader::{Leadership, Lost};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Sets the flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Work that never ends, and a function that returns whether the work has been dropped.
fn work() -> (impl Future<Output = ()>, impl Fn() -> bool) {
    let flag = Arc::new(AtomicBool::new(false));
    let held = Dropped(flag.clone());
    let work = async move {
        let _held = held;
        pending().await
    };
    (work, move || flag.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_work_returns_its_output_and_keeps_leadership() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    assert_eq!(soon(leadership.run(async { 5 })).await, Ok(5));
    assert_eq!(leadership.check(), Ok(()));
    assert_eq!(keys(&server).len(), 1);
    leadership.resign().await.unwrap();
    assert_eq!(soon(leadership.run(async { 5 })).await, Err(Lost::Resigned));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_drops_the_work_before_it_is_reported() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let (work, is_dropped) = work();
    let running = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.run(work).await }
    });
    assert!(!is_dropped());
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    assert_eq!(soon(running).await.unwrap(), Err(Lost::Revoked));
    assert!(is_dropped());
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_drops_the_work_before_the_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 2)).await;
    let (work, is_dropped) = work();
    let stalls = Stalls::watch();
    server.pause();
    let lost = soon(leadership.run(work)).await.unwrap_err();
    let (dropped, left, stalled) = (is_dropped(), leadership.remaining(), stalls.total());
    assert!(is_silence(&lost, stalled), "{lost}, stalled for {stalled:?}");
    assert!(dropped && is_announced_in_time(left, stalled), "{left:?} left, stalled for {stalled:?}");
    soon(leadership.subscribe().changed()).await.expect("a subscriber is notified of an earlier loss");
}

/// The task that renews the lease shares its thread with the work, and cannot report the loss.
#[tokio::test]
async fn work_that_blocks_past_the_deadline_has_lost() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", 2)).await;
    let blocks = async { std::thread::sleep(leadership.remaining() + Duration::from_millis(1)) };
    assert_eq!(leadership.run(blocks).await, Err(Lost::Expired));
    // Work that becomes ready after the deadline is not continued either.
    let (resume, resumed) = oneshot::channel();
    let leadership = win(&election(&server, "other", 2)).await;
    let remaining = leadership.remaining();
    let continued = leadership.run(resumed);
    let blocks = async {
        resume.send(()).unwrap();
        std::thread::sleep(remaining + Duration::from_millis(1));
    };
    let (continued, ()) = tokio::join!(continued, blocks);
    assert_eq!(continued, Err(Lost::Expired));
}

/// The work may run until the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn an_unrenewed_lease_is_not_released_before_its_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 2)).await;
    server.pause();
    soon(leadership.lost()).await;
    server.signal("CONT");
    while !leadership.remaining().is_zero() {
        let leader = current(&server).await;
        assert!(leader.is_some() || leadership.remaining().is_zero(), "released too early");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_caller_drops_the_work_and_gives_leadership_up() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let (work, is_dropped) = work();
    let running = tokio::spawn(async move { leadership.run(work).await });
    running.abort();
    wait_for_keys(&server, 0);
    assert!(is_dropped());
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_see_renewals_and_the_loss_and_do_not_keep_leadership() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", 3)).await;
    let mut state = leadership.subscribe();
    let start = Instant::now();
    for _ in 0..2 {
        let before = start.elapsed() + state.borrow().remaining();
        soon(state.changed()).await.unwrap();
        let renewed = start.elapsed() + state.borrow_and_update().remaining();
        assert!(renewed > before + Duration::from_millis(100), "{renewed:?} is not later than {before:?}");
    }
    drop::<Leadership>(leadership);
    let lost = soon(state.wait_for(|state| state.check().is_err())).await.unwrap().check();
    assert_eq!(lost, Err(Lost::Resigned));
    assert!(soon(state.changed()).await.is_err(), "closed");
    wait_for_keys(&server, 0);
}
