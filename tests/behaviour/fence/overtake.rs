//! Raising a fence before the new leader writes.

use crate::fence::reason;
use crate::fence::server::{World, resource};

/// A proxy whose policies differ from the recorded ones raises nothing, and returns an error.
#[tokio::test]
async fn overtake_under_other_policies_fails_until_they_are_recorded() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 5).await.unwrap();
    let other = resource("scheduler", "b");
    assert!(reason(proxy.overtake(&other, 7).await).contains("policies"));
    assert_eq!(world.epoch().await, "(1,5,t)");
    proxy.apply_policy(std::slice::from_ref(&other)).await.unwrap();
    proxy.overtake(&other, 7).await.unwrap();
    assert_eq!(world.epoch().await, "(1,7,t)");
    // A lower or equal token needs no action.
    for token in [7, 6] {
        proxy.overtake(&other, token).await.unwrap();
    }
    assert_eq!((world.epoch().await.as_str(), session.fence.admission("scheduler")), ("(1,7,t)", None));
}

/// Another proxy died between its Publish and its Mark.
#[tokio::test]
async fn overtake_completes_an_unfinished_advance() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 5).await.unwrap();
    session.write(5).await;
    world.run("UPDATE fencegate_state.epoch SET token = 7, drained = false").await;
    proxy.overtake(&world.resource, 7).await.unwrap();
    assert_eq!(world.epoch().await, "(1,7,t)");
    assert!(!world.lives(&session).await);
}
