//! The proxy's cached state: how long it is valid, and how errors in it are detected.

use super::*;
use crate::advance::publish;

#[tokio::test(start_paused = true)]
async fn a_stale_token_is_known_for_a_second_while_a_connection_listens() {
    let proxy = Proxy::start(&server(), "one").await;
    let _client = proxy.writer(1, "notes", 7).await;
    let known = |token| proxy.fence.known_stale("notes", token);
    assert_eq!([known(6), known(7), known(8)], [Some(epoch(1, 7)), None, None]);
    assert_eq!(proxy.fence.known_stale("trial", 6), None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(known(6), None, "the epoch was not confirmed recently");
    assert_eq!(proxy.admit(&proxy.client(2), "notes", 7).await, "admitted");
    assert_eq!(known(6), Some(epoch(1, 7)));
    proxy.server.lose_connection("one");
    assert_eq!(known(6), None);
    assert_eq!(proxy.fence.known_tokens(), [("notes".to_owned(), 7)]);
}

/// The proxy forgets a pruned epoch at the next read. The next token is then a first token.
#[tokio::test(start_paused = true)]
async fn a_pruned_epoch_is_forgotten() {
    for resource in ["notes", "shard/1"] {
        let proxy = Proxy::start(&server(), "one").await;
        let mut client = proxy.writer(1, resource, 7).await;
        sleep(Duration::from_millis(10)).await;
        proxy.server.end_process(1);
        drop(client.registration.take());
        until(|| !proxy.has_row(&client, resource)).await;
        proxy.server.prune(resource);
        assert_eq!(proxy.fence.has_epoch(&proxy.resource(resource)).await, Ok(false));
        assert_eq!(proxy.fence.memory.last_read(resource), None);
        assert_eq!(proxy.admit(&proxy.client(2), resource, 3).await, "admitted");
        assert_eq!(proxy.epoch(resource), Some(epoch(1, 3)));
    }
}

/// A proxy that remembers token 7 of a pruned epoch.
async fn after_missed_pruning(resource: &str) -> Proxy {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, resource, 7).await;
    proxy.fence.watcher.stop();
    proxy.server.end_process(1);
    proxy.fence.store.delete_dead(None).await.unwrap();
    assert!(!proxy.has_row(&client, resource));
    proxy.server.prune(resource);
    assert_eq!(proxy.fence.memory.last_read(resource), Some(epoch(1, 7)));
    proxy
}

