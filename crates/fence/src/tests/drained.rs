//! Sessions admitted under lower tokens: which ones are terminated, and when.

use super::*;
use crate::advance::publish;
use crate::store::GRACE;

/// Sets the activity of a client that waits in a transaction or runs a statement.
fn set_activity(client: &Client, activity: Activity) {
    client.session.set_activity(activity);
}

#[tokio::test(start_paused = true)]
async fn only_processes_that_may_commit_a_write_are_terminated() {
    let jobs = policies(POLICIES).resource_called("notes").unwrap().tables[0].name.clone();
    for (activity, locks, guarded, forwarded, lives) in [
        (Activity::Idle, false, false, false, true),
        (Activity::Waiting, false, false, false, true),
        (Activity::Waiting, true, false, false, false),
        (Activity::Waiting, false, true, false, false),
        (Activity::Waiting, false, false, true, false),
        (Activity::Busy, false, false, true, false),
    ] {
        let proxy = Proxy::start(&server(), "one").await;
        let old = proxy.writer(1, "notes", 5).await;
        if forwarded {
            assert!(old.session.begin_write([("notes", 5)]));
        }
        set_activity(&old, activity);
        if locks {
            proxy.server.write(1, &jobs, true);
        }
        if guarded {
            proxy.server.guard_passes(1, "notes");
        }
        let since = Instant::now();
        let _new = proxy.writer(2, "notes", 6).await;
        let what = format!("{activity:?} {locks} {guarded} {forwarded}");
        assert_eq!(proxy.server.lives(1), lives, "{what}");
        // The drain finds writes that the proxy has not seen by their locks, after the grace period.
        assert!(!proxy.has_row(&old, "notes") && (since.elapsed() < GRACE) == (lives || forwarded), "{what}");
        let how = if !lives {
            "terminated"
        } else if activity == Activity::Idle {
            "idle"
        } else {
            "released"
        };
        let drained = |how: &str| proxy.fence.environment.metrics.drained_sessions.with_label_values(&[how]).get();
        assert_eq!(["idle", "released", "terminated", "dead"].map(drained).iter().sum::<u64>(), 1, "{what}");
        assert_eq!(drained(how), 1, "{what}");
        assert_eq!(proxy.fence.environment.metrics.drain_seconds.get_sample_count(), 2);
    }
}

/// The raising session keeps its process and its locks, unless it has written.
#[tokio::test(start_paused = true)]
async fn a_session_that_raises_its_own_token_keeps_its_process_unless_it_has_written() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    set_activity(&client, Activity::Waiting);
    assert_eq!(proxy.admit(&client, "notes", 6).await, "admitted");
    assert_eq!(proxy.server.admissions(&process(1), "notes"), [epoch(1, 6)]);
    let written = "token 7 for resource notes: the transaction has already written under token 6";
    proxy.server.guard_passes(1, "notes");
    assert_eq!(proxy.admit(&client, "notes", 7).await, written);
    proxy.server.end_transaction(1);
    assert!(client.session.begin_write([("notes", 6)]));
    set_activity(&client, Activity::Waiting);
    assert_eq!(proxy.admit(&client, "notes", 7).await, written);
    assert_eq!((proxy.epoch("notes"), proxy.server.lives(1)), (Some(epoch(1, 6)), true));
    set_activity(&client, Activity::Idle);
    assert_eq!(proxy.admit(&client, "notes", 7).await, "admitted");
    // This applies to a first token too, although its writes leave no trace.
    assert_eq!(proxy.admit(&client, "shard/1", 7).await, "admitted");
    assert!(client.session.begin_write([("shard/1", 7)]));
    set_activity(&client, Activity::Waiting);
    let written = "token 8 for resource shard/1: the transaction has already written under token 7";
    assert_eq!(proxy.admit(&client, "shard/1", 8).await, written);
}

/// Only the guard has seen the write. The row remains until the prepared transaction has ended.
#[tokio::test(start_paused = true)]
async fn a_session_with_a_prepared_write_is_admitted_under_no_other_token() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    proxy.server.guard_passes(1, "notes");
    proxy.server.prepare(1, "own");
    let written = "token 6 for resource notes: the transaction has already written under token 5";
    assert_eq!(proxy.admit(&client, "notes", 6).await, written);
    assert!(proxy.has_row(&client, "notes"));
    proxy.server.end_prepared("own");
    assert_eq!(proxy.admit(&client, "notes", 6).await, "admitted");
}

/// The other proxy is notified of the higher token, so the drain need not wait for the grace period.
#[tokio::test(start_paused = true)]
async fn sessions_of_another_proxy_are_drained_within_the_grace_period() {
    for (activity, lives) in [(Activity::Idle, true), (Activity::Waiting, true), (Activity::Busy, false)] {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let old = one.writer(1, "notes", 5).await;
        assert!(activity != Activity::Busy || old.session.begin_write([("notes", 5)]));
        set_activity(&old, activity);
        let since = Instant::now();
        let _new = two.writer(2, "notes", 6).await;
        assert!(since.elapsed() < GRACE, "{activity:?}: {:?}", since.elapsed());
        assert_eq!(server.lives(1), lives, "{activity:?}");
        assert!(old.session.admission("notes").is_none());
    }
}

