//! Work that must not happen: needless connections, queries and memory, and leftover tasks.

use super::*;
use crate::store::StoreError;
use fencegate_wire::client_error::ClientError;
use tokio::task::yield_now;

#[tokio::test(start_paused = true)]
async fn each_listening_connection_has_a_new_number() {
    let (server, policies) = (server(), policies(POLICIES));
    let fence = database(&server);
    let numbers = || (fence.listener(), fence.last_listener());
    assert_eq!((numbers(), fence.was_prepared()), ((0, 0), false));
    assert_eq!(fence.apply_policy(&policies.resources).await, Ok(()));
    assert!(fence.resource("notes").is_some());
    let (first, _) = numbers();
    assert!(first != 0 && numbers() == (first, first) && fence.was_prepared());
    fence.close().await;
    assert_eq!((numbers(), fence.was_prepared()), ((0, first), true));
    assert_eq!(fence.has_epoch(&fence.resource("notes").unwrap()).await, Ok(false));
    let (second, _) = numbers();
    assert!(second > first && numbers() == (second, second));
}

#[tokio::test(start_paused = true)]
async fn applying_policies_that_cannot_be_recorded_fails() {
    let (server, policies) = (server(), policies(POLICIES));
    server.set_found(crate::store::Found::Missing);
    let applied = database(&server).apply_policy(&policies.resources).await;
    assert_eq!(applied.unwrap_err().to_string(), "database \"memory\" does not exist");
}

#[tokio::test(start_paused = true)]
async fn a_session_without_fences_has_no_watcher() {
    let (server, policies) = (server(), policies(POLICIES));
    let fence = database(&server);
    let register = |pid| fence.register(Arc::new(SessionFence::new(Ok(process(pid)))));
    let _first = register(1);
    assert!(!fence.watcher.runs() && fence.has_sessions());
    fence.put_in_force(&policies.resources);
    let _second = register(2);
    assert!(fence.watcher.runs());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_database_leaves_no_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (server, before) = (server(), tasks());
    let fence = database(&server);
    fence.apply_policy(&policies(POLICIES).resources).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(tasks(), before + 1);
    drop(fence);
    yield_now().await;
    assert_eq!(tasks(), before, "the task ends immediately");
}

/// The session sends no query without a revocation, or while a statement runs.
#[tokio::test(start_paused = true)]
async fn a_session_without_revoked_admissions_sends_no_query() {
    for (revoked, activity, asks) in [
        (false, Activity::Idle, false),
        (false, Activity::Busy, false),
        (true, Activity::Busy, false),
        (true, Activity::Idle, true),
    ] {
        let proxy = Proxy::start(&server(), "one").await;
        let client = proxy.writer(1, "notes", 5).await;
        client.session.set_activity(activity);
        if revoked {
            let _ = client.session.revoke("notes", epoch(1, 6));
        }
        proxy.fence.close().await;
        proxy.fence.release(&client.session).await;
        assert_eq!(proxy.fence.store.is_open(), asks, "{revoked} {activity:?}");
    }
}

