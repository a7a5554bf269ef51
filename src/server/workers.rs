//! The threads that run sessions.
//!
//! Each is a runtime of its own with one thread, so that a session stays where it began: what wakes it wakes no other thread,
//! and no thread looks for work that another one has. Owns which thread a session gets. Must never move a session.

use futures_util::FutureExt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// How long a thread without work stays: a century.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Where sessions run.
#[derive(Clone)]
pub struct Workers(Arc<[Worker]>);

struct Worker {
    handle: Handle,
    /// Each session of the thread has one, too.
    sessions: Arc<()>,
}

impl Workers {
    /// Starts the threads. The runtimes have to be kept as long as sessions run, and to be dropped outside of all of them.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(count: NonZeroUsize) -> io::Result<(Self, Vec<Runtime>)> {
        let runtimes = (0..count.get()).map(|_| runtime(Some(1))).collect::<io::Result<Vec<_>>>()?;
        let worker = |runtime: &Runtime| Worker { handle: runtime.handle().clone(), sessions: Arc::default() };
        Ok((Workers(runtimes.iter().map(worker).collect()), runtimes))
    }

    /// Runs a session on the thread that has the fewest.
    pub fn begin(&self, session: impl Future<Output = ()> + Send + 'static) {
        let Some(worker) = self.0.iter().min_by_key(|worker| Arc::strong_count(&worker.sessions)) else { return };
        let counted = worker.sessions.clone();
        // An async block that awaits the session would keep room for it twice: where it was moved from, and where to.
        worker.handle.spawn(session.map(move |()| drop(counted)));
    }
}

/// A runtime of that many threads, or as many as there are cores.
///
/// Where the system starts no more threads, work that blocks, like a long text or a reload, waits for a thread that is
/// there. With none besides those that run sessions it would panic. So there is one more from the start, and none ends.
///
/// # Errors
/// The system starts no more threads.
pub fn runtime(threads: Option<usize>) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().thread_keep_alive(FOR_EVER).build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}