/// The answer to an Admit shows that the epoch is gone, even without a notification.
#[tokio::test(start_paused = true)]
async fn a_missed_pruning_is_detected_by_a_write() {
    for resource in ["notes", "shard/1"] {
        let proxy = after_missed_pruning(resource).await;
        assert_eq!(proxy.admit(&proxy.client(2), resource, 3).await, "admitted");
        assert_eq!(proxy.epoch(resource), Some(epoch(1, 3)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missed_pruning_is_detected_by_an_admit_that_may_not_raise() {
    for resource in ["notes", "shard/1"] {
        let proxy = after_missed_pruning(resource).await;
        let never = format!("token 3 for resource {resource} is not in force yet");
        assert_eq!(proxy.admit_if(&proxy.client(2), resource, 3, Raise::Never).await, never);
        assert_eq!(proxy.fence.memory.last_read(resource), None);
    }
}

/// Each proxy is notified of the tokens that others raise.
#[tokio::test(start_paused = true)]
async fn a_token_raised_by_another_proxy_is_received() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let _first = one.writer(1, "notes", 5).await;
    sleep(Duration::from_secs(1)).await;
    one.fence.epoch_changed().await;
    let changed = {
        let fence = one.fence.clone();
        tokio::spawn(async move { fence.epoch_changed().await })
    };
    sleep(Duration::from_millis(10)).await;
    assert!(!changed.is_finished());
    let _second = two.writer(2, "notes", 6).await;
    let received = until(|| one.fence.known_stale("notes", 5).is_some()).await;
    assert!(received < Duration::from_millis(100), "{received:?}");
    changed.await.unwrap();
    assert_eq!(one.fence.epoch_changes().last().map(|it| it.after), Some(epoch(1, 6)));
}

/// After a gap in notifications, a proxy reads the changes that it missed: of its own admissions, and of all resources
/// without keys.
#[tokio::test(start_paused = true)]
async fn missed_changes_are_read_after_reconnecting() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let old = one.writer(1, "shard/1", 5).await;
    assert_eq!(one.admit(&old, "notes", 5).await, "admitted");
    sleep(Duration::from_millis(100)).await;
    server.lose_connection("one");
    for name in ["shard/1", "notes"] {
        let resource = two.resource(name);
        publish(&two.fence.context().advance(&resource, epoch(1, 6)), Some(epoch(1, 5))).await.unwrap();
    }
    assert_eq!(one.fence.known_stale("notes", 5), None);
    until(|| ["shard/1", "notes"].iter().all(|name| one.fence.known_stale(name, 5).is_some())).await;
    until(|| !one.has_row(&old, "shard/1") && !one.has_row(&old, "notes")).await;
    assert!(server.lives(1) && !old.session.holds_admissions());
}

/// If policies are reloaded while a session waits, the new policies apply to the session.
#[tokio::test(start_paused = true)]
async fn a_session_is_admitted_by_the_policies_in_force() {
    let proxy = Proxy::start(&server(), "one").await;
    let before = proxy.resource("notes");
    proxy.server.pass(Duration::from_secs(1));
    sleep(Duration::from_secs(1)).await;
    let more = policies(&POLICIES.replace("[public.notes]", "[public.notes, public.more]"));
    proxy.fence.apply_policy_of(&more.resources, Instant::now().into_std()).await.unwrap();
    let client = proxy.client(1);
    assert_eq!(outcome_text(proxy.fence.admit(&client.session, &before, 5).await, "admitted"), "admitted");
    assert_eq!(proxy.fence.policies.loaded(&before), 0);
    assert!(proxy.fence.policies.loaded(&proxy.resource("notes")) > 0);
    let two =
        Proxy::start_with(&proxy.server, "two", &POLICIES.replace("[public.notes]", "[public.notes, public.more]"))
            .await;
    assert_eq!(two.admit(&two.client(2), "notes", 5).await, "admitted", "both proxies have the new policies");
}

/// The new policies name an election, which the session's verdict did not take into account.
#[tokio::test(start_paused = true)]
async fn a_token_must_come_from_the_issuer_of_the_current_policies() {
    let proxy = Proxy::start(&server(), "one").await;
    let before = proxy.resource("notes");
    sleep(Duration::from_secs(1)).await;
    let more = policies(&POLICIES.replace("[public.notes]", "[public.notes], election: /notes"));
    proxy.fence.apply_policy_of(&more.resources, Instant::now().into_std()).await.unwrap();
    let client = proxy.client(1);
    let refused = proxy.fence.admit(&client.session, &before, 5).await;
    assert!(matches!(refused, Err(FenceError::Unissued { issued: Issued::ToNobody, .. })), "{refused:?}");
    assert_eq!(proxy.epoch("notes"), None);
    proxy.election.elects(Some(5));
    assert_eq!(proxy.fence.admit(&client.session, &before, 5).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn admissions_are_shown_with_their_proxy() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let (_own, _other) = (one.writer(1, "notes", 5).await, two.writer(2, "trial", 6).await);
    let Bounded { list, left_out } = one.fence.admissions().await.unwrap();
    let of = |it: &Admission| (it.resource.clone(), it.epoch, it.pid, it.proxy.clone(), it.is_ours, it.is_alive);
    let own = ("notes".to_owned(), epoch(1, 5), 1, "one".to_owned(), true, true);
    let other = ("trial".to_owned(), epoch(1, 6), 2, "two".to_owned(), false, true);
    assert_eq!((list.iter().map(of).collect::<Vec<_>>(), left_out), (vec![own, other], 0));
}

#[tokio::test(start_paused = true)]
async fn names_are_resolved_by_the_policies_in_force() {
    let proxy = Proxy::start(&server(), "one").await;
    assert!(proxy.fence.resource("shard/7").is_some_and(|it| it.name == "shard/7" && it.family.is_some()));
    assert!(proxy.fence.resource("nothing").is_none());
    assert_eq!(proxy.fence.policies.plain_names(), ["jobs", "bills", "notes", "trial"]);
    let leased: Vec<_> = proxy.fence.policies.leased().iter().map(|it| it.name.clone()).collect();
    assert_eq!(leased, ["bills"]);
    assert!(proxy.fence.keys_in_use().is_empty());
    let client = proxy.writer(1, "shard/7", 5).await;
    assert_eq!(proxy.admit(&client, "notes", 5).await, "admitted");
    let keys: Vec<_> = proxy.fence.keys_in_use().iter().map(|it| it.name.clone()).collect();
    assert_eq!(keys, ["shard/7"]);
    assert_eq!(proxy.fence.name(), "postgres");
    let fences = proxy.fence.fences(&proxy.policies.resources).await.unwrap();
    assert_eq!(fences.plain.keys().collect::<Vec<_>>(), ["notes"]);
    assert_eq!(fences.of_keys.len(), 1);
    assert_eq!(fences.plain["notes"].admissions, 1);
    proxy.fence.put_in_force(&[]);
    assert!(proxy.fence.resource("shard/7").is_none() && proxy.fence.keys_in_use().is_empty());
}

/// Other proxies are notified of a catalog change. The announcing proxy is not.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_catalog_is_announced_to_others() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let announced = |proxy: &Proxy| {
        let fence = proxy.fence.clone();
        tokio::spawn(async move { fence.catalog_announced().await })
    };
    let (ones, twos) = (announced(&one), announced(&two));
    sleep(Duration::from_millis(10)).await;
    one.fence.announce_catalog().await;
    sleep(Duration::from_millis(10)).await;
    assert!(!ones.is_finished() && twos.is_finished());
    ones.abort();
}
