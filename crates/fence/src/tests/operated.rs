//! Operations on fences other than writes: overtakes, fences in mode observe, resets, and dropped databases.

use super::*;
use crate::advance::publish;

#[tokio::test(start_paused = true)]
async fn a_new_leader_fences_its_predecessor_before_it_writes() {
    let proxy = Proxy::start(&server(), "one").await;
    let jobs = proxy.resource("jobs");
    proxy.election.elects(Some(6));
    let overtake = async |token| proxy.fence.overtake(&jobs, token).await;
    assert_eq!((overtake(6).await, proxy.epoch("jobs")), (Ok(()), None), "no session was ever admitted");
    proxy.election.elects(Some(5));
    let old = proxy.writer(1, "jobs", 5).await;
    old.session.set_activity(Activity::Busy);
    for (leader, token) in [(Some(6), 4), (Some(6), 5), (Some(7), 6), (None, 6)] {
        proxy.election.elects(leader);
        assert_eq!((overtake(token).await, proxy.epoch("jobs")), (Ok(()), Some(epoch(1, 5))), "{token}");
    }
    proxy.election.falls_silent();
    let silent = overtake(6).await.unwrap_err().to_string();
    assert!(silent.contains("cannot query etcd") && proxy.server.lives(1), "{silent}");
    assert!(proxy.fence.is_behind(&jobs, 6) && !proxy.fence.is_behind(&jobs, 5));
    assert!(proxy.fence.is_current(&jobs, 5) && !proxy.fence.is_current(&jobs, 6));
    proxy.election.elects(Some(6));
    let asked = proxy.election.1.load(Ordering::Relaxed);
    assert_eq!((overtake(6).await, proxy.epoch("jobs")), (Ok(()), Some(epoch(1, 6))));
    assert_eq!(proxy.election.1.load(Ordering::Relaxed), asked + 1, "the election is queried once");
    assert!(!proxy.server.lives(1) && !proxy.has_row(&old, "jobs"), "it may have had uncommitted writes");
    assert!(!proxy.fence.is_behind(&jobs, 6) && proxy.fence.is_current(&jobs, 6));
    // The epoch is drained, so the leader's first write need not wait.
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 2);
    let _new = proxy.writer(2, "jobs", 6).await;
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 2);
}

