//! The runtime for work that sessions share: watchers, control connections, catalog readings, admissions, followed elections
//! and console commands.
//!
//! Owns where such work runs. A session hands it over and waits for the result, so that a busy relay thread delays its own
//! sessions only. A task that shared work spawns stays here. Must never run a session's relay: a busy session would delay
//! everyone's admissions.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A handle to that runtime.
#[derive(Clone, Debug)]
pub struct Background(Handle);

impl Background {
    /// The caller's runtime. In the proxy this is the main one, where it starts. A test or the simulator has no other,
    /// so its sessions and their shared work run on the same threads and in the same, possibly paused, time.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[must_use]
    pub fn current() -> Self {
        Background(Handle::current())
    }

    /// Runs a task. It runs to its end even if the handle is dropped; where the end of a session has to cancel it, abort it.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.0.spawn(task)
    }

    /// Returns true if the caller runs in this runtime.
    #[must_use]
    pub fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.0.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    #[test]
    fn a_task_runs_in_its_own_runtime() {
        let runtime = || Builder::new_current_thread().build().unwrap();
        let (shared, relay) = (runtime(), runtime());
        let background = shared.block_on(async { Background::current() });
        let (here, there) = (background.clone(), background.clone());
        let (sender, receiver) = oneshot::channel();
        relay.block_on(async {
            assert!(!here.is_here(), "a relay thread");
            here.spawn(async move { sender.send(there.is_here()) });
        });
        assert!(shared.block_on(receiver).unwrap());
        assert!(!background.is_here(), "outside of a runtime");
    }
}