/// A proxy withdraws its announcement after its last session. A proxy that ends with open sessions counts as lost.
#[tokio::test(start_paused = true)]
async fn a_proxy_without_sessions_no_longer_counts() {
    for (has_sessions, expected) in [(false, (1, 0)), (true, (2, 1))] {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let (_own, mut client) = (one.client(1), two.client(2));
        if !has_sessions {
            drop(client.registration.take());
        }
        two.fence.close().await;
        let enforcement = one.fence.enforcement(&one.policies.resources).await.unwrap();
        let reach = enforcement.reach[&one.resource("notes").fingerprint];
        assert_eq!((reach.proxies, reach.lost), expected, "{has_sessions}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_announcement_is_repeated_over_a_new_connection() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let _clients = (one.client(1), two.client(2));
    sleep(Duration::from_secs(1)).await;
    server.lose_connection("two");
    until(|| two.fence.store.is_open()).await;
    sleep(Duration::from_secs(5)).await;
    let enforcement = one.fence.enforcement(&one.policies.resources).await.unwrap();
    let reach = enforcement.reach[&one.resource("notes").fingerprint];
    assert_eq!((reach.proxies, reach.lost), (2, 0));
}

/// A repeated announcement extends the time for which a lost proxy counts. A proxy repeats it at most once a minute.
#[tokio::test(start_paused = true)]
async fn an_announcement_is_repeated_only_after_a_full_minute() {
    for (millis, expected) in [(59_999, (1, 0)), (60_000, (2, 1))] {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let _client = two.client(2);
        // Announce again, over the connection that the first announcement has opened.
        crate::enforcement::announce(two.fence.context()).await.unwrap();
        two.fence.watcher.stop();
        server.pass(Duration::from_secs(300));
        tokio::time::advance(Duration::from_millis(millis)).await;
        crate::enforcement::announce(two.fence.context()).await.unwrap();
        two.fence.watcher.stop();
        server.lose_connection("two");
        server.pass(Duration::from_secs(400));
        let enforcement = one.fence.enforcement(&one.policies.resources).await.unwrap();
        let reach = enforcement.reach[&one.resource("notes").fingerprint];
        assert_eq!((reach.proxies, reach.lost), expected, "{millis}");
    }
}

/// The load time is queried once. Later changes of the database's clock do not affect it.
#[tokio::test(start_paused = true)]
async fn policies_applied_again_keep_their_load_time() {
    let proxy = Proxy::start(&server(), "one").await;
    let (notes, at) = (proxy.resource("notes"), Instant::now().into_std() + Duration::from_secs(1));
    let apply = async |at| proxy.fence.apply_policy_of(&proxy.policies.resources, at).await.unwrap();
    apply(at).await;
    let loaded = proxy.fence.policies.loaded(&notes);
    proxy.server.pass(Duration::from_secs(60));
    apply(at).await;
    assert!(loaded > 0);
    assert_eq!(proxy.fence.policies.loaded(&notes), loaded);
    apply(at + Duration::from_secs(1)).await;
    assert!(proxy.fence.policies.loaded(&notes) > loaded, "later policies have a later load time");
}

#[tokio::test(start_paused = true)]
async fn unrecorded_policies_are_not_superseded() {
    let server = server();
    let other = POLICIES.replace("[public.notes]", "[public.notes, public.more]");
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start_with(&server, "two", &other).await);
    let _writer = two.writer(1, "notes", 5).await;
    sleep(Duration::from_secs(1)).await;
    one.fence.put_in_force(&one.policies.resources);
    one.fence.check_policies().await;
    assert!(one.fence.superseded().is_empty());
}

#[tokio::test(start_paused = true)]
async fn permissions_of_several_logins_are_remembered() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.client(1);
    let one = claim(Some("app"));
    let other = Claim { login: "other".to_owned(), ..one.clone() };
    for (key, claim) in [(1, &one), (2, &other)] {
        assert_eq!(proxy.admit_if(&client, &format!("shard/{key}"), 5, Raise::IfPermitted(claim)).await, "admitted");
    }
    proxy.server.forbid("app");
    for (key, claim) in [(3, &one), (4, &other)] {
        assert_eq!(proxy.admit_if(&client, &format!("shard/{key}"), 5, Raise::IfPermitted(claim)).await, "admitted");
    }
}

/// The server waits five seconds for other sessions to end, and then refuses the statement.
#[tokio::test(start_paused = true)]
async fn connections_stay_closed_as_long_as_the_server_waits() {
    let proxy = Proxy::start(&server(), "one").await;
    let _client = proxy.client(1);
    assert!(!proxy.fence.vacating.lasts());
    proxy.fence.vacate(&Role::Current("owner".to_owned()), false, false).await;
    for (millis, lasts) in [(0, true), (4_999, true), (1, false), (1, false)] {
        tokio::time::advance(Duration::from_millis(millis)).await;
        assert_eq!(proxy.fence.vacating.lasts(), lasts);
    }
    proxy.fence.vacate(&Role::Current("owner".to_owned()), false, false).await;
    assert!(proxy.fence.vacating.lasts());
    proxy.fence.end_vacating();
    assert!(!proxy.fence.vacating.lasts());
}