/// A proxy may have stopped between Publish and Mark.
#[tokio::test(start_paused = true)]
async fn an_unfinished_advance_of_another_proxy_is_finished() {
    let proxy = Proxy::start(&server(), "one").await;
    let notes = proxy.resource("notes");
    let old = proxy.writer(1, "notes", 5).await;
    old.session.set_activity(Activity::Busy);
    let advance = proxy.fence.context().advance(&notes, epoch(1, 6));
    publish(&advance, Some(epoch(1, 5))).await.unwrap();
    assert_eq!(proxy.fence.overtake(&notes, 6).await, Ok(()));
    assert!(!proxy.has_row(&old, "notes"));
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 2);
    assert_eq!(proxy.fence.overtake(&notes, 6).await, Ok(()));
    assert_eq!(proxy.fence.environment.metrics.drain_seconds.get_sample_count(), 2, "no second drain");
    // Any session that needs the epoch finishes the advance too.
    publish(&proxy.fence.context().advance(&notes, epoch(1, 7)), Some(epoch(1, 6))).await.unwrap();
    let _new = proxy.writer(2, "notes", 7).await;
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_observing_fence_raises_its_epoch_and_terminates_no_session() {
    let proxy = Proxy::start(&server(), "one").await;
    let trial = proxy.resource("trial");
    let (old, new) = (proxy.writer(1, "trial", 5).await, proxy.client(2));
    old.session.set_activity(Activity::Busy);
    let observe = async |client: &Client, token, raise: Raise<'_>| {
        outcome_text(proxy.fence.observe(&client.session, &trial, token, raise).await, "noted")
    };
    let stale = "token 4 for resource trial is lower than 5, the highest seen";
    assert_eq!(observe(&new, 4, Raise::Freely).await, stale);
    assert_eq!(observe(&new, 5, Raise::Never).await, "noted");
    assert_eq!(observe(&new, 6, Raise::Never).await, "token 6 for resource trial is not in force yet");
    proxy.server.forbid("intern");
    assert!(observe(&new, 6, Raise::IfPermitted(&claim(Some("intern")))).await.contains("may not do this"));
    assert_eq!(proxy.epoch("trial"), Some(epoch(1, 5)));
    assert_eq!(observe(&new, 6, Raise::IfPermitted(&claim(Some("app")))).await, "noted");
    assert_eq!(proxy.epoch("trial"), Some(epoch(1, 6)));
    assert!(proxy.fence.is_current(&trial, 6) && !proxy.has_row(&new, "trial"));
    sleep(Duration::from_secs(3)).await;
    assert_eq!((proxy.fence.overtake(&trial, 7).await, proxy.epoch("trial")), (Ok(()), Some(epoch(1, 7))));
    assert_eq!(proxy.fence.overtake(&trial, 7).await, Ok(()));
    sleep(Duration::from_secs(3)).await;
    assert!(proxy.server.lives(1) && proxy.has_row(&old, "trial"), "an observing fence is not drained");
    let reset = proxy.fence.reset(&trial, 2, "operator", true).await;
    assert_eq!(reset, Ok(Reset { before: epoch(1, 7), after: epoch(2, 2) }));
    sleep(Duration::from_secs(3)).await;
    assert!(proxy.server.lives(1));
    // An ended process is an error only while its session is registered.
    proxy.server.end_process(2);
    assert_eq!(observe(&new, 8, Raise::Freely).await, unseen("trial", 2));
    let mut gone = proxy.client(3);
    drop(gone.registration.take());
    proxy.server.end_process(3);
    assert_eq!(observe(&gone, 9, Raise::Freely).await, "noted");
}

