//! A promoted standby, or a restored backup, that lacks the last epochs.

use super::*;

/// Replaces the server with one that has the copied state.
fn promote(proxy: &Proxy, disk: crate::simulated::Disk, postmaster_start: &str) {
    proxy.server.restore(disk);
    proxy.server.restart(postmaster_start);
}

/// A client of the server with this postmaster.
fn client_of(proxy: &Proxy, pid: i32, postmaster_start: &str) -> Client {
    let identity = Identity { postmaster_start: postmaster_start.to_owned(), ..process(pid) };
    proxy.server.begin_process(&identity);
    let session = Arc::new(SessionFence::new(Ok(identity)));
    let registration = Some(proxy.fence.register(session.clone()));
    Client { session, pid, registration }
}

fn queries(proxy: &Proxy) -> u32 {
    proxy.election.1.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_leader_deposed_before_the_promotion_is_refused() {
    for resource in ["jobs", "part/1"] {
        let proxy = Proxy::start(&server(), "one").await;
        proxy.election.elects(Some(47));
        drop(proxy.writer(1, resource, 47).await);
        let disk = proxy.server.copy();
        proxy.election.elects(Some(48));
        drop(proxy.writer(2, resource, 48).await);
        promote(&proxy, disk, "2");
        assert_eq!(proxy.epoch(resource), Some(epoch(1, 47)), "the last epoch is lost");

        let zombie = client_of(&proxy, 3, "2");
        proxy.election.falls_silent();
        let silent = proxy.admit(&zombie, resource, 47).await;
        assert!(silent.contains("cannot query etcd for the leader of"), "{silent}");
        proxy.election.elects(Some(48));
        let stale = format!("token 47 for resource {resource} is lower than 48, the highest seen");
        assert_eq!(proxy.admit(&zombie, resource, 47).await, stale);
        proxy.election.elects(None);
        let unissued = proxy.admit(&zombie, resource, 47).await;
        assert!(unissued.contains("was not issued to the leader of"), "{unissued}");
        assert!(!proxy.has_row(&zombie, resource) && zombie.session.admission(resource).is_none());

        proxy.election.elects(Some(48));
        assert_eq!(proxy.admit(&client_of(&proxy, 4, "2"), resource, 48).await, "admitted");
    }
}

#[tokio::test(start_paused = true)]
async fn the_issuer_is_queried_once_for_each_server_and_proxy() {
    let (server, resource) = (server(), "jobs");
    let proxy = Proxy::start(&server, "one").await;
    proxy.election.elects(Some(47));
    drop(proxy.writer(1, resource, 47).await);
    assert_eq!(queries(&proxy), 1);
    drop(proxy.writer(2, resource, 47).await);
    assert_eq!(queries(&proxy), 1);
    let other = Proxy::start(&server, "two").await;
    other.election.elects(Some(47));
    drop(other.writer(3, resource, 47).await);
    drop(other.writer(4, resource, 47).await);
    assert_eq!(queries(&other), 1, "its first query on this server");
    promote(&proxy, server.copy(), "2");
    for pid in [5, 6] {
        assert_eq!(proxy.admit(&client_of(&proxy, pid, "2"), resource, 47).await, "admitted");
    }
    assert_eq!(queries(&proxy), 2);
    // Two further Admits of a higher token query the election only once.
    proxy.election.elects(Some(48));
    assert_eq!(proxy.admit(&client_of(&proxy, 7, "2"), resource, 48).await, "admitted");
    assert_eq!(proxy.admit(&client_of(&proxy, 8, "2"), resource, 48).await, "admitted");
    assert_eq!(queries(&proxy), 3);
}

/// The confirmed token is not yet published. The lower one is nevertheless no longer in force.
#[tokio::test(start_paused = true)]
async fn a_confirmation_does_not_cover_lower_epochs() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(47));
    drop(proxy.writer(1, "jobs", 47).await);
    let disk = proxy.server.copy();
    promote(&proxy, disk, "2");
    proxy.election.elects(Some(48));
    let server = proxy.server.clone();
    // The proxy loses its connection before the Publish, and its next connection fails.
    server.set_found(crate::store::Found::Nothing);
    proxy.server.meanwhile(move || server.set_found(crate::store::Found::Missing));
    let leader = client_of(&proxy, 2, "2");
    assert_ne!(proxy.admit(&leader, "jobs", 48).await, "admitted");
    proxy.server.set_found(crate::store::Found::Nothing);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(proxy.epoch("jobs"), Some(epoch(1, 47)));
    let stale = "token 47 for resource jobs is lower than 48, the highest seen";
    assert_eq!(proxy.admit(&client_of(&proxy, 3, "2"), "jobs", 47).await, stale);
}

