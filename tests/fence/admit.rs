//! Who is admitted and who is refused, and why.

use crate::server::{Session, World, connect, metrics, resource};
use crate::{reason, stale_below};
use fencegate::fence::session::Epoch;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test]
async fn missing_row_is_published_drained_and_marked_before_anybody_is_admitted() {
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
    assert_eq!(world.admissions(&session).await, "1", "asking again adds nothing");
}

#[tokio::test]
async fn lower_token_is_stale_and_memory_knows_it_for_a_second() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (new, old) = (world.session(&proxy).await, world.session(&proxy).await);
    new.admit(&world.resource, 7).await.unwrap();
    stale_below(old.admit(&world.resource, 6).await, 7);
    assert_eq!(world.admissions(&old).await, "0");
    assert_eq!(proxy.known_stale("scheduler", 6), Some(Epoch { generation: 1, token: 7 }));
    assert_eq!(proxy.known_stale("scheduler", 7), None);
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(proxy.known_stale("scheduler", 6), None, "not confirmed lately");
    stale_below(old.admit(&world.resource, 6).await, 7);
    assert!(proxy.known_stale("scheduler", 6).is_some());
}

#[tokio::test]
async fn late_admit_reply_is_discarded_after_a_revocation() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    new.admit(&world.resource, 1).await.unwrap();
    // The drain's revocation for 2 arrives while the Admit at 1, already committed, is on its way.
    let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 2 });
    let asking = old.admit(&world.resource, 1);
    let publish = async {
        sleep(Duration::from_millis(100)).await;
        world.run("UPDATE fencegate.epoch SET token = 2, drained = false").await;
    };
    let (answer, ()) = tokio::join!(asking, publish);
    stale_below(answer, 2);
    assert!(!old.fence.begin_write([("scheduler", 1)]));
    assert_eq!(world.admissions(&old).await, "0", "the unused row is gone");
    assert!(world.lives(&old).await);
}

#[tokio::test]
async fn process_that_is_not_what_it_says_is_refused() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let good = session.fence.identity.clone().unwrap();
    let other = connect(&world.server.config("postgres", &format!("{}_app", world.database))).await;
    let elsewhere = world.identity(&other).await;
    let wrong = [
        (fencegate::fence::session::Identity { pid: 1, ..good.clone() }, "no such server process"),
        (fencegate::fence::session::Identity { backend_start: "1.000000".into(), ..good.clone() }, "another process"),
        (fencegate::fence::session::Identity { system_identifier: "1".into(), ..good.clone() }, "another server"),
        (fencegate::fence::session::Identity { postmaster_start: "1".into(), ..good.clone() }, "started anew"),
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
    assert_eq!(world.ask("SELECT count(*) FROM fencegate.admission").await, "1");
}

#[tokio::test]
async fn superusers_session_needs_a_superuser_as_control_role() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session_as(&proxy, "postgres").await;
    assert!(reason(session.admit(&world.resource, 1).await).contains("superuser"));
    assert_eq!(world.epoch().await, "none");
    let strong = fencegate::fence::Database::new("strong", world.control_config("postgres"), "p2", None, metrics());
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
    for token in [1, 2] {
        assert!(reason(second.admit(&newer, token).await).contains("reload"));
    }
    assert_eq!(world.epoch().await, "(1,1,t)", "nothing was raised");
    two.apply_policy(std::slice::from_ref(&newer)).await.unwrap();
    second.admit(&newer, 2).await.unwrap();
    assert!(reason(first.admit(&world.resource, 2).await).contains("reload"));
}
