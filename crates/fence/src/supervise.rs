//! Tasks that must run for as long as the proxy needs them.
//!
//! Owns that a panic does not end such a task. Must never start a task twice at the same time.

use crate::background::Background;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The pause before a task that panicked is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the task until it returns, and restarts it after a panic. Each start must assume that it has missed events. The
/// unfinished state is dropped; shared state must be consistent at each await point, as for an aborted task.
pub fn supervise<F>(
    background: &Background,
    task: &'static str,
    mut start: impl FnMut() -> F + Send + 'static,
) -> AbortHandle
where
    F: Future<Output = ()> + Send + 'static,
{
    let supervised = async move {
        while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
            // The panic itself is in the log.
            tracing::error!(task, "task_restarted");
            sleep(PAUSE).await;
        }
    };
    background.spawn(supervised).abort_handle()
}

#[cfg(test)]
#[allow(clippy::panic, reason = "it is what is tested")]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    #[tokio::test(start_paused = true)]
    async fn only_a_task_that_panics_is_restarted() {
        let (starts, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let (counted, notified) = (starts.clone(), ended.clone());
        let handle = supervise(&Background::current(), "test", move || {
            let (starts, ended) = (counted.clone(), notified.clone());
            async move {
                if starts.fetch_add(1, Ordering::Relaxed) < 2 {
                    panic!("a simulated defect");
                }
                ended.notify_one();
            }
        });
        ended.notified().await;
        sleep(2 * PAUSE).await;
        assert_eq!((starts.load(Ordering::Relaxed), handle.is_finished()), (3, true));
    }
}
