//! The process: its threads, its limit of open files, and its notifications to systemd (`sd_notify(3)`).
//!
//! Clients log in on a runtime of their own. Then each session stays on one relay thread. Owns the assignment of sessions to relays.

use crate::config::Settings;
use crate::net::driver::Leftover;
use crate::relay::Relay;
use crate::state::shared::BESIDE_SESSIONS;
use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::num::NonZeroUsize;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::TaskTracker;

/// Descriptors for policies, listeners, etcd, a connection to each server of a list, up to six control connections per database,
/// and cancel requests.
const BESIDE_CLIENTS: u64 = 128 + BESIDE_SESSIONS as u64;

/// Raises the limit as far as permitted. Warns if it is insufficient for the connections in the settings.
pub fn provide_open_files(settings: &Settings) {
    // Two per session, and as many clients again may be waiting for one.
    let connections = settings.limits.connections.get() as u64;
    let needed = 3 * connections + BESIDE_CLIENTS;
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => return tracing::warn!(%error, "open_files_limit_unknown"),
    };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, hard, "open_files_limit_not_raised");
    }
    if hard < needed {
        tracing::warn!(
            limit = hard,
            needed,
            max_connections = connections,
            hint = "raise LimitNOFILE or `ulimit -n`",
            "open_files_limit_too_low"
        );
    }
}

/// Listening.
pub fn ready() {
    notify_systemd("READY=1\nSTATUS=Listening");
}

/// A reload has begun.
pub fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
    notify_systemd(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
}

/// A reload has ended. Leaves the status as it is: a predecessor reloads, too.
pub fn reloaded() {
    notify_systemd("READY=1");
}

/// The proxy is stopping.
pub fn stopping() {
    notify_systemd("STOPPING=1\nSTATUS=Waiting for open transactions");
}

/// A successor has the sockets.
pub fn taken_over() {
    notify_systemd("STATUS=Serving the remaining sessions. A successor has taken over");
}

fn notify_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, ?socket, "systemd_not_told");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    let sender = UnixDatagram::unbound()?;
    // A manager that does not read must not block the proxy.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// Keep-alive of idle blocking threads: a century.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The threads for sessions.
#[derive(Clone)]
pub struct Workers {
    /// The runtime for logins. Sessions use its timers.
    logins: Handle,
    workers: Arc<[Worker]>,
    /// The sessions of all threads, from the accepted connection on.
    sessions: TaskTracker,
}

struct Worker {
    relay: Relay,
    /// Each session of the thread holds a clone.
    sessions: Arc<()>,
}

impl Workers {
    /// Starts the threads. Keep the runtime as long as sessions run, and drop it outside all runtimes.
    ///
    /// # Errors
    /// The system cannot start the threads.
    pub fn start(count: NonZeroUsize) -> io::Result<(Self, Runtime)> {
        let runtime = runtime("relay", Some(count.get()))?;
        let worker = |_| Ok(Worker { relay: Relay::start(runtime.handle())?, sessions: Arc::default() });
        let workers = (0..count.get()).map(worker).collect::<io::Result<_>>()?;
        // Each relay occupies a blocking thread. Another one resolves host names.
        runtime.spawn_blocking(|| ());
        let workers = Workers { logins: runtime.handle().clone(), workers, sessions: TaskTracker::new() };
        Ok((workers, runtime))
    }

    /// Returns when no connection remains, including those that have not logged in. Cancel-safe.
    pub async fn none_left(&self) {
        self.sessions.close();
        self.sessions.wait().await;
    }

    /// Serves a client that connects.
    pub fn begin(&self, login: impl Future<Output = ()> + Send + 'static) {
        self.sessions.spawn_on(login, &self.logins);
    }

    /// Runs a session, and the work that remains after it, on the thread with the fewest sessions.
    pub fn relay(&self, session: impl Future<Output = Option<Leftover>> + Send + 'static) {
        let Some(worker) = self.workers.iter().min_by_key(|worker| Arc::strong_count(&worker.sessions)) else { return };
        let counted = (worker.sessions.clone(), self.sessions.token());
        let ended = session.map(move |leftover| {
            drop(counted);
            leftover
        });
        worker.relay.begin(ended.then(OptionFuture::from).map(drop));
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
    let runtime = builder.enable_all().thread_keep_alive(THREAD_KEEP_ALIVE).build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_supports_abstract_sockets_and_does_not_block() {
        let name = format!("fencegate-systemd-{}", std::process::id());
        let systemd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Fills the manager's queue.
        while send(format!("@{name}").as_bytes(), "READY=1").is_ok() {}
        let mut message = [0; 16];
        let length = systemd.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
    }
}
