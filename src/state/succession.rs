//! Proactive fencing: shuts out a deposed leader once its successor is elected, before the successor writes.
//!
//! Owns one task for each database. Must never be the reason for an admission: all guarantees hold without it, only
//! later, with the successor's first write. Must not open connections to a database in which this proxy has no
//! sessions.
//!
//! There may be any number of keys: only those to which a session is admitted are followed. The proxy queries the
//! leaders of the others when a token would raise the fence.

use super::database::SharedDatabase;
use fencegate_fence::session::Token;
use fencegate_fence::{Database, Leaders, Leased};
use fencegate_policy::{PolicySet, Resource};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause before a failed raise is retried: initial and maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Raises the fences of a database whenever a leader appears whose token is higher; ends with the database.
/// Not cancel-safe: fences may be raised and not drained, which the next writer finishes.
pub async fn shut_out_deposed(database: Weak<SharedDatabase>, mut leaders: watch::Receiver<Leaders>) {
    let Some(first) = database.upgrade() else { return };
    let (mut policies, mut leased) = (first.policies.clone(), first.fence.leased());
    drop(first);
    let mut done = Progress::default();
    // Raise each fence separately: one that cannot be drained must not delay the others.
    let mut attempts = JoinSet::new();
    loop {
        let Some(current) = database.upgrade() else { return };
        done.policies(&policies.borrow_and_update());
        let led = leaders.borrow_and_update().clone();
        let leased_now = leased.borrow_and_update().clone();
        let due = if current.finds_session() { done.due(&current.fence, &led, &leased_now) } else { Vec::new() };
        for (resource, token) in due {
            let pause = done.begin(&resource, token);
            attempts.spawn(attempt(current.fence.clone(), done.policies.clone(), resource, token, pause));
        }
        let (registered, epoch_changed) = (current.registered.clone(), current.fence.epoch_changed());
        // Hold no reference while waiting, so that the database can be forgotten.
        drop(current);
        tokio::select! {
            biased;
            changed = leaders.changed() => if changed.is_err() { return },
            changed = leased.changed() => if changed.is_err() { return },
            changed = policies.changed() => if changed.is_err() { return },
            () = registered.notified() => {}
            () = epoch_changed => {}
            Some(ended) = attempts.join_next() => match ended {
                Ok(attempt) => done.end(attempt),
                Err(error) => tracing::error!(%error, "deposed_leader_not_shut_out"),
            },
        }
    }
}

/// An attempt to raise one fence.
struct RaiseAttempt {
    /// The policies of the attempt.
    policies: Arc<PolicySet>,
    resource: String,
    token: Token,
    raised: bool,
}

/// Raises one fence. A failure or a raise without effect ends only after a pause, to prevent a busy loop. Not
/// cancel-safe: the fence may be raised and not drained; the next writer then drains it.
async fn attempt(
    database: Arc<Database>,
    policies: Arc<PolicySet>,
    resource: Arc<Resource>,
    token: Token,
    pause: Duration,
) -> RaiseAttempt {
    let raised = database.overtake(&resource, token).await;
    if let Err(refusal) = &raised {
        let (database, resource) = (database.name(), &resource.name);
        tracing::warn!(database, resource, token, reason = %refusal, "deposed_leader_not_shut_out");
    }
    let raised = raised.is_ok() && !database.is_behind(&resource, token);
    if !raised {
        sleep(pause).await;
    }
    RaiseAttempt { policies, resource: resource.name.clone(), token, raised }
}

/// Work done under the policies in force.
#[derive(Default)]
struct Progress {
    policies: Arc<PolicySet>,
    /// The tokens to which the resources' fences were raised.
    raised: HashMap<String, Token>,
    /// Attempts in progress. A leader does not wait for the attempt of its predecessor.
    under_way: HashSet<(String, Token)>,
    /// Last pause of failed attempts.
    pauses: HashMap<String, Duration>,
}

impl Progress {
    /// Adopts other policies, under which more fences may have to be raised.
    fn policies(&mut self, in_force: &Arc<PolicySet>) {
        if !Arc::ptr_eq(&self.policies, in_force) {
            *self = Progress { policies: in_force.clone(), ..Progress::default() };
        }
    }

    /// The fences to raise, each with the new token.
    fn due(&mut self, database: &Database, leaders: &Leaders, leased: &Leased) -> Vec<(Arc<Resource>, Token)> {
        if !self.policies.applies_to(database.name()) {
            return Vec::new();
        }
        let has_elections_of_keys = self.policies.resources.iter().any(|it| it.has_elections_of_keys());
        let keys = if has_elections_of_keys { database.keys_in_use() } else { Vec::new() };
        let resources = || self.policies.resources.iter().chain(&keys);
        // Names of unused keys would accumulate.
        if self.raised.len().max(self.pauses.len()) > self.policies.resources.len() + keys.len() + leased.len() {
            let names: HashSet<&str> = resources().map(|it| it.name.as_str()).collect();
            self.raised.retain(|name, _| names.contains(name.as_str()) || leased.contains_key(name));
            self.pauses.retain(|name, _| names.contains(name.as_str()) || leased.contains_key(name));
        }
        let led = resources().filter_map(|resource| {
            let token = (*leaders.get(resource.election()?)?)?;
            Some((resource.clone(), token))
        });
        let led = led.chain(leased.iter().filter_map(|(name, token)| Some((database.resource(name)?, (*token)?))));
        let is_due = |(resource, token): &(Arc<Resource>, Token)| {
            let is_done = self.raised.get(&resource.name) == Some(token) && !database.is_behind(resource, *token);
            !is_done && !self.under_way.contains(&(resource.name.clone(), *token))
        };
        led.filter(is_due).collect()
    }

    /// Records an attempt, and returns its pause after a failure.
    fn begin(&mut self, resource: &Resource, token: Token) -> Duration {
        self.under_way.insert((resource.name.clone(), token));
        let pause = self.pauses.get(&resource.name).map_or(PAUSE.0, |last| (*last * 2).min(PAUSE.1));
        self.pauses.insert(resource.name.clone(), pause);
        pause
    }

    /// Records the result. Ignores results for earlier policies.
    fn end(&mut self, RaiseAttempt { policies, resource, token, raised }: RaiseAttempt) {
        if !Arc::ptr_eq(&self.policies, &policies) {
            return;
        }
        self.under_way.remove(&(resource.clone(), token));
        if raised {
            self.pauses.remove(&resource);
            self.raised.insert(resource, token);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::state::shared::Shared;
    use fencegate_fence::session::{Identity, SessionFence};
    use futures_util::FutureExt;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn a_session_wakes_the_task_only_if_it_found_none() {
        let database = Shared::of_test().shared_database("app");
        let wakes = || {
            database.session_registered();
            database.registered.notified().now_or_never().is_some()
        };
        assert!(!database.finds_session());
        assert!(wakes());
        let [backend_start, system_identifier, postmaster_start] = [const { String::new() }; 3];
        let identity = Identity { pid: 1, backend_start, system_identifier, postmaster_start };
        let _registered = database.fence.clone().register(Arc::new(SessionFence::new(Ok(identity))));
        assert!(database.finds_session());
        assert!(!wakes());
    }
}