/// The statement may be the `SET` of the new token. If it ends in time, the session keeps its process.
#[tokio::test(start_paused = true)]
async fn a_statement_that_writes_nothing_has_the_grace_period() {
    for other in [false, true] {
        for ends in [true, false] {
            let server = server();
            let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
            let old = one.writer(1, "notes", 5).await;
            set_activity(&old, Activity::Busy);
            let since = Instant::now();
            let raise = async { if other { two.writer(2, "notes", 6).await } else { one.writer(2, "notes", 6).await } };
            let end = async {
                sleep(GRACE / 2).await;
                if ends {
                    set_activity(&old, Activity::Idle);
                    one.fence.release(&old.session).await;
                }
            };
            let _new = tokio::join!(raise, end);
            assert_eq!((server.lives(1), since.elapsed() < GRACE), (ends, ends), "{other} {:?}", since.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_requests_the_new_token_is_not_terminated() {
    for (asks, lives) in
        [(None, false), (Some(("notes", 5)), false), (Some(("notes", 6)), true), (Some(("jobs", 6)), false)]
    {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let old = one.writer(1, "notes", 5).await;
        assert!(old.session.begin_write([("notes", 5)]));
        set_activity(&old, Activity::Busy);
        old.session.set_asking(asks.map(|(name, token)| (name.to_owned(), token)));
        let advance = two.fence.context().advance(&two.policies.resources[2], epoch(1, 6));
        assert_eq!(publish(&advance, Some(epoch(1, 5))).await, Ok(Some(epoch(1, 6))));
        until(|| old.session.admission("notes").is_none()).await;
        sleep(Duration::from_millis(50)).await;
        assert_eq!(server.lives(1), lives, "{asks:?}");
    }
}

/// The sessions of a proxy that misses the notification are terminated after the grace period.
#[tokio::test(start_paused = true)]
async fn sessions_of_a_deaf_proxy_are_terminated_after_the_grace_period() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let old = one.writer(1, "notes", 5).await;
    one.fence.watcher.stop();
    let since = Instant::now();
    let _new = two.writer(2, "notes", 6).await;
    assert!(since.elapsed() >= GRACE && since.elapsed() < 2 * GRACE && !server.lives(1), "{:?}", since.elapsed());
    let cut_off = CutOff { resource: "notes".to_owned(), presented: epoch(1, 5), highest: epoch(1, 6) };
    assert_eq!(one.fence.cut_off_by(&old.session).await, Some(cut_off));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_end_is_reported() {
    let proxy = Proxy::start(&server(), "one").await;
    let old = proxy.writer(1, "notes", 5).await;
    proxy.server.end_late();
    set_activity(&old, Activity::Busy);
    let new = proxy.client(2);
    let since = Instant::now();
    let blocked = "resource notes: processes admitted under lower tokens have not ended: process 1";
    assert_eq!(proxy.admit(&new, "notes", 6).await, blocked);
    assert!(since.elapsed() >= Duration::from_secs(10) && since.elapsed() < Duration::from_secs(11));
    proxy.server.end_process(1);
    assert_eq!(proxy.admit(&new, "notes", 6).await, "admitted");
    // A prepared transaction also blocks the drain.
    proxy.server.write(2, &proxy.resource("notes").tables[0].name, false);
    proxy.server.prepare(2, "theirs");
    let blocked = "resource notes: prepared transactions hold write locks on it: theirs";
    assert_eq!(proxy.admit(&proxy.client(3), "notes", 7).await, blocked);
    proxy.server.end_prepared("theirs");
    assert_eq!(proxy.admit(&proxy.client(4), "notes", 7).await, "admitted");
}

#[tokio::test(start_paused = true)]
async fn at_most_ten_processes_that_do_not_end_are_reported() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.end_late();
    let clients: Vec<Client> = (0..=13).map(|pid| proxy.client(pid)).collect();
    for old in &clients[1..] {
        assert_eq!(proxy.admit(old, "notes", 5).await, "admitted");
        set_activity(old, Activity::Busy);
    }
    let blocked = proxy.admit(&clients[0], "notes", 6).await;
    assert_eq!((blocked.matches("process ").count(), blocked.ends_with("; 3 more")), (10, true), "{blocked}");
}

#[tokio::test(start_paused = true)]
async fn one_session_advances_a_fence_and_the_others_wait() {
    let proxy = Proxy::start(&server(), "one").await;
    let old = proxy.writer(1, "notes", 5).await;
    proxy.server.end_late();
    set_activity(&old, Activity::Busy);
    let clients: Vec<Client> = (2..5).map(|pid| proxy.client(pid)).collect();
    let admit = |client: &Client| {
        let (fence, session, notes) = (proxy.fence.clone(), client.session.clone(), proxy.resource("notes"));
        tokio::spawn(async move { outcome_text(fence.admit(&session, &notes, 6).await, "admitted") })
    };
    let admits: Vec<_> = clients.iter().map(admit).collect();
    sleep(Duration::from_secs(1)).await;
    proxy.server.end_process(1);
    for admit in admits {
        assert_eq!(admit.await.unwrap(), "admitted");
    }
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 2);
    assert_eq!(proxy.fence.environment.metrics.drain_seconds.get_sample_count(), 2, "one drain for each token");
}

/// A session that was revoked while a statement ran deletes its row as soon as possible, and keeps its process.
#[tokio::test(start_paused = true)]
async fn a_revoked_session_is_released_once_no_statement_runs() {
    let notes = policies(POLICIES).resource_called("notes").unwrap().tables[0].name.clone();
    for (activity, writes, is_released) in [
        (Activity::Busy, false, false),
        (Activity::Waiting, true, false),
        (Activity::Waiting, false, true),
        (Activity::Idle, false, true),
    ] {
        let proxy = Proxy::start(&server(), "one").await;
        let old = proxy.writer(1, "notes", 5).await;
        assert_eq!(proxy.admit(&old, "trial", 5).await, "admitted");
        proxy.fence.release(&old.session).await;
        assert!(proxy.has_row(&old, "notes"), "the admission is not revoked");
        set_activity(&old, activity);
        if writes {
            proxy.server.write(1, &notes, false);
        }
        let advance = proxy.fence.context().advance(&proxy.policies.resources[2], epoch(1, 6));
        publish(&advance, Some(epoch(1, 5))).await.unwrap();
        let _ = old.session.revoke("notes", epoch(1, 6));
        proxy.fence.watcher.stop();
        proxy.fence.release(&old.session).await;
        assert_eq!(proxy.has_row(&old, "notes"), !is_released, "{activity:?} {writes}");
        assert!(proxy.has_row(&old, "trial"), "the other admission is unchanged");
        // Afterwards, a newer token does not terminate its process.
        assert_eq!(old.session.presented().contains_key("notes"), !is_released);
        assert!(proxy.server.lives(1));
    }
    // Later admissions remain.
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    let _ = client.session.revoke("notes", epoch(1, 5));
    proxy.fence.release(&client.session).await;
    assert!(proxy.has_row(&client, "notes"));
}

#[tokio::test(start_paused = true)]
async fn a_terminated_session_receives_the_token_that_cut_it_off() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    assert_eq!(proxy.fence.cut_off_by(&client.session).await, None);
    assert_eq!(proxy.fence.cut_off_by(&proxy.client(2).session).await, None);
    let asks = proxy.client(3);
    asks.session.set_asking(Some(("notes".to_owned(), 4)));
    let of_asked = CutOff { resource: "notes".to_owned(), presented: epoch(1, 4), highest: epoch(1, 5) };
    assert_eq!(proxy.fence.cut_off_by(&asks.session).await, Some(of_asked));
    asks.session.set_asking(Some(("notes".to_owned(), 5)));
    assert_eq!(proxy.fence.cut_off_by(&asks.session).await, None);
    set_activity(&client, Activity::Busy);
    let _new = proxy.writer(4, "notes", 6).await;
    let cut_off = CutOff { resource: "notes".to_owned(), presented: epoch(1, 5), highest: epoch(1, 6) };
    assert_eq!(proxy.fence.cut_off_by(&client.session).await, Some(cut_off));
}

/// When a session ends, the proxy deletes rows of dead processes. After the last session, it closes its connections.
#[tokio::test(start_paused = true)]
async fn a_proxy_cleans_up_after_its_sessions() {
    let proxy = Proxy::start(&server(), "one").await;
    let (mut gone, mut last) = (proxy.writer(1, "notes", 5).await, proxy.writer(2, "trial", 5).await);
    sleep(Duration::from_millis(10)).await;
    proxy.server.end_process(1);
    drop(gone.registration.take());
    let swept = until(|| !proxy.has_row(&gone, "notes")).await;
    assert!(swept < Duration::from_secs(1), "{swept:?}");
    sleep(Duration::from_secs(5)).await;
    assert!(proxy.fence.store.is_open() && proxy.fence.has_sessions());
    proxy.server.end_process(2);
    // The row of a process that ended silently is removed some seconds later.
    let swept = until(|| !proxy.has_row(&last, "trial")).await;
    assert!(swept > Duration::from_secs(3) && swept < Duration::from_secs(13), "{swept:?}");
    drop(last.registration.take());
    let closed = until(|| !proxy.fence.store.is_open()).await;
    assert!(closed >= Duration::from_millis(400) && closed < Duration::from_secs(2), "{closed:?}");
    assert!(!proxy.fence.has_sessions() && proxy.fence.listener() == 0 && proxy.fence.was_prepared());
    // The next session opens the connections again and starts the watcher.
    let _next = proxy.writer(3, "notes", 5).await;
    sleep(Duration::from_secs(5)).await;
    assert!(proxy.fence.store.is_open());
    proxy.server.lose_connection("one");
    assert!(!proxy.fence.store.is_open());
    until(|| proxy.fence.store.is_open()).await;
    proxy.fence.close().await;
    assert!(!proxy.fence.store.is_open());
}