#[tokio::test(start_paused = true)]
async fn a_reset_may_lower_the_token_in_a_new_generation() {
    let proxy = Proxy::start(&server(), "one").await;
    let notes = proxy.resource("notes");
    let reset = async |token, force| proxy.fence.reset(&notes, token, "operator", force).await;
    assert_eq!(reset(3, false).await, Err(ResetError::NoEpoch));
    assert_eq!(proxy.fence.has_epoch(&notes).await, Ok(false));
    let old = proxy.writer(1, "notes", 9).await;
    assert_eq!(proxy.fence.has_epoch(&notes).await, Ok(true));
    let in_use = reset(3, false).await.unwrap_err();
    assert_eq!(in_use, ResetError::InUse(vec![Higher { pid: 1, token: 9, is_ours: true }]));
    assert_eq!(in_use.to_string(), "a session admitted under the higher token 9 is still open");
    let _second = proxy.writer(2, "notes", 9).await;
    let several = reset(3, false).await.unwrap_err().to_string();
    assert_eq!(several, "2 sessions admitted under higher tokens, up to 9, are still open");
    assert_eq!(reset(3, true).await, Ok(Reset { before: epoch(1, 9), after: epoch(2, 3) }));
    assert!(!proxy.has_row(&old, "notes") && proxy.server.lives(1), "the idle process continues");
    assert_eq!(proxy.admit(&old, "notes", 3).await, "admitted");
    assert_eq!(reset(12, false).await, Ok(Reset { before: epoch(2, 3), after: epoch(3, 12) }));
    assert_eq!(proxy.fence.known_tokens(), [("notes".to_owned(), 12)]);
    let changes: Vec<_> =
        proxy.fence.epoch_changes().into_iter().map(|it| (it.resource, it.before, it.after)).collect();
    let notes = "notes".to_owned();
    assert_eq!(changes[0], (notes.clone(), None, epoch(1, 9)));
    assert_eq!(changes.last(), Some(&(notes, Some(epoch(2, 3)), epoch(3, 12))));
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_cannot_drain_reports_the_reset() {
    let proxy = Proxy::start(&server(), "one").await;
    let old = proxy.writer(1, "notes", 9).await;
    old.session.set_activity(Activity::Busy);
    proxy.server.end_late();
    let outcome = proxy.fence.reset(&proxy.resource("notes"), 3, "operator", true).await;
    let Err(ResetError::NotDrained { reset, error }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reset, Reset { before: epoch(1, 9), after: epoch(2, 3) });
    assert!(error.to_string().contains("process 1"), "{error}");
}

/// The other proxy has loaded newer policies. This proxy admits, raises and resets nothing until it is reloaded.
#[tokio::test(start_paused = true)]
async fn a_proxy_with_older_policies_changes_nothing() {
    let server = server();
    let one = Proxy::start(&server, "one").await;
    let old = one.writer(1, "notes", 5).await;
    server.pass(Duration::from_secs(1));
    let other = POLICIES.replace("[public.notes]", "[public.notes, public.more]");
    let two = Proxy::start_with(&server, "two", &other).await;
    let _new = two.writer(2, "notes", 5).await;
    let reload = "resource notes: another proxy has since loaded different policies: reload this proxy";
    for token in [5, 6] {
        assert_eq!(one.admit(&old, "notes", token).await, reload);
    }
    assert_eq!(one.fence.superseded().into_iter().collect::<Vec<_>>(), ["notes"]);
    let notes = one.resource("notes");
    assert_eq!(one.fence.reset(&notes, 7, "operator", true).await, Err(ResetError::OtherPolicies));
    let others = "resource notes: the database has recorded different policies";
    assert_eq!(outcome_text(one.fence.overtake(&notes, 6).await, "overtaken"), others);
    assert_eq!(outcome_text(one.fence.observe(&old.session, &notes, 5, Raise::Freely).await, "noted"), others);
    assert_eq!(one.epoch("notes"), Some(epoch(1, 5)));
    // The difference is detected even without writes.
    one.fence.put_in_force(&one.policies.resources);
    assert!(one.fence.superseded().is_empty());
    let three = Proxy::start(&server, "three").await;
    assert!(three.fence.superseded().is_empty(), "its policies are the most recent");
    assert_eq!(three.admit(&three.client(3), "notes", 6).await, "admitted");
    until(|| !two.fence.superseded().is_empty()).await;
    assert_eq!(two.fence.superseded().into_iter().collect::<Vec<_>>(), ["notes"]);
    // Reloaded policies are recorded.
    server.pass(Duration::from_secs(60));
    sleep(Duration::from_secs(60)).await;
    two.fence.apply_policy_of(&two.policies.resources, Instant::now().into_std()).await.unwrap();
    assert_eq!(two.admit(&two.client(4), "notes", 6).await, "admitted");
    assert!(two.fence.superseded().is_empty());
}

/// A new fence counts as enforced once earlier transactions and statements have ended. The console shows the count.
#[tokio::test(start_paused = true)]
async fn a_fence_is_enforced_once_earlier_transactions_and_statements_have_ended() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let notes = one.resource("notes");
    let reach = async || {
        let enforcement = one.fence.enforcement(&one.policies.resources).await.unwrap();
        let reach = enforcement.reach.get(&notes.fingerprint).copied().unwrap_or_default();
        (reach.proxies, reach.lost, reach.enforcing)
    };
    let (first, second) = (one.client(1), two.client(2));
    first.session.set_activity(Activity::Busy);
    server.write(2, &notes.tables[0].name, false);
    assert_eq!(reach().await, (2, 0, 0));
    let enforced = |proxy: &Proxy| {
        let (fence, notes) = (proxy.fence.clone(), notes.clone());
        tokio::spawn(async move { fence.enforced(&notes).await })
    };
    let (ones, twos) = (enforced(&one), enforced(&two));
    sleep(Duration::from_secs(3)).await;
    assert!(!ones.is_finished() && !twos.is_finished());
    server.end_transaction(2);
    // A later transaction does not matter.
    server.write(2, &notes.tables[0].name, false);
    sleep(Duration::from_secs(1)).await;
    assert!(!ones.is_finished() && twos.is_finished());
    sleep(Duration::from_secs(3)).await;
    assert_eq!(reach().await, (2, 0, 1));
    first.session.set_activity(Activity::Waiting);
    first.session.set_activity(Activity::Busy);
    server.end_transaction(2);
    sleep(Duration::from_secs(2)).await;
    assert!(ones.is_finished());
    assert_eq!(reach().await, (2, 0, 2));
    two.fence.watcher.stop();
    server.lose_connection("two");
    assert_eq!(reach().await, (2, 1, 1));
    // Policies that are not yet in force are not enforced.
    first.session.set_activity(Activity::Idle);
    one.fence.put_in_force(&[]);
    assert_eq!(reach().await.2, 0);
    one.fence.enforced(&notes).await.unwrap();
    assert_eq!(reach().await.2, 0);
    drop(second);
}

