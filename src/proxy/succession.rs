//! Shutting a deposed leader out as soon as its successor is elected, before that one writes.
//!
//! Owns one task for each database. Must never be the reason for admitting anybody: everything
//! holds without it, only later, with the successor's first write. Must not open connections to a
//! database in which this proxy has no sessions.

use super::shared::Downstream;
use crate::fence::session::Token;
use crate::fence::{Database, Leaders};
use crate::policy::{PolicySet, Resource};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Before a fence that could not be raised is tried again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Raises the fences of a database whenever a leader appears whose token is higher; ends with the proxy.
/// Not cancel-safe: fences may be raised and not drained, which the next writer finishes.
pub async fn shut_out_deposed(database: Arc<Downstream>, mut leaders: watch::Receiver<Leaders>) {
    let mut policies = database.policies.clone();
    let mut done = Done::default();
    let mut pause = PAUSE.0;
    loop {
        done.policies(&policies.borrow_and_update());
        let due = done.due(&database.fence, &leaders.borrow_and_update());
        if overtake(&database, due, &mut done).await {
            pause = PAUSE.0;
            tokio::select! {
                changed = leaders.changed() => if changed.is_err() { return },
                changed = policies.changed() => if changed.is_err() { return },
                () = database.registered.notified() => {}
            }
        } else {
            // Whatever comes meanwhile waits as well, other than a new leader: nothing may spin.
            tokio::select! {
                changed = leaders.changed() => if changed.is_err() { return },
                () = sleep(pause) => pause = (pause * 2).min(PAUSE.1),
            }
        }
    }
}

/// What was done under the policies in force.
#[derive(Default)]
struct Done {
    policies: Arc<PolicySet>,
    /// The tokens to which the resources' fences were raised.
    raised: HashMap<String, Token>,
}

impl Done {
    /// Takes up other policies: under those before, a fence may not have been raised.
    fn policies(&mut self, in_force: &Arc<PolicySet>) {
        if !Arc::ptr_eq(&self.policies, in_force) {
            *self = Done { policies: in_force.clone(), raised: HashMap::new() };
        }
    }

    /// The fences that are to be raised, and to what.
    fn due(&self, database: &Database, leaders: &Leaders) -> Vec<(Arc<Resource>, Token)> {
        if !database.has_sessions() || !self.policies.applies_to(database.name()) {
            return Vec::new();
        }
        let led = self.policies.resources.iter().filter_map(|resource| {
            let token = *leaders.get(resource.election.as_ref()?)?;
            Some((resource.clone(), token))
        });
        led.filter(|(resource, token)| self.raised.get(&resource.name) != Some(token)).collect()
    }
}

/// Raises these fences, all at once: one that cannot be drained must not hold up the others. True if all are.
async fn overtake(database: &Arc<Downstream>, due: Vec<(Arc<Resource>, Token)>, done: &mut Done) -> bool {
    let mut raising = JoinSet::new();
    for (resource, token) in due {
        let fence = database.fence.clone();
        raising.spawn(async move {
            let raised = fence.overtake(&resource, token).await;
            (resource, token, raised)
        });
    }
    let mut all = true;
    while let Some(ended) = raising.join_next().await {
        match ended {
            Ok((resource, token, Ok(()))) => {
                done.raised.insert(resource.name.clone(), token);
            }
            Ok((resource, token, Err(refusal))) => {
                all = false;
                let (database, resource) = (database.fence.name(), &resource.name);
                tracing::warn!(database, resource, token, reason = %refusal, "deposed_leader_not_shut_out");
            }
            Err(error) => {
                all = false;
                tracing::error!(%error, "deposed_leader_not_shut_out");
            }
        }
    }
    all
}
