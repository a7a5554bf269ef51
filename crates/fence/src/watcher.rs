//! The watcher of one database, and its observations: leases in force, and how full the server's notification queue is.
//!
//! Owns that at most one watcher runs. The task itself is in `watch.rs`. Must never justify an admission or a raise, because
//! observations may be outdated.

use super::session::Token;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// By resource name: the token whose lease was in force at the last reading; None: no lease was. Resources with an
/// unknown state are missing.
pub type Leased = HashMap<String, Option<Token>>;

/// The watcher's task, and its results.
#[derive(Debug)]
pub(super) struct Watcher {
    start: Start,
    task: Mutex<Option<AbortHandle>>,
    leased: watch::Sender<Leased>,
    /// The lease holders that were logged last.
    logged_leaders: Mutex<Leased>,
    /// How full the server's notification queue was at the last heartbeat, from 0 to 1.
    queue_usage: Mutex<Option<f64>>,
}

/// Starts the task.
struct Start(Box<dyn Fn() -> AbortHandle + Send + Sync>);

impl fmt::Debug for Start {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Start")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Watcher {
    /// A watcher that does not run yet. `start` must not use the watcher.
    pub(super) fn new(start: impl Fn() -> AbortHandle + Send + Sync + 'static) -> Self {
        Watcher {
            start: Start(Box::new(start)),
            task: Mutex::default(),
            leased: watch::Sender::default(),
            logged_leaders: Mutex::default(),
            queue_usage: Mutex::default(),
        }
    }

    /// Starts the watcher if it does not run.
    pub(super) fn ensure(&self) {
        let mut task = self.task.lock();
        if task.is_none() {
            *task = Some((self.start.0)());
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.task.lock().is_some()
    }

    pub(super) fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Called by the watcher, which ends if the result is true: it is no longer needed, or was stopped. `is_needed` is
    /// evaluated while no other watcher can start. The next [`Self::ensure`] starts a new one.
    pub(super) fn retire_unless(&self, is_needed: impl FnOnce() -> bool) -> bool {
        let mut task = self.task.lock();
        if !is_needed() {
            *task = None;
        }
        task.is_none()
    }

    /// The tokens of the observed leases.
    pub(super) fn leased(&self) -> watch::Receiver<Leased> {
        self.leased.subscribe()
    }

    /// Returns true if the lease of the resource was in force under that token when it was last read.
    pub(super) fn is_leased(&self, resource: &str, token: Token) -> bool {
        self.leased.borrow().get(resource) == Some(&Some(token))
    }

    /// Replaces the observed leases. Wakes receivers if they differ.
    pub(super) fn set_leased(&self, leased: Leased) {
        self.leased.send_if_modified(|before| {
            let is_new = *before != leased;
            *before = leased;
            is_new
        });
    }

    /// The resources whose leader differs from the one logged last. The caller must log these.
    pub(super) fn changed_leaders(&self, now: &Leased) -> Vec<(String, Option<Token>)> {
        let before = std::mem::replace(&mut *self.logged_leaders.lock(), now.clone());
        let changed = now.iter().filter(|(resource, token)| before.get(*resource) != Some(token));
        changed.map(|(resource, token)| (resource.clone(), *token)).collect()
    }

    /// How full the server's notification queue was at the last heartbeat. None: no connection listens.
    pub(super) fn queue_usage(&self) -> Option<f64> {
        *self.queue_usage.lock()
    }

    pub(super) fn set_queue_usage(&self, usage: Option<f64>) {
        *self.queue_usage.lock() = usage;
    }

    /// Forgets the observations, because they are no longer updated.
    pub(super) fn forget(&self) {
        self.leased.send_replace(Leased::new());
        self.set_queue_usage(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn watcher() -> (Watcher, Arc<AtomicU32>) {
        let starts = Arc::new(AtomicU32::new(0));
        let counted = starts.clone();
        let start = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(pending::<()>()).abort_handle()
        };
        (Watcher::new(start), starts)
    }

    #[tokio::test]
    async fn one_watcher_runs_until_it_is_stopped_or_retires() {
        let (watcher, starts) = watcher();
        let started = || starts.load(Ordering::Relaxed);
        assert!(!watcher.runs());
        for number in [1, 2] {
            watcher.ensure();
            watcher.ensure();
            assert!(watcher.runs() && started() == number);
            watcher.stop();
            assert!(!watcher.runs() && watcher.retire_unless(|| true), "the watcher was stopped");
        }
        watcher.ensure();
        assert!(!watcher.retire_unless(|| true) && watcher.runs());
        assert!(watcher.retire_unless(|| false) && !watcher.runs());
        watcher.ensure();
        assert_eq!(started(), 4);
    }

    #[tokio::test]
    async fn only_other_leases_wake_and_only_other_leaders_are_logged() {
        let (watcher, _) = watcher();
        let mut leased = watcher.leased();
        let held = |token| Leased::from([("r".to_owned(), token)]);
        for (now, is_new) in [(held(Some(5)), true), (held(Some(5)), false), (held(None), true)] {
            let changes = watcher.changed_leaders(&now);
            watcher.set_leased(now.clone());
            assert_eq!(leased.has_changed().unwrap(), is_new);
            assert_eq!(changes, if is_new { Vec::from_iter(now) } else { Vec::new() });
            leased.mark_unchanged();
        }
        watcher.set_leased(held(Some(6)));
        assert!(watcher.is_leased("r", 6) && !watcher.is_leased("r", 5) && !watcher.is_leased("other", 6));
        watcher.forget();
        assert!(!watcher.is_leased("r", 6) && watcher.changed_leaders(&held(None)).is_empty());
    }
}
