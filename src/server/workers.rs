//! The threads that run sessions.
//!
//! Each thread, named `relay`, has its own single-threaded runtime, so that a session stays on its thread: its events
//! wake no other thread, and no thread steals work. Owns the assignment of sessions to threads. Must never move a
//! session.

use futures_util::FutureExt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::TaskTracker;

/// Keep-alive of idle blocking threads: a century.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The threads for sessions.
#[derive(Clone)]
pub struct Workers {
    workers: Arc<[Worker]>,
    /// The sessions of all threads, from the accepted connection on.
    sessions: TaskTracker,
}

struct Worker {
    handle: Handle,
    /// Each session of the thread holds a clone.
    sessions: Arc<()>,
}

impl Workers {
    /// Starts the threads. Keep the runtimes as long as sessions run, and drop them outside all runtimes.
    ///
    /// # Errors
    /// The system cannot start the threads.
    pub fn start(count: NonZeroUsize) -> io::Result<(Self, Vec<Runtime>)> {
        let runtimes = (0..count.get()).map(|_| runtime("relay", Some(1))).collect::<io::Result<Vec<_>>>()?;
        let worker = |runtime: &Runtime| Worker { handle: runtime.handle().clone(), sessions: Arc::default() };
        let workers = Workers { workers: runtimes.iter().map(worker).collect(), sessions: TaskTracker::new() };
        Ok((workers, runtimes))
    }

    /// Returns when no connection remains, including those that have not logged in. Cancel-safe.
    pub async fn none_left(&self) {
        self.sessions.close();
        self.sessions.wait().await;
    }

    /// Runs a session on the thread with the fewest sessions.
    pub fn begin(&self, session: impl Future<Output = ()> + Send + 'static) {
        let Some(worker) = self.workers.iter().min_by_key(|worker| Arc::strong_count(&worker.sessions)) else { return };
        let counted = worker.sessions.clone();
        // An async block that awaits the session would reserve its memory twice: for the captured and the pinned value.
        self.sessions.spawn_on(session.map(move |()| drop(counted)), &worker.handle);
    }
}

/// A runtime with this many threads, or one per core. All have this name; the system shows 15 bytes of it.
///
/// If the system starts no more threads, blocking work such as a long text or a reload waits for an existing thread.
/// Without any thread for blocking work it would panic. Therefore the runtime starts one immediately, and such threads
/// never end.
///
/// # Errors
/// The system cannot start the threads.
pub fn runtime(name: &str, threads: Option<usize>) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.thread_name(name);
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().thread_keep_alive(FOR_EVER).build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}
