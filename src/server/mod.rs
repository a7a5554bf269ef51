//! The proxy: listens, and relays each session between a client and the server.
//!
//! Owns sockets and sessions. Must never decide whether a write may pass: `fence` does.

pub mod check;
mod console;
mod health;
mod outage;
mod prober;
pub mod process;
mod reload;
mod shutdown;
mod sockets;
mod tables;
mod take_over;
mod watch;

use crate::config::Origin;
use crate::listen::Inherited;
use crate::metrics::Metrics;
use crate::net::driver::{Driver, Leftover};
use crate::net::handshake::{self, FirstPacket, Opened};
use crate::net::proxy_header::Announced;
use crate::net::refused::Refused;
use crate::net::stream::{AcceptedStream, Stream};
use crate::state::connections::Seat;
use crate::state::sessions::SessionRecord;
use crate::state::shared::{Shared, StartOptions};
pub use crate::tls::TlsMaterial;
use crate::waiting_connections::SourceAddress;
use console::ConsoleSession;
use fencegate_fence::supervise::supervise;
use fencegate_session::End;
use process::Workers;
use shutdown::StopSignals;
pub use sockets::ProxyError;
use sockets::Sockets;
use sockets::bind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use take_over::Handover;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;
pub use watch::Fingerprint;

/// Runs the proxy until SIGTERM or SIGINT, then until open transactions have ended. SIGHUP reloads. `inherited`: sockets
/// that systemd has passed. `loaded`: the files, as they were before they were read. Not cancel-safe: dropping it drops every
/// session.
///
/// # Errors
/// The proxy cannot start.
pub async fn run(
    start: StartOptions,
    inherited: Inherited,
    workers: Workers,
    loaded: Fingerprint,
) -> Result<(), ProxyError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(ProxyError::Signals)?;
    let mut stop = StopSignals::new().map_err(ProxyError::Signals)?;
    process::provide_open_files(&start.settings);
    let shared = Shared::new(start, process_id(), Arc::new(Metrics::new()?));
    // First: whether the proxy is ready for clients depends on the servers.
    prober::start(&shared);
    let mut bound = bind(&shared, inherited).await?;
    let offer = bound.offer.take();
    let (begun, relays) = (shared.clone(), workers.clone());
    let begin = move |stream, peer| begin_session(&relays, begun.clone(), stream, peer);
    let sockets = Sockets::serve(&shared, bound, begin);
    shared.sockets.set(sockets.clone()).ok();
    process::ready();
    tokio::spawn(shared.clone().check_servers());
    let followed = shared.clone();
    supervise(&shared.background, "follow_tables", move || followed.clone().follow_tables());
    let forgetting = shared.clone();
    supervise(&shared.background, "forget_databases", move || forgetting.clone().forget_unused_databases());
    if let Some(interval) = shared.settings().watch_files {
        let watching = shared.clone();
        supervise(&shared.background, "watch_files", move || {
            let shared = watching.clone();
            async move { watch::watch_files(&shared, interval, loaded).await }
        });
    }
    let handover = offer.map(|offer| Handover { sockets: sockets.clone(), offer });
    let successor = tokio::select! {
        () = stop.recv() => None,
        () = reload::at_signal(&shared, &mut hangup) => None,
        Some(successor) = to_successor(handover.as_ref(), &shared) => Some(successor),
    };
    drop(handover);
    if let Some(successor) = successor {
        sockets.close().await;
        tokio::select! {
            () = shutdown::drain(&shared, successor, &workers, &mut hangup) => {}
            () = stop.recv() => {}
        }
    }
    process::stopping();
    shutdown::shut_down(&shared, &sockets, &mut stop).await;
    shared.log_limit.finish();
    shared.shared_databases().iter().for_each(|database| database.fence.log_limit().finish());
    sockets.close().await;
    Ok(())
}

/// None if the settings name no socket for successors.
async fn to_successor(handover: Option<&Handover>, shared: &Shared) -> Option<UnixStream> {
    match handover {
        Some(handover) => Some(handover.to_successor(shared).await),
        None => None,
    }
}

/// Unique among all processes that ever use the same database, on any machine.
fn process_id() -> String {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), started);
    format!("{}-{started:x}-{random:x}", std::process::id())
}

static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// Reserves the client's seat before its task starts, because tasks start in any order.
fn begin_session(workers: &Workers, shared: Arc<Shared>, stream: AcceptedStream, peer: String) {
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
    let address = peer.parse().ok().map(|address: SocketAddr| address.ip());
    let source = SourceAddress::new(address);
    // The socket no longer knows its peer after a reset, with which health checks end.
    let origin = address.map_or(Origin::Unix, Origin::Address);
    let seat = shared.connections.enter(number, source, shared.settings().limits.connections.get());
    let relays = workers.clone();
    workers.begin(async move {
        match stream.into_stream() {
            Ok(stream) => serve_session(&relays, shared, stream, origin, peer, seat).await,
            Err(error) => tracing::error!(%error, peer, "accept_failed"),
        }
    });
}