/// The lease is in the same database. It may have survived even if the epoch of its token is lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_survived_shuts_its_predecessor_out() {
    for resource in ["bills", "room/1"] {
        let proxy = Proxy::start(&server(), "one").await;
        proxy.server.lease(resource, 47, false, HOUR);
        drop(proxy.writer(1, resource, 47).await);
        let both_lost = proxy.server.copy();
        proxy.server.lease(resource, 48, false, HOUR);
        let epoch_lost = proxy.server.copy();
        drop(proxy.writer(2, resource, 48).await);

        promote(&proxy, epoch_lost, "2");
        let stale = format!("token 47 for resource {resource} is lower than 48, the highest seen");
        assert_eq!(proxy.admit(&client_of(&proxy, 3, "2"), resource, 47).await, stale);
        promote(&proxy, both_lost, "3");
        assert_eq!(proxy.admit(&client_of(&proxy, 4, "3"), resource, 47).await, "admitted");
        assert!(proxy.admit(&client_of(&proxy, 5, "3"), resource, 48).await.contains("was not issued"));
        // A lease that has ended shows no other leader.
        proxy.server.lease(resource, 47, true, HOUR);
        promote(&proxy, proxy.server.copy(), "4");
        assert_eq!(proxy.admit(&client_of(&proxy, 6, "4"), resource, 47).await, "admitted");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_issuer_the_epoch_is_trusted() {
    let proxy = Proxy::start(&server(), "one").await;
    drop(proxy.writer(1, "notes", 47).await);
    promote(&proxy, proxy.server.copy(), "2");
    assert_eq!(proxy.admit(&client_of(&proxy, 2, "2"), "notes", 47).await, "admitted");
}

/// An earlier confirmation does not undo an operator's reset.
#[tokio::test(start_paused = true)]
async fn a_reset_below_the_confirmed_token_is_trusted() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(47));
    drop(proxy.writer(1, "jobs", 47).await);
    proxy.fence.reset(&proxy.resource("jobs"), 40, "operator", true).await.unwrap();
    assert_eq!(proxy.admit(&proxy.client(2), "jobs", 40).await, "admitted");
    let before = queries(&proxy);
    assert_eq!(proxy.admit(&proxy.client(3), "jobs", 40).await, "admitted");
    assert_eq!(queries(&proxy), before);
}

/// In mode observe, the proxy reports a write that enforce would reject.
#[tokio::test(start_paused = true)]
async fn observe_reports_a_leader_deposed_before_the_promotion() {
    let text = POLICIES.replace("election: /jobs}", "election: /jobs, mode: observe}");
    let proxy = Proxy::start_with(&server(), "one", &text).await;
    proxy.election.elects(Some(47));
    let jobs = proxy.resource("jobs");
    proxy.fence.observe(&proxy.client(1).session, &jobs, 47, Raise::Freely).await.unwrap();
    promote(&proxy, proxy.server.copy(), "2");
    proxy.election.elects(Some(48));
    let observed = proxy.fence.observe(&client_of(&proxy, 2, "2").session, &jobs, 47, Raise::Freely).await;
    assert!(matches!(observed, Err(FenceError::Stale { presented: 47, highest, .. }) if highest.token == 48));
}

/// The election's answer may predate the promotion. An ordinary Admit first verifies that the server accepts writes.
#[tokio::test(start_paused = true)]
async fn the_first_tokens_of_a_server_that_was_not_seen_yet_take_all_steps() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.election.elects(Some(47));
    let drains = || proxy.fence.environment.metrics.drain_seconds.get_sample_count();
    let admit = async |pid: i32, postmaster_start: &str, resource: &str| {
        let before = drains();
        assert_eq!(proxy.admit(&client_of(&proxy, pid, postmaster_start), resource, 47).await, "admitted");
        drains() - before
    };
    assert_eq!(admit(1, "1", "part/1").await, 1);
    assert_eq!(admit(2, "1", "part/2").await, 0, "one Query");
    promote(&proxy, proxy.server.copy(), "2");
    assert_eq!(admit(3, "2", "part/3").await, 1);
    assert_eq!(admit(4, "2", "part/4").await, 0);
}
