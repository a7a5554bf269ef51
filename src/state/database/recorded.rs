//! Recording the policies in force in a database, so that all proxies have the same.
//!
//! Owns when to record. Success does not mean that the policies are in force: Admit compares them again.

use super::{FRESH, PREPARE_LIMIT, SharedDatabase};
use fencegate_fence::RecordError;
use fencegate_policy::{Mode, PolicySet, Resource};
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// Why the policies are not recorded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unrecorded {
    /// Nothing has to be recorded.
    #[error("it has none of the fenced tables, and no schema fencegate")]
    NothingFenced,
    #[error(transparent)]
    Failed(RecordError),
}

/// The policies that are recorded in a database.
#[derive(Default)]
pub(super) struct RecordedPolicies {
    /// The policies, once all of them are recorded.
    policies: Option<Arc<PolicySet>>,
    /// Time of the last attempt.
    attempted: Option<Instant>,
    /// The reason for the last failure that was logged.
    logged: Option<Unrecorded>,
}

impl RecordedPolicies {
    /// True if these policies are recorded.
    pub(super) fn has(&self, policies: &Arc<PolicySet>) -> bool {
        self.policies.as_ref().is_some_and(|recorded| Arc::ptr_eq(recorded, policies))
    }
}

impl SharedDatabase {
    /// Not cancel-safe, like [`Self::prepare`].
    pub(super) async fn record_policies(self: &Arc<Self>) {
        let mut recorded = self.recorded.lock().await;
        let policies = self.policies.borrow().clone();
        if recorded.has(&policies) {
            return;
        }
        recorded.attempted = Some(Instant::now());
        match self.fence.apply_policy_of(&policies.resources, policies.loaded).await {
            Ok(()) => {
                for resource in &policies.resources {
                    self.fence.background().spawn(say_when_enforced(self.clone(), resource.clone()));
                }
                recorded.policies = Some(policies);
                recorded.logged = None;
            }
            // Admit compares the policies again, and refuses.
            Err(error) => {
                // Determines whether anything is fenced here.
                self.catch_up().await;
                self.log_unrecorded(&mut recorded.logged, error);
            }
        }
    }

    /// Logs each reason once: every session of the database retries.
    fn log_unrecorded(&self, logged: &mut Option<Unrecorded>, error: RecordError) {
        let why = if self.is_unconcerned() { Unrecorded::NothingFenced } else { Unrecorded::Failed(error) };
        if logged.as_ref() != Some(&why) {
            let (database, reason) = (self.fence.name(), why.to_string());
            match why {
                Unrecorded::NothingFenced => tracing::info!(database, reason, "nothing_fenced"),
                Unrecorded::Failed(_) => tracing::warn!(database, reason, "policies_not_recorded"),
            }
        }
        *logged = Some(why);
    }

    /// Retries recording the policies some time after a failure, because the schema may exist now. Waits only briefly.
    /// Cancel-safe: it continues by itself.
    pub(super) async fn record_missed_policies(self: &Arc<Self>) {
        let is_due = |recorded: &RecordedPolicies| {
            let is_tried = recorded.attempted.is_some_and(|at| at.elapsed() <= FRESH);
            !is_tried && !recorded.has(&self.policies.borrow())
        };
        // While the lock is held, another session records them or checks whether they are recorded.
        if self.recorded.try_lock().is_ok_and(|recorded| is_due(&recorded)) {
            let database = self.clone();
            let recording = self.fence.background().spawn(async move { database.record_policies().await });
            tokio::time::timeout(PREPARE_LIMIT, recording).await.ok();
        }
    }
}

/// Logs when the fence is enforced, which requires that all writes forwarded before it have ended. If there is nothing
/// to enforce, logs only that. Cancel-safe: nothing is logged then.
async fn say_when_enforced(shared_database: Arc<SharedDatabase>, resource: Arc<Resource>) {
    let (database, mut told) = (shared_database.fence.name(), None);
    while let Err(error) = shared_database.fence.enforced(&resource).await {
        if told.as_ref() != Some(&error) {
            tracing::warn!(database, resource = resource.name, %error, "fence_enforcement_unknown");
        }
        told = Some(error);
        if !shared_database.fence.has_sessions() {
            // The next session records the policies again and repeats this check.
            shared_database.recorded.lock().await.policies = None;
            return;
        }
        sleep(FRESH).await;
    }
    shared_database.catch_up().await;
    if shared_database.known.lock().catalog.may_have(&resource) {
        match resource.mode {
            Mode::Enforce => tracing::info!(database, resource = resource.name, "fence_enforced"),
            Mode::Observe => tracing::info!(database, resource = resource.name, "fence_observed"),
        }
    }
}
