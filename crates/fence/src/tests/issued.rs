//! Tokens that an election or a lease must have issued.

use super::*;
use crate::UnknownLeader;
use crate::fence_error::Issued;
use crate::issuer::{self, leads, may_raise};

/// The error of an Admit, if it is refused.
async fn refusal(proxy: &Proxy, client: &Client, resource: &str, token: Token) -> Option<FenceError> {
    proxy.fence.admit(&client.session, &proxy.resource(resource), token).await.err()
}

fn issued(refusal: Option<FenceError>) -> Issued {
    match refusal {
        Some(FenceError::Unissued { issued, .. }) => issued,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_token_of_a_current_lease_raises_the_fence() {
    for (plain, name) in [("bills", "bills"), ("room/1", "room/1")] {
        let proxy = Proxy::start(&server(), "one").await;
        let client = proxy.client(1);
        assert_eq!(issued(refusal(&proxy, &client, plain, 5).await), Issued::ToNobody);
        proxy.server.lease(name, 5, false, HOUR);
        assert_eq!(issued(refusal(&proxy, &client, plain, 6).await), Issued::ToLeader(5));
        let stale = FenceError::Stale { resource: plain.to_owned(), presented: 4, highest: epoch(1, 5) };
        assert_eq!(refusal(&proxy, &client, plain, 4).await, Some(stale));
        proxy.server.lease(name, 5, true, HOUR);
        assert_eq!(issued(refusal(&proxy, &client, plain, 5).await), Issued::Released(5));
        proxy.server.lease(name, 5, false, 0);
        assert_eq!(issued(refusal(&proxy, &client, plain, 5).await), Issued::Expired(5));
        assert_eq!(proxy.epoch(plain), None);
        proxy.server.lease(name, 5, false, HOUR);
        assert_eq!(proxy.admit(&client, plain, 5).await, "admitted");
        // A token in force no longer needs a lease.
        proxy.server.lease(name, 5, true, HOUR);
        assert_eq!(proxy.admit(&proxy.client(2), plain, 5).await, "admitted");
        assert_eq!(Issued::ToNobody.token(), None);
        assert_eq!([Issued::ToLeader(5), Issued::Released(5), Issued::Expired(5)].map(Issued::token), [Some(5); 3]);
    }
}

/// The lease is checked before a drain, and the refusal names the lease.
#[tokio::test(start_paused = true)]
async fn a_lease_is_checked_before_the_fence_is_raised() {
    let proxy = Proxy::start(&server(), "one").await;
    let bills = proxy.resource("bills");
    assert!(matches!(
        issuer::confirm_lease(proxy.fence.context(), &bills, "bills", epoch(1, 5)).await,
        Err(FenceError::Unissued { issued: Issued::ToNobody, .. })
    ));
    proxy.server.lease("bills", 5, false, HOUR);
    assert_eq!(issuer::confirm_lease(proxy.fence.context(), &bills, "bills", epoch(1, 5)).await, Ok(()));
    assert!(may_raise(proxy.fence.context(), &bills, epoch(1, 6)).await.is_err());
    assert!(may_raise(proxy.fence.context(), &proxy.resource("notes"), epoch(1, 6)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_the_token_of_the_leader_raises_the_fence() {
    for resource in ["jobs", "part/1"] {
        let proxy = Proxy::start(&server(), "one").await;
        let client = proxy.client(1);
        assert_eq!(issued(refusal(&proxy, &client, resource, 5).await), Issued::ToNobody);
        proxy.election.elects(Some(5));
        assert_eq!(issued(refusal(&proxy, &client, resource, 6).await), Issued::ToLeader(5));
        let stale = FenceError::Stale { resource: resource.to_owned(), presented: 4, highest: epoch(1, 5) };
        assert_eq!(refusal(&proxy, &client, resource, 4).await, Some(stale));
        proxy.election.falls_silent();
        let silent = refusal(&proxy, &client, resource, 5).await.unwrap().to_string();
        assert!(silent.contains("cannot query etcd for the leader of"), "{silent}");
        assert_eq!(proxy.epoch(resource), None);
        proxy.election.elects(Some(5));
        assert_eq!(proxy.admit(&client, resource, 5).await, "admitted");
        proxy.election.falls_silent();
        assert_eq!(proxy.admit(&proxy.client(2), resource, 5).await, "admitted");
    }
}

#[tokio::test(start_paused = true)]
async fn without_etcd_no_election_token_raises_a_fence() {
    let server = server();
    let fence = database(&server);
    let policies = policies(POLICIES);
    fence.apply_policy(&policies.resources).await.unwrap();
    let why = may_raise(fence.context(), &policies.resources[0], epoch(1, 5)).await.unwrap_err().to_string();
    assert_eq!(why, "resource jobs: no etcd is set for election /jobs");
    let issuers: Vec<_> = policies.resources.iter().filter_map(|it| it.issuer.clone()).collect();
    assert!(matches!(fence.leader(&issuers[0]).await, Err(UnknownLeader::NoEtcd)));
    assert_eq!(fence.leader(&issuers[1]).await.unwrap(), None);
    server.lease("bills", 5, false, HOUR);
    assert_eq!(fence.leader(&issuers[1]).await.unwrap(), Some(5));
    server.lease("bills", 5, true, HOUR);
    assert_eq!(fence.leader(&issuers[1]).await.unwrap(), None);
}

/// The leader's token is below the fence: tokens have gone back, or the fence was raised to a token never issued.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_tokens_went_back_receives_that_error() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(9));
    proxy.server.lease("bills", 9, false, HOUR);
    let client = proxy.client(1);
    for resource in ["jobs", "bills"] {
        assert_eq!(proxy.admit(&client, resource, 9).await, "admitted");
    }
    proxy.election.elects(Some(3));
    proxy.server.lease("bills", 3, false, HOUR);
    sleep(Duration::from_millis(100)).await;
    for resource in ["jobs", "bills"] {
        let back = format!("token 3 for resource {resource} is lower than 9, although the leader of");
        assert_eq!(proxy.fence.known_stale(resource, 3), None, "only the database shows this");
        assert_eq!(proxy.fence.known_stale(resource, 4).map(|epoch| epoch.token), Some(9));
        let error = proxy.admit(&client, resource, 3).await;
        assert!(error.starts_with(&back), "{error}");
        let error = proxy.admit(&client, resource, 4).await;
        assert_eq!(error, format!("token 4 for resource {resource} is lower than 9, the highest seen"));
    }
    // The lease has ended by the time of the check.
    proxy.server.lease("bills", 3, true, HOUR);
    let stale = proxy.admit(&client, "bills", 3).await;
    assert_eq!(stale, "token 3 for resource bills is lower than 9, the highest seen");
}

/// The proxy notices the release and the expiry of a lease.
#[tokio::test(start_paused = true)]
async fn leases_are_followed_while_there_are_sessions() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.lease("bills", 5, false, HOUR);
    proxy.server.lease("room/1", 7, false, HOUR);
    proxy.server.lease("room/2", 8, false, HOUR);
    let leased = proxy.fence.leased();
    let known = |resource: &str| leased.borrow().get(resource).copied();
    let mut client = proxy.writer(1, "bills", 5).await;
    until(|| known("bills") == Some(Some(5))).await;
    assert_eq!(known("room/1"), None, "no session writes to that key");
    assert_eq!(proxy.admit(&client, "room/1", 7).await, "admitted");
    until(|| known("room/1") == Some(Some(7))).await;
    assert_eq!((known("room/2"), known("notes")), (None, None));
    assert!(proxy.fence.watcher.is_leased("bills", 5) && !proxy.fence.watcher.is_leased("bills", 6));
    let bills = proxy.resource("bills");
    assert_eq!(followed_leader(&bills, &Leaders::default(), &leased.borrow()), Some(Some(5)));
    assert_eq!(followed_leader(&proxy.resource("notes"), &Leaders::default(), &leased.borrow()), None);
    let since = Instant::now();
    proxy.server.lease("bills", 5, true, HOUR);
    until(|| known("bills") == Some(None)).await;
    assert!(since.elapsed() < Duration::from_millis(100), "the release is announced");
    proxy.server.lease("bills", 6, false, 10_000_000);
    until(|| known("bills") == Some(Some(6))).await;
    proxy.server.pass(Duration::from_secs(11));
    until(|| known("bills") == Some(None)).await;
    drop(client.registration.take());
    until(|| leased.borrow().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_missed_lease_change_is_known_after_reconnecting() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.lease("bills", 5, false, HOUR);
    let _client = proxy.writer(1, "bills", 5).await;
    until(|| proxy.fence.watcher.is_leased("bills", 5)).await;
    proxy.server.lose_connection("one");
    proxy.server.lease("bills", 6, false, HOUR);
    assert_eq!(proxy.fence.has_epoch(&proxy.resource("bills")).await, Ok(true));
    let known = until(|| proxy.fence.watcher.is_leased("bills", 6)).await;
    assert!(known < Duration::from_millis(100), "{known:?}");
}

/// The lease was in force at the check, but not at the Publish.
#[tokio::test(start_paused = true)]
async fn a_lease_released_meanwhile_raises_no_token() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.lease("bills", 5, false, HOUR);
    let _old = proxy.writer(1, "bills", 5).await;
    proxy.server.lease("bills", 6, false, HOUR);
    let server = proxy.server.clone();
    proxy.server.meanwhile(move || server.lease("bills", 6, true, HOUR));
    let refused = proxy.fence.overtake(&proxy.resource("bills"), 6).await;
    assert_eq!((issued(refused.err()), proxy.epoch("bills")), (Issued::Released(6), Some(epoch(1, 5))));
}

#[tokio::test(start_paused = true)]
async fn other_leases_wake_no_session() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.lease("bills", 5, false, HOUR);
    let _client = proxy.writer(1, "bills", 5).await;
    let mut leased = proxy.fence.leased();
    until(|| proxy.fence.watcher.is_leased("bills", 5)).await;
    leased.mark_unchanged();
    proxy.server.lease("others", 6, false, HOUR);
    proxy.server.lease("bills", 5, false, HOUR);
    sleep(Duration::from_secs(10)).await;
    assert!(!leased.has_changed().unwrap());
    let read = proxy.fence.leases().await.unwrap();
    assert_eq!((read.list.len(), read.left_out), (2, 0));
    let named = [LeaseState::InForce, LeaseState::Released, LeaseState::Expired].map(LeaseState::name);
    assert_eq!(named, ["in force", "released", "expired"]);
}

/// The proxy follows only elections that policies name, and those of keys to which a session is admitted.
#[tokio::test(start_paused = true)]
async fn elections_are_followed_only_while_they_are_in_use() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(5));
    let leaders = proxy.authority.leaders();
    let known = || leaders.borrow().keys().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>();
    until(|| !known().is_empty()).await;
    assert_eq!(known().into_iter().collect::<Vec<_>>(), ["/jobs"]);
    assert_eq!(proxy.authority.is_up().await, Some(true));
    let mut client = proxy.writer(1, "part/1", 5).await;
    assert_eq!(proxy.admit(&client, "shard/1", 5).await, "admitted");
    until(|| known().len() == 2).await;
    assert_eq!(known().into_iter().collect::<Vec<_>>(), ["/jobs", "/part/1"]);
    assert!(
        leads(proxy.fence.context(), &proxy.resource("part/1"), 5)
            && !leads(proxy.fence.context(), &proxy.resource("part/1"), 4)
    );
    assert!(!leads(proxy.fence.context(), &proxy.resource("notes"), 5));
    drop(client.registration.take());
    until(|| known().len() == 1).await;
    proxy.authority.follow(&Default::default());
    assert!(known().is_empty() && proxy.authority.is_up().await == Some(true));
    proxy.election.falls_silent();
    assert_eq!(proxy.authority.is_up().await, Some(false), "etcd does not answer");
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_leader_wakes_no_session() {
    let proxy = Proxy::start(&server(), "one").await;
    let (jobs, mut leaders) = (proxy.resource("jobs"), proxy.authority.leaders());
    proxy.election.elects(Some(5));
    until(|| leads(proxy.fence.context(), &jobs, 5)).await;
    leaders.mark_unchanged();
    for (leader, wakes) in [(5, false), (6, true)] {
        proxy.election.elects(Some(leader));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(leaders.has_changed().unwrap(), wakes, "{leader}");
    }
}

#[tokio::test(start_paused = true)]
async fn elections_are_not_followed_after_the_proxy_is_dropped() {
    let proxy = Proxy::start(&server(), "one").await;
    let election = proxy.election.clone();
    until(|| election.0.receiver_count() == 1).await;
    drop(proxy);
    until(|| election.0.receiver_count() == 0).await;
}

/// If an observer fails, the proxy forgets the leader and observes the election again.
#[tokio::test(start_paused = true)]
async fn a_leader_is_unknown_if_its_election_cannot_be_observed() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(5));
    let leaders = proxy.authority.leaders();
    let leader = || leaders.borrow().values().next().copied();
    until(|| leader() == Some(Some(5))).await;
    proxy.election.falls_silent();
    until(|| leader().is_none()).await;
    assert_eq!(proxy.authority.is_up().await, Some(false));
    sleep(Duration::from_secs(60)).await;
    proxy.election.elects(Some(6));
    let again = until(|| leader() == Some(Some(6))).await;
    assert!(again <= Duration::from_secs(6), "{again:?}");
    proxy.election.elects(None);
    until(|| leader() == Some(None)).await;
}

/// The watcher ends with the last session. A later session starts a new watcher even without a Query.
#[tokio::test(start_paused = true)]
async fn leases_are_followed_for_a_session_without_queries() {
    let proxy = Proxy::start(&server(), "one").await;
    until(|| !proxy.fence.watcher.runs()).await;
    let _client = proxy.client(1);
    proxy.server.lease("bills", 5, false, HOUR);
    until(|| proxy.fence.leased().borrow().get("bills") == Some(&Some(5))).await;
}