/// A session within a step may still apply the previous policies.
#[tokio::test(start_paused = true)]
async fn a_fence_is_enforced_once_earlier_steps_have_ended() {
    let proxy = Proxy::start(&server(), "one").await;
    let (client, notes) = (proxy.client(1), proxy.resource("notes"));
    client.session.begin_step();
    let fence = proxy.fence.clone();
    let enforced = tokio::spawn(async move { fence.enforced(&notes).await });
    sleep(Duration::from_secs(5)).await;
    assert!(!enforced.is_finished());
    client.session.end_step();
    client.session.begin_step();
    sleep(Duration::from_secs(1)).await;
    assert!(enforced.is_finished(), "a later step does not matter");
}

/// A lost proxy counts for ten minutes after its last announcement, according to the database's clock.
#[tokio::test(start_paused = true)]
async fn an_announcement_is_repeated_after_a_minute() {
    for (seconds, proxies, lost) in [(57, 1, 0), (64, 2, 1)] {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let _client = two.client(1);
        sleep(Duration::from_secs(1)).await;
        server.pass(Duration::from_secs(300));
        sleep(Duration::from_secs(seconds)).await;
        two.fence.watcher.stop();
        server.lose_connection("two");
        server.pass(Duration::from_secs(400));
        let enforcement = one.fence.enforcement(&one.policies.resources).await.unwrap();
        let reach = enforcement.reach[&one.resource("notes").fingerprint];
        assert_eq!((reach.proxies, reach.lost), (proxies, lost), "{seconds}");
    }
}

/// DROP DATABASE finds only sessions that it terminates, or that end while it waits.
#[tokio::test(start_paused = true)]
async fn control_connections_close_for_a_statement_that_needs_the_database_alone() {
    let owner = |role: &str| Role::Current(role.to_owned());
    for (role, by_force, from_here, others, closes) in [
        ("owner", false, false, false, true),
        ("owner", false, true, false, true),
        ("owner", false, false, true, false),
        ("owner", false, true, true, false),
        ("owner", true, false, true, true),
        ("intern", false, false, false, false),
        ("intern", true, false, true, false),
    ] {
        let proxy = Proxy::start(&server(), "one").await;
        proxy.server.forbid("intern");
        let own = from_here.then(|| proxy.client(1));
        let mut other = others.then(|| proxy.client(2));
        assert!(proxy.fence.store.is_open());
        proxy.fence.vacate(&owner(role), by_force, from_here).await;
        let what = format!("{role} {by_force} {from_here} {others}");
        assert_eq!(!proxy.fence.store.is_open(), closes, "{what}");
        // After the last session the connections close immediately, while the statement waits.
        if let Some(other) = other.as_mut().filter(|_| own.is_none() && !closes) {
            drop(other.registration.take());
            let closed = until(|| !proxy.fence.store.is_open()).await;
            assert_eq!(closed < Duration::from_millis(100), role == "owner", "{what}: {closed:?}");
        }
        if by_force && closes {
            assert!(proxy.fence.has_epoch(&proxy.resource("notes")).await.is_err(), "{what}: none opens");
            proxy.fence.end_vacating();
            assert!(proxy.fence.has_epoch(&proxy.resource("notes")).await.is_ok());
        }
    }
}
