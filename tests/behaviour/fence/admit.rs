//! Which sessions are admitted or refused, and why.

use crate::fence::server::{Session, World, connect, metrics, resource};
use crate::fence::{reason, stale_below};
use crate::support::identity::identity;
use crate::support::until;
use fencegate_fence::CutOff;
use fencegate_fence::background::Background;
use fencegate_fence::session::{Activity, Epoch, SessionFence};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// The key of the resource's lock.
const SCHEDULER: &str = "hashtextextended('fencegate:scheduler', 0)";

#[tokio::test]
async fn a_missing_epoch_is_published_drained_and_marked_before_any_admission() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    assert_eq!(world.epoch().await, "none");
    session.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.epoch().await, "(1,5,t)");
    assert_eq!(world.admissions(&session).await, "1");
    assert!(session.fence.begin_write([("scheduler", 5)]));

    let equal = world.session(&proxy).await;
    equal.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.admissions(&equal).await, "1");
    session.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.admissions(&session).await, "1", "a repeated Admit adds no row");
}

#[tokio::test]
async fn lower_token_is_stale_and_memory_knows_it_for_a_second() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (new, old) = (world.session(&proxy).await, world.session(&proxy).await);
    new.admit(&world.resource, 7).await.unwrap();
    // Retry if the machine stalls for that second between the two calls.
    let becomes_known = async || {
        let confirmed = async || {
            stale_below(old.admit(&world.resource, 6).await, 7);
            proxy.known_stale("scheduler", 6) == Some(Epoch { generation: 1, token: 7 })
        };
        until("memory contains the confirmed epoch", confirmed).await;
    };
    becomes_known().await;
    assert_eq!(world.admissions(&old).await, "0");
    assert_eq!(proxy.known_stale("scheduler", 7), None);
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(proxy.known_stale("scheduler", 6), None, "not confirmed lately");
    becomes_known().await;
}

#[tokio::test]
async fn late_admit_reply_is_discarded_after_a_revocation() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    new.admit(&world.resource, 1).await.unwrap();
    // The drain's revocation for token 2 arrives during the Admit at token 1, whose reply was correct when it
    // committed.
    world
        .run(
            "CREATE FUNCTION publish() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN UPDATE fencegate_state.epoch SET token = 2, drained = false; RETURN NULL; END$$; \
             CREATE CONSTRAINT TRIGGER publish AFTER INSERT ON fencegate_state.admission DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION publish()",
        )
        .await;
    world.run(&format!("SELECT pg_advisory_lock({SCHEDULER})")).await;
    let asking = old.admit(&world.resource, 1);
    let drain = async {
        world.is_awaited().await;
        let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 2 });
        world.run(&format!("SELECT pg_advisory_unlock({SCHEDULER})")).await;
    };
    let (answer, ()) = tokio::join!(asking, drain);
    stale_below(answer, 2);
    assert!(!old.fence.begin_write([("scheduler", 1)]));
    assert_eq!(world.admissions(&old).await, "0", "the unused row is gone");
    assert!(world.lives(&old).await);
}

/// Pruning the epoch clears a session's revocation, so the session may be admitted below the token that revoked it.
#[tokio::test]
async fn a_revoked_session_is_admitted_again_after_its_epoch_was_pruned() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 5).await.unwrap();
    new.admit(&world.resource, 20).await.unwrap();
    assert!(old.fence.admission("scheduler").is_none());
    drop(new);
    world.run("DELETE FROM fencegate_state.admission; DELETE FROM fencegate_state.epoch").await;
    old.admit(&world.resource, 15).await.unwrap();
    assert!(old.fence.begin_write([("scheduler", 15)]));
    // A drain below the earlier token still revokes the admission.
    let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 16 });
    assert!(!old.fence.begin_write([("scheduler", 15)]));
}

/// A session counts as cut off by a newer token only for resources that it may have written.
#[tokio::test]
async fn a_released_session_is_not_terminated_by_its_former_resource() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    new.admit(&world.resource, 2).await.unwrap();
    assert_eq!(proxy.cut_off_by(&old.fence).await, None);
    // Raising its own token also releases a session. A revocation that arrives later has no effect.
    new.admit(&world.resource, 3).await.unwrap();
    assert_eq!(proxy.cut_off_by(&new.fence).await, None);
    world.run("UPDATE fencegate_state.epoch SET token = 4").await;
    let (presented, highest) = (Epoch { generation: 1, token: 3 }, Epoch { generation: 1, token: 4 });
    assert_eq!(proxy.cut_off_by(&new.fence).await, Some(CutOff { resource: "scheduler".into(), presented, highest }));
}

/// A newer token may end the process before the reply to its Admit arrives.
#[tokio::test]
async fn a_newer_token_terminates_a_session_during_its_admission() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (session, other) = (world.session(&proxy).await, world.session(&proxy).await);
    other.admit(&world.resource, 1).await.unwrap();
    world.run(&format!("SELECT pg_advisory_lock({SCHEDULER})")).await;
    let look = async {
        world.is_awaited().await;
        assert_eq!(proxy.cut_off_by(&session.fence).await, None);
        world.run("UPDATE fencegate_state.epoch SET token = 2").await;
        let cut_off = proxy.cut_off_by(&session.fence).await;
        world.run(&format!("SELECT pg_advisory_unlock({SCHEDULER})")).await;
        cut_off
    };
    let (answer, cut_off) = tokio::join!(session.admit(&world.resource, 1), look);
    let (presented, highest) = (Epoch { generation: 1, token: 1 }, Epoch { generation: 1, token: 2 });
    assert_eq!(cut_off, Some(CutOff { resource: "scheduler".into(), presented, highest }));
    stale_below(answer, 2);
    assert_eq!(proxy.cut_off_by(&session.fence).await, None, "it was never admitted");
}