/// Performs the steps before the session, and begins it.
async fn serve_session(
    workers: &Workers,
    shared: Arc<Shared>,
    mut stream: Stream,
    origin: Origin,
    mut peer: String,
    mut seat: Seat,
) {
    let session = seat.number();
    let (settings, mut announced) = (shared.settings(), None);
    if settings.proxy_protocol_from.iter().any(|it| it.covers(origin)) {
        let received = match Box::pin(handshake::read_proxy_header(&shared, stream, &seat)).await {
            Ok(received) => received,
            Err(refused) => return log_refusal(&shared, session, &peer, None, &refused),
        };
        stream = received.0;
        announced = Some(received.1);
        if let Announced::Client(address) = received.1 {
            peer = address.to_string();
            // From now on it counts as a connection from the client's address.
            drop(seat);
            let source = SourceAddress::new(Some(address.ip()));
            seat = shared.connections.enter(session, source, settings.limits.connections.get());
        }
    }
    let caller = match Box::pin(handshake::read_first_packet(&shared, stream, announced, &seat)).await {
        Ok(FirstPacket::Client(caller)) => *caller,
        Ok(FirstPacket::Cancel(how)) => return tracing::debug!(session, peer, how, "cancel_request"),
        Err(refused) => return log_refusal(&shared, session, &peer, None, &refused),
    };
    let claims = caller.claims();
    match Box::pin(handshake::establish_session(shared.clone(), caller, &mut seat, &peer)).await {
        Ok(Opened::Session(driver)) => {
            let is_check = announced == Some(Announced::Balancer);
            workers.relay(relay_session(shared, driver, seat, is_check));
        }
        Ok(Opened::Console(caller)) => match Box::pin(ConsoleSession::open(shared.clone(), *caller, &mut seat)).await {
            Ok(console) => {
                // Console commands query the databases.
                let served = shared.background.clone().spawn(serve_console(shared, console, session, peer));
                // The log reports a panic.
                served.await.ok();
            }
            Err(refused) => log_refusal(&shared, session, &peer, Some(claims), &refused),
        },
        Err(refused) => log_refusal(&shared, session, &peer, Some(claims), &refused),
    }
}

/// Runs a session. Returns the work that remains after its end.
async fn relay_session(shared: Arc<Shared>, driver: Box<Driver>, seat: Seat, is_check: bool) -> Option<Leftover> {
    let session = driver.host().record.clone();
    log_start(&shared, &session, is_check);
    let entry = shared.sessions.enter(session.clone());
    let registration = driver.host().context.register(&session);
    // Another server may have become the primary during the login.
    if !shared.servers.keeps(&session.server, session.fence.identity.as_ref().ok()) {
        session.replace();
    }
    let (end, leftover) = driver.run().await;
    drop((registration, entry));
    log_end(&shared, &session, &end, is_check);
    drop(seat);
    leftover
}

async fn serve_console(shared: Arc<Shared>, console: ConsoleSession, session: u64, address: String) {
    let role = console.role().to_owned();
    tracing::info!(session, address, role, "console_started");
    let end = console.run(shared).await;
    tracing::info!(session, address, role, reason = %end, "console_ended");
}

/// Rate-limited, so that many short sessions do not flood the log.
fn log_start(shared: &Shared, session: &SessionRecord, is_check: bool) {
    let level = session_level(shared, is_check);
    if level != Some(Level::INFO) || shared.log_limit.allows_sessions("session_started") {
        session.log_start(level);
    }
}

fn log_end(shared: &Shared, session: &SessionRecord, end: &End, is_check: bool) {
    let level = session_level(shared, is_check);
    if level != Some(Level::INFO) || shared.log_limit.allows_sessions("session_ended") {
        session.log_end(level, end);
    }
}

/// The level of a session's start and end. `is_check`: a session of the load balancer itself, for a health check.
fn session_level(shared: &Shared, is_check: bool) -> Option<Level> {
    let level = shared.settings().log_sessions;
    if is_check { level.map(|_| Level::DEBUG) } else { level }
}

/// Logs a client without a session, with the user and database that it named. Rate-limited, so that many of them do not
/// flood the log.
fn log_refusal(shared: &Shared, session: u64, address: &str, claims: Option<(String, String)>, refused: &Refused) {
    match refused {
        Refused::Left => return tracing::debug!(session, address, reason = %refused, "connection_without_packet"),
        Refused::Unauthenticated => {
            let (user, database) = claims.unzip();
            return tracing::debug!(session, user, database, address, reason = %refused, "connection_without_authentication");
        }
        Refused::Client(..) | Refused::Server(_) | Refused::Upstream(_) => {}
    }
    shared.metrics.connections_refused.with_label_values(&[refused.label()]).inc();
    if shared.log_limit.allows("session_refused", "") {
        let (user, database) = claims.unzip();
        let code = refused.code();
        tracing::info!(session, user, database, address, code, reason = %refused, "session_refused");
    }
}
