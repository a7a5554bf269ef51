//! The proxy: listens, and relays each session between a client and the server.
//!
//! Owns sockets and sessions. Must never decide by itself that a write may pass: `fence` does.

mod audit;
mod console;
mod context;
mod definitions;
mod handshake;
mod judge;
mod keys;
mod log_limit;
mod login;
mod names;
mod parameter;
mod peer;
mod rejection;
mod relay;
mod replies;
mod session;
mod shared;
mod stream;
mod succession;
mod suspects;
mod touched;

use crate::config::{Address, Settings};
use crate::etcd::Etcd;
use crate::metrics::{Metrics, MetricsError};
use crate::policy::{self, PolicySet};
use handshake::{Opened, Refused};
use relay::Relay;
use shared::Shared;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use stream::Stream;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Why the proxy could not run.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// The process cannot receive signals.
    #[error("cannot set up signal handling: {0}")]
    Signals(io::Error),
    /// The metrics cannot be made.
    #[error("cannot make the metrics: {0}")]
    Metrics(#[from] MetricsError),
}

/// Runs the proxy until SIGTERM or SIGINT. `etcd` is there if the settings have it. Policies are loaded anew at SIGHUP, whole or not at all.
/// Not cancel-safe: dropping it drops every session.
///
/// # Errors
/// When it cannot start.
pub async fn run(settings: Settings, policies: PolicySet, etcd: Option<Arc<Etcd>>) -> Result<(), ProxyError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(ProxyError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ProxyError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ProxyError::Signals)?;
    let addresses = settings.listen.clone();
    let metrics = Arc::new(Metrics::new()?);
    let shared = Shared::new(settings, policies, etcd, process_id(), metrics);
    let mut listeners = JoinSet::new();
    let mut sockets = Vec::new();
    for address in &addresses {
        let listener = Listener::bind(address)
            .await
            .map_err(|error| ProxyError::Listen { address: address.to_string(), error })?;
        tracing::info!(address = %listener.address, "listening");
        sockets.extend(address.socket_path().map(SocketFile));
        listeners.spawn(listener.serve(shared.clone()));
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(&shared).await,
        }
    }
    tracing::info!("stopping");
    Ok(())
}

/// Not cancel-safe: some databases may have the new policies and others not.
async fn reload(shared: &Shared) {
    let directory = shared.settings().policies.clone();
    match tokio::task::spawn_blocking(move || policy::load(&directory)).await {
        Ok(Ok(policies)) => {
            if let Err(error) = shared.settings().check(&policies) {
                tracing::error!(%error, "policy_error");
                tracing::error!("policies not loaded: the ones in force stay");
                return;
            }
            tracing::info!(resources = policies.resources.len(), "policies_loaded");
            shared.apply(policies).await;
        }
        Ok(Err(errors)) => {
            errors.iter().for_each(|error| tracing::error!(%error, "policy_error"));
            tracing::error!("policies not loaded: the ones in force stay");
        }
        Err(error) => tracing::error!(%error, "policies not loaded: the ones in force stay"),
    }
}

/// Different for every process that ever runs against the same database, also on other machines.
fn process_id() -> String {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), started);
    format!("{}-{started:x}-{random:x}", std::process::id())
}

struct Listener {
    socket: Socket,
    address: String,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Removes the file of a Unix socket when the proxy stops.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

impl Listener {
    async fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let socket = TcpListener::bind((host.as_str(), *port)).await?;
                let address = socket.local_addr()?.to_string();
                Ok(Listener { socket: Socket::Tcp(socket), address })
            }
            Address::Unix { .. } => {
                let path = address.socket_path().ok_or(io::ErrorKind::InvalidInput)?;
                remove_stale(&path).await?;
                Ok(Listener { socket: Socket::Unix(UnixListener::bind(&path)?), address: path.display().to_string() })
            }
        }
    }

    async fn serve(self, shared: Arc<Shared>) {
        loop {
            match self.accept().await {
                Ok((stream, peer)) => {
                    tokio::spawn(serve_session(shared.clone(), stream, peer));
                }
                Err(error) => {
                    // Out of file descriptors, usually: accepting at once again would only burn time.
                    tracing::error!(%error, address = self.address, "accept_failed");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(Stream, String)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream::tcp(stream)?, peer.to_string()))
            }
            Socket::Unix(listener) => Ok((Stream::Unix(listener.accept().await?.0), "unix".to_owned())),
        }
    }
}

/// A socket file that nobody listens on is what a killed proxy left.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

static SESSIONS: AtomicU64 = AtomicU64::new(0);

async fn serve_session(shared: Arc<Shared>, stream: Stream, peer: String) {
    let session = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
    match handshake::shake_hands(shared.clone(), stream, session, &peer).await {
        Ok(Opened::Session(session_parts)) => {
            let (context, started) = *session_parts;
            let (session, database) = (started.session.clone(), context.database().clone());
            session.log_start(shared.settings().log_sessions);
            let entry = shared.sessions.enter(session.clone());
            let registration = database.register(started.fence.clone());
            context.session_registered();
            let end = Relay::new(context, started).run().await;
            drop(registration);
            drop(entry);
            session.log_end(shared.settings().log_sessions, &end);
        }
        Ok(Opened::Console(console)) => {
            tracing::info!(session, peer, role = console.role(), "console_started");
            match console.run(&shared).await {
                Ok(()) => tracing::info!(session, peer, "console_ended"),
                Err(error) => tracing::info!(session, peer, %error, "console_ended"),
            }
        }
        Err(Refused::Cancelled) => tracing::debug!(session, peer, "cancel_request"),
        Err(refused) => log_refusal(&shared, session, &peer, &refused),
    }
}

/// There is no session. A storm of these is kept out of the log.
fn log_refusal(shared: &Shared, session: u64, address: &str, refused: &Refused) {
    shared.metrics.connections_refused.with_label_values(&[refused.label()]).inc();
    if shared.log_limit.allows("session_refused", "") {
        tracing::info!(session, address, reason = %refused, "session_refused");
    }
}
