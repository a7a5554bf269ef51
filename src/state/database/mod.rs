//! A database, shared by all its sessions: its fences, the policies recorded in it, and its catalog as last read.
//!
//! Owns when policies are recorded, and the order of admissions: first those that can be admitted
//! together, then one resource after the other. Must never
//! - be the reason for an admission: only the fences decide, and Admit compares the recorded policies again;
//! - report success if one of the resources was refused.

mod catalog;
mod follow;
mod pending_definitions;

use crate::metrics::Metrics;
use catalog::CatalogState;
use fencegate_fence::session::SessionFence;
use fencegate_fence::{Claim, Database, FenceError, Raise, RecordError};
use fencegate_policy::{Mode, PolicySet, Resource};
use fencegate_session::judge::Need;
use parking_lot::Mutex;
use pending_definitions::AllDefinitions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

/// Maximum age of cached fenced-table information when a session starts.
const FRESH: Duration = Duration::from_secs(1);

/// Maximum time that a session waits for the preparation of its database.
pub const PREPARE_LIMIT: Duration = Duration::from_secs(1);

/// Maximum number of concurrent checks of observed writes in a database, because etcd may not answer.
const MOST_OBSERVATIONS: usize = 64;

/// Limits of the steps of [`SharedDatabase::sign_off`]. Other proxies detect unannounced changes by themselves, later.
const UNFINISHED_LIMIT: Duration = Duration::from_secs(2);
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(2);
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A database that sessions are connected to.
pub struct SharedDatabase {
    /// The fences of the database.
    pub fence: Arc<Database>,
    /// The policies in force.
    pub policies: watch::Receiver<Arc<PolicySet>>,
    /// Wakes the task that shuts deposed leaders out.
    pub registered: Arc<Notify>,
    /// True if no session was found and none has registered since.
    lacks_sessions: AtomicBool,
    /// Permits for checking whether writes past an observing fence would be rejected.
    pub observations: Arc<Semaphore>,
    /// The places where the log has reported a pooler: before the proxy, and behind it.
    pub poolers_reported: [AtomicBool; 2],
    metrics: Arc<Metrics>,
    /// Wakes the task that announces changes unrelated to fenced tables to other proxies.
    harmless_change: Arc<Notify>,
    /// Wakes the task that reads the catalog when no statement waits for it.
    reading_due: Arc<Notify>,
    /// Tasks that announce changes of the catalog to other proxies.
    pub announcements: TaskTracker,
    /// Sessions without a client, whose definitions the server may still commit.
    pub unfinished: TaskTracker,
    /// Pending definitions of its sessions.
    pub definitions: AllDefinitions,
    /// Policies that are recorded in the database. Held while they are being recorded.
    recorded: tokio::sync::Mutex<RecordedPolicies>,
    /// Held while the catalog is read. Other sessions wait for it.
    reading: tokio::sync::Mutex<()>,
    /// Held by a reading that only one session needs.
    session_reading: tokio::sync::Mutex<()>,
    known: Mutex<CatalogState>,
    /// Tasks that are aborted when this value is dropped. They hold a reference only while they work.
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Drop for SharedDatabase {
    fn drop(&mut self) {
        self.tasks.lock().iter().for_each(AbortHandle::abort);
    }
}

impl SharedDatabase {
    /// A database without any information yet.
    pub fn new(fence: Arc<Database>, policies: watch::Receiver<Arc<PolicySet>>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(SharedDatabase {
            fence,
            policies,
            registered: Arc::default(),
            lacks_sessions: AtomicBool::default(),
            observations: Arc::new(Semaphore::new(MOST_OBSERVATIONS)),
            poolers_reported: Default::default(),
            metrics,
            harmless_change: Arc::default(),
            reading_due: Arc::default(),
            announcements: TaskTracker::new(),
            unfinished: TaskTracker::new(),
            definitions: AllDefinitions::default(),
            recorded: tokio::sync::Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            session_reading: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    /// True if the policies in force are recorded and the catalog was just read, so that [`Self::prepare`] has nothing
    /// to do. False while another session prepares the database.
    pub fn is_prepared(&self) -> bool {
        let is_recorded = self.recorded.try_lock().is_ok_and(|recorded| recorded.has(&self.policies.borrow()));
        is_recorded && self.reading.try_lock().is_ok() && !self.is_old() && !self.is_due()
    }

    /// Records the policies in force in the database, once, and reads its catalog unless it was just read.
    /// Not cancel-safe: some resources may be recorded and others not, until the next call.
    pub async fn prepare(self: &Arc<Self>) {
        self.record_policies().await;
        let _turn = self.reading.lock().await;
        if self.is_old() || self.is_due() {
            self.read_catalog().await;
        }
    }

    /// Returns true if the last reading of the catalog has a fenced table.
    pub fn has_fences(&self) -> bool {
        self.policies.borrow().applies_to(self.fence.name()) && self.known.lock().catalog.has_fenced_tables()
    }

    /// Returns true if the policies have no `databases`, and no fenced table is known in this database.
    pub fn is_unconcerned(&self) -> bool {
        self.policies.borrow().databases.is_none() && self.fence.fences_nothing()
    }

    /// Sends the last definitions to the other proxies and signs this proxy off, within five seconds. Cancel-safe: the
    /// other proxies may not be informed.
    pub async fn sign_off(&self) {
        // Each step has its own limit: one long definition does not keep the others from being announced.
        self.unfinished.close();
        timeout(UNFINISHED_LIMIT, self.unfinished.wait()).await.ok();
        self.announcements.close();
        timeout(ANNOUNCE_LIMIT, self.announcements.wait()).await.ok();
        timeout(CLOSE_LIMIT, self.fence.close()).await.ok();
    }

    /// Aborts the task when the database is dropped.
    pub fn keep_task(&self, task: AbortHandle) {
        self.tasks.lock().push(task);
    }

    /// Records that a session of the database has registered. Wakes [`super::succession`] only if it found no session:
    /// a wake-up for each login costs more than the login's own work.
    pub fn session_registered(&self) {
        if self.lacks_sessions.swap(false, Ordering::SeqCst) {
            self.registered.notify_one();
        }
    }

    /// Whether a session is registered. If not, the next one that registers notifies.
    pub(super) fn finds_session(&self) -> bool {
        if self.fence.has_sessions() {
            return true;
        }
        self.lacks_sessions.store(true, Ordering::SeqCst);
        // A session may have registered just before this flag was set.
        self.fence.has_sessions()
    }
}

impl SharedDatabase {
    /// Admits the session's process to these resources, as long as `wanted` exists, and calls `admitted` after each.
    /// Not cancel-safe: an Admit in progress completes even if the session ends.
    pub fn admit<F: Fn(&Need) + Send + Sync>(
        self: &Arc<Self>,
        needs: Vec<(Need, Claim)>,
        fence: &Arc<SessionFence>,
        wanted: Weak<()>,
        admitted: F,
    ) -> impl Future<Output = Result<(), FenceError>> + Send + use<F> {
        let (database, fence) = (self.clone(), fence.clone());
        async move {
            database.record_missed_policies().await;
            let is_admitted =
                |it: &Need| fence.admission(&it.resource.name).is_some_and(|epoch| epoch.token == it.token);
            let due: Vec<_> = needs.iter().filter(|(need, _)| !is_admitted(need)).collect();
            if due.len() > 1 {
                let together = due.iter().map(|(need, claim)| (need.resource.clone(), need.token, raise(need, claim)));
                let together: Vec<_> = together.collect();
                database.fence.admit_together(&fence, &together).await?;
                due.into_iter().filter(|(need, _)| is_admitted(need)).for_each(|(need, _)| admitted(need));
            }
            for (need, claim) in needs {
                if wanted.strong_count() == 0 {
                    break;
                }
                let Need { resource, token, .. } = &need;
                if fence.admission(&resource.name).is_none_or(|epoch| epoch.token != *token) {
                    database.fence.admit_if(&fence, resource, *token, raise(&need, &claim)).await?;
                    admitted(&need);
                }
            }
            Ok(())
        }
    }
}

fn raise<'c>(need: &Need, claim: &'c Claim) -> Raise<'c> {
    if need.may_raise { Raise::IfPermitted(claim) } else { Raise::Never }
}

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
                    self.fence.background().spawn(report_when_enforced(self.clone(), resource.clone()));
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
async fn report_when_enforced(shared_database: Arc<SharedDatabase>, resource: Arc<Resource>) {
    let (database, mut logged) = (shared_database.fence.name(), None);
    while let Err(error) = shared_database.fence.enforced(&resource).await {
        if logged.as_ref() != Some(&error) {
            tracing::warn!(database, resource = resource.name, %error, "fence_enforcement_unknown");
        }
        logged = Some(error);
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