/// With FORCE the server terminates other sessions. If the role may not terminate them, the server refuses the
/// statement, and the control connections stay open.
#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_terminate_others_drops_only_an_unused_database_by_force() {
    for (by_force, has_others, makes_way) in
        [(false, false, true), (false, true, true), (true, false, true), (true, true, false)]
    {
        let proxy = Proxy::start(&server(), "one").await;
        proxy.server.forbid_to_end("owner");
        let _other = has_others.then(|| proxy.client(1));
        proxy.fence.vacate(&Role::Current("owner".to_owned()), by_force, false).await;
        let what = format!("{by_force} {has_others}");
        assert_eq!(proxy.fence.vacating.lasts(), makes_way, "{what}");
        assert_eq!(!proxy.fence.store.is_open(), makes_way && !has_others, "{what}");
    }
}

#[test]
fn only_a_blocker_with_a_query_is_reported_with_it() {
    let blocker = |identity: &str, query: &str| Blocker { holder: identity.to_owned(), query: query.to_owned() };
    let by = [blocker("process 1", "UPDATE a"), blocker("theirs", ""), blocker("process 2", "UPDATE b")];
    let not_ended = FenceError::unavailable("notes", Obstacle::NotEnded(by.to_vec()));
    let locked = FenceError::Store { resource: "notes".to_owned(), error: StoreError::Blocked(by.to_vec()) };
    for (refusal, reason) in
        [(not_ended, "processes admitted under lower tokens have not ended"), (locked, "its lock is held by")]
    {
        let (reason, text) = (format!("{reason}: process 1; theirs; process 2"), refusal.text());
        assert_eq!(refusal.log_reason(), reason, "logs contain no queries");
        assert!(text.message.ends_with(&format!("{reason}, query: UPDATE a; UPDATE b")), "{text:?}");
        assert!(text.hint.contains("pg_terminate_backend"), "{text:?}");
    }
}

/// Log lines about the leader of `of`.
fn leader_lines(log: &str, of: &str) -> Vec<String> {
    let fields = |line: &str| line.split_once("leader_").unwrap().1.to_owned();
    log.lines().filter(|line| line.contains(of) && line.contains("leader_")).map(fields).collect()
}

#[tokio::test(start_paused = true)]
async fn leaders_by_leases_are_logged_once_per_change() {
    let log = Log::start();
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.lease("bills", 5, false, HOUR);
    for (token, released) in [(5, false), (6, false), (6, true)] {
        // After the last session, leases are not followed until the next session.
        let client = proxy.writer(1, "bills", 5).await;
        proxy.server.lease("bills", token, released, HOUR);
        sleep(Duration::from_secs(10)).await;
        drop(client);
        sleep(Duration::from_secs(10)).await;
    }
    let text = log.end();
    let changes = [
        "observed database=\"postgres\" resource=\"bills\" token=5",
        "observed database=\"postgres\" resource=\"bills\" token=6",
        "gone database=\"postgres\" resource=\"bills\"",
    ];
    assert_eq!(leader_lines(&text, "resource=\"bills\""), changes, "{text}");
}

#[tokio::test(start_paused = true)]
async fn leaders_of_elections_are_logged_once_per_change() {
    let log = Log::start();
    let proxy = Proxy::start(&server(), "one").await;
    let elects = async |leader| {
        proxy.election.elects(leader);
        sleep(Duration::from_secs(10)).await;
    };
    for leader in [Some(5), Some(5), Some(6), None, None] {
        elects(leader).await;
        proxy.election.falls_silent();
        sleep(Duration::from_secs(10)).await;
        elects(leader).await;
    }
    let text = log.end();
    let changes = ["observed election=/jobs token=5", "observed election=/jobs token=6", "gone election=/jobs"];
    assert_eq!(leader_lines(&text, "election=/jobs"), changes, "{text}");
}
