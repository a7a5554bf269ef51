//! Changes by other proxies between two steps. No step relies on outdated state.

use super::*;
use crate::advance::{publish, raise as raise_epoch};
use futures_util::FutureExt;

/// The other proxy raises the fence just before the next Publish or Reset.
fn raises(proxy: &Proxy, before: Token, after: Token) {
    let (fence, notes) = (proxy.fence.clone(), proxy.resource("notes"));
    proxy.server.meanwhile(move || {
        let published =
            publish(&fence.context().advance(&notes, epoch(1, after)), Some(epoch(1, before))).now_or_never();
        assert_eq!(published, Some(Ok(Some(epoch(1, after)))));
    });
}

#[tokio::test(start_paused = true)]
async fn a_reset_applies_to_the_current_epoch() {
    let in_use = ResetError::InUse(vec![Higher { pid: 1, token: 9, is_ours: true }]);
    let done = Reset { before: epoch(1, 10), after: epoch(2, 3) };
    for (lives, force, expected) in
        [(true, true, Ok(done)), (false, true, Ok(done)), (false, false, Ok(done)), (true, false, Err(in_use))]
    {
        let server = server();
        let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
        let client = one.writer(1, "notes", 9).await;
        client.session.set_activity(Activity::Busy);
        if !lives {
            server.end_process(1);
        }
        raises(&two, 9, 10);
        let reset = one.fence.reset(&one.resource("notes"), 3, "operator", force).await;
        assert_eq!((&reset, server.lives(1)), (&expected, expected.is_err()), "{lives} {force}");
        assert_eq!(one.epoch("notes"), Some(expected.map_or(epoch(1, 10), |it| it.after)));
    }
}

/// Only the drain of the current epoch terminates processes with lower admissions.
#[tokio::test(start_paused = true)]
async fn a_token_superseded_meanwhile_drains_no_session() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let old = one.writer(1, "notes", 5).await;
    old.session.set_activity(Activity::Busy);
    let (notes, deadline) = (one.resource("notes"), Instant::now() + Duration::from_secs(1));
    let raise = async |known, token| {
        let raised =
            raise_epoch(&one.fence.context().advance(&notes, epoch(1, token)), Some(epoch(1, known)), deadline).await;
        let drained = one.fence.fences(&one.policies.resources).await.unwrap().plain["notes"].drained;
        (raised, drained, one.fence.environment.metrics.drain_seconds.get_sample_count())
    };
    raises(&two, 5, 7);
    assert_eq!(raise(5, 6).await, (Ok(()), false, 1));
    assert!(server.lives(1));
    assert_eq!(raise(7, 8).await, (Ok(()), true, 2));
    assert!(!server.lives(1));
}

#[tokio::test(start_paused = true)]
async fn an_overtake_succeeds_if_a_newer_leader_overtakes_it() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let old = one.writer(1, "notes", 5).await;
    old.session.set_activity(Activity::Busy);
    server.end_late();
    let (fence, notes) = (one.fence.clone(), one.resource("notes"));
    let overtaking = tokio::spawn(async move { fence.overtake(&notes, 6).await });
    sleep(Duration::from_secs(1)).await;
    let (notes, next) = (two.resource("notes"), epoch(1, 7));
    assert_eq!(publish(&two.fence.context().advance(&notes, next), Some(epoch(1, 6))).await, Ok(Some(next)));
    server.end_process(1);
    assert_eq!((overtaking.await.unwrap(), one.epoch("notes")), (Ok(()), Some(next)));
}

/// Only a proxy with the epoch's policies marks the epoch as drained.
#[tokio::test(start_paused = true)]
async fn an_older_proxy_does_not_finish_an_advance_under_newer_policies() {
    let server = server();
    let one = Proxy::start(&server, "one").await;
    server.pass(Duration::from_secs(1));
    let later = POLICIES.replace("[public.notes]", "[public.notes, public.more]");
    let two = Proxy::start_with(&server, "two", &later).await;
    let _old = two.writer(1, "notes", 5).await;
    let (notes, next) = (two.resource("notes"), epoch(1, 6));
    assert_eq!(publish(&two.fence.context().advance(&notes, next), Some(epoch(1, 5))).await, Ok(Some(next)));
    let others = "resource notes: the database has recorded different policies";
    assert_eq!(outcome_text(one.fence.overtake(&one.resource("notes"), 6).await, "overtaken"), others);
    assert_eq!(two.fence.overtake(&notes, 6).await, Ok(()));
}

/// A proxy with older policies creates the epoch and records its policies after this proxy has recorded newer ones.
#[tokio::test(start_paused = true)]
async fn an_older_policy_record_blocks_no_proxy() {
    for resets in [false, true] {
        let server = server();
        let older = POLICIES.replace("[public.notes]", "[public.notes, public.more]");
        let old = Proxy::start_with(&server, "old", &older).await;
        server.pass(Duration::from_secs(1));
        let new = Proxy::start(&server, "new").await;
        let _writer = old.writer(1, "notes", 5).await;
        let notes = new.resource("notes");
        if resets {
            let reset = Reset { before: epoch(1, 5), after: epoch(2, 3) };
            assert_eq!(new.fence.reset(&notes, 3, "operator", true).await, Ok(reset));
        } else {
            assert_eq!((new.fence.overtake(&notes, 6).await, new.epoch("notes")), (Ok(()), Some(epoch(1, 6))));
        }
        let stale = old.admit(&old.client(2), "notes", 9).await;
        assert_eq!(stale, "resource notes: another proxy has since loaded different policies: reload this proxy");
    }
}