/// A resource's first epoch that is created during a reload does not keep the old policies.
#[tokio::test]
async fn a_first_admission_while_policies_are_loaded_leaves_no_old_ones() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    world.run(&format!("SELECT pg_advisory_lock({SCHEDULER})")).await;
    let newer = resource("scheduler", "b");
    let load = async {
        world.is_awaited().await;
        proxy.apply_policy(std::slice::from_ref(&newer)).await.unwrap();
        world.run(&format!("SELECT pg_advisory_unlock({SCHEDULER})")).await;
    };
    let (answer, ()) = tokio::join!(session.admit(&world.resource, 5), load);
    answer.unwrap();
    assert_eq!(world.ask("SELECT policy_hash FROM fencegate_state.epoch").await, "b");
    session.admit(&newer, 6).await.unwrap();
}

/// Statements forwarded before a fence was in force may not have started: the server reads messages in order.
#[tokio::test]
async fn a_fence_is_enforced_when_earlier_verdicts_have_ended() {
    let busy = |fence: &SessionFence| fence.set_activity(Activity::Busy);
    let rest = |fence: &SessionFence| {
        fence.set_activity(Activity::Waiting);
        // The next statement is judged by the policies in force.
        fence.set_activity(Activity::Busy);
    };
    is_enforced_after(busy, rest).await;
}

/// A session judges a long text by the policies that were in force when the step began.
#[tokio::test]
async fn a_fence_is_enforced_when_the_steps_of_sessions_have_ended() {
    let again = |fence: &SessionFence| {
        fence.end_step();
        fence.begin_step();
    };
    is_enforced_after(SessionFence::begin_step, again).await;
}

async fn is_enforced_after(begin: impl Fn(&SessionFence), end: impl Fn(&SessionFence)) {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    begin(&session.fence);
    let rested = AtomicBool::new(false);
    let enforced = async {
        proxy.enforced(&world.resource).await.unwrap();
        assert!(rested.load(Ordering::SeqCst), "it may still be running");
    };
    let run = async {
        // Time for a wrong result to arrive.
        sleep(Duration::from_millis(200)).await;
        rested.store(true, Ordering::SeqCst);
        end(&session.fence);
    };
    tokio::join!(enforced, run);
}

#[tokio::test]
async fn a_process_with_a_false_identity_is_refused() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let good = session.fence.identity.clone().unwrap();
    let other = connect(&world.server.config("postgres", &format!("{}_app", world.database))).await;
    let elsewhere = identity(&other).await;
    let wrong = [
        (fencegate_fence::session::Identity { pid: 1, ..good.clone() }, "no such server process"),
        (fencegate_fence::session::Identity { backend_start: "1.000000".into(), ..good.clone() }, "another process"),
        (fencegate_fence::session::Identity { system_identifier: "1".into(), ..good.clone() }, "a different server"),
        (fencegate_fence::session::Identity { postmaster_start: "1".into(), ..good.clone() }, "was restarted"),
        (elsewhere, "another database"),
    ];
    for (identity, expected) in wrong {
        let client = connect(&world.config("postgres")).await;
        let liar = Session::new(&proxy, client, identity);
        for token in [1, 2] {
            let reason = reason(liar.admit(&world.resource, token).await);
            assert!(reason.contains(expected), "{expected}: {reason}");
            assert!(!liar.fence.holds_admissions());
        }
    }
    assert_eq!(world.epoch().await, "(1,1,t)", "nothing was raised");
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.admission").await, "1");
}

#[tokio::test]
async fn superusers_session_needs_a_superuser_as_control_role() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session_as(&proxy, "postgres").await;
    assert!(reason(session.admit(&world.resource, 1).await).contains("superuser"));
    assert_eq!(world.epoch().await, "none");
    let strong = fencegate_fence::Database::new(
        "strong",
        world.control_config("postgres"),
        "p2",
        fencegate_fence::Authority::new(Background::current()),
        metrics(),
        Background::current(),
    );
    let session = world.session_as(&strong, "postgres").await;
    session.admit(&world.resource, 1).await.unwrap();
}

#[tokio::test]
async fn other_policies_are_refused_until_the_reload() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (first, second) = (world.session(&one).await, world.session(&two).await);
    first.admit(&world.resource, 1).await.unwrap();
    let newer = resource("scheduler", "b");
    two.put_in_force(std::slice::from_ref(&newer));
    for token in [1, 2] {
        assert!(reason(second.admit(&newer, token).await).contains("reload"));
    }
    assert_eq!(world.epoch().await, "(1,1,t)", "nothing was raised");
    two.apply_policy(std::slice::from_ref(&newer)).await.unwrap();
    second.admit(&newer, 2).await.unwrap();
    assert!(reason(first.admit(&world.resource, 2).await).contains("reload"));
}
