//! Connecting to the server, with the encryption of `upstream_sslmode`.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a connection closes it.

use super::binding::Binding;
use super::login::{Authenticated, MAX_AUTHENTICATION, authenticate, first_answer};
use super::peer::Peer;
use super::refused::{Refused, pass_refusal, refuse, report_upstream_failure, tls_text};
use super::stream::{Carrier, Ends, Stream};
use crate::config::{Address, Settings, TargetSession};
use crate::state::connections::Seat;
use crate::state::lifecycle::{CANNOT_CONNECT_NOW, too_late};
use crate::state::servers::NoServer;
use crate::state::shared::Shared;
use crate::tls::TlsMaterial;
use bytes::Bytes;
use fencegate_postgres::tls::{Attempt, ConfiguredIn, Connector, Negotiated, NoTls, diagnose};
use fencegate_wire::error::{ErrorText, field};
use fencegate_wire::frame::body;
use fencegate_wire::tag::backend;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A server that does not accept a connection or complete the handshake within this time counts as down.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The server's error if pg_hba.conf has no entry for the encryption of the connection.
const NOT_LET_IN: &[u8] = b"28000";

/// The servers that a login may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Those for sessions.
    Session,
    /// Those that can authenticate an operator.
    Console,
}

/// A login at a server.
pub struct LoggedIn {
    pub server: Peer,
    /// The ends of the connection to the server.
    pub ends: Ends,
    pub authenticated: Authenticated,
    /// The address of the server in the settings.
    pub address: Address,
}

/// Connects to a server, sends the startup packet and relays authentication. Reports failures to the client. Gives up
/// at the deadline, when the proxy stops, or when the client responds too slowly while others wait to log in.
pub async fn log_in(
    shared: &Shared,
    client: &mut Peer,
    seat: &Seat,
    route: Route,
    packet: &[u8],
    deadline: Instant,
) -> Result<LoggedIn, Refused> {
    let text = tokio::select! {
        logged_in = log_in_somewhere(shared, client, seat, route, packet) => return logged_in,
        text = time_is_up(shared, seat, deadline) => text,
    };
    refuse(client, text).await
}

/// Tries one host after the other, as libpq does, until one accepts a connection. Tries them again while the session may
/// wait for a server.
async fn log_in_somewhere(
    shared: &Shared,
    client: &mut Peer,
    seat: &Seat,
    route: Route,
    packet: &[u8],
) -> Result<LoggedIn, Refused> {
    let until = Instant::now() + shared.settings().limits.connect_wait;
    loop {
        let hosts = match hosts(shared, route, until).await {
            Ok(hosts) => hosts,
            Err(none) => return no_server_for(shared, client, none).await,
        };
        let mut failure = None;
        for address in &hosts {
            match try_to_log_in(shared, client, seat, address, packet).await? {
                Ok((server, ends, authenticated)) => {
                    return Ok(LoggedIn { server, ends, authenticated, address: address.clone() });
                }
                Err(why) => failure = why,
            }
        }
        let may_retry = route == Route::Session && shared.servers.is_probed() && Instant::now() < until;
        if !may_retry {
            shared.servers.request_look();
            return report(shared, client, failure).await;
        }
        for host in &hosts {
            shared.servers.look_again(host).await;
        }
    }
}

/// The hosts to try, in order. Cancel-safe.
///
/// # Errors
/// No server may serve the session.
async fn hosts(shared: &Shared, route: Route, until: Instant) -> Result<Vec<Address>, NoServer> {
    match route {
        Route::Session => shared.servers.available(until.saturating_duration_since(Instant::now())).await,
        Route::Console => Ok(shared.servers.for_operators()),
    }
}

/// The error for a client that no server may serve.
fn no_server(shared: &Shared, NoServer { states, hint }: NoServer) -> ErrorText {
    let message = match shared.servers.target() {
        TargetSession::Any => "no server behind the proxy accepts sessions",
        TargetSession::Primary => "no server behind the proxy is the primary",
        TargetSession::Standby => "no server behind the proxy is a standby",
        TargetSession::PreferStandby => "no server behind the proxy is a standby or the primary",
    };
    ErrorText::new(CANNOT_CONNECT_NOW, message).detail(states).hint(hint)
}

async fn no_server_for<T>(shared: &Shared, client: &mut Peer, none: NoServer) -> Result<T, Refused> {
    let error = shared.servers.table().summary(true);
    if shared.log_limit.allows("upstream_unreachable", "") {
        tracing::error!(upstream = %shared.settings().upstream, error, "upstream_unreachable");
    }
    refuse::<()>(client, no_server(shared, none)).await.ok();
    Err(Refused::Upstream(io::Error::new(io::ErrorKind::NotConnected, error)))
}

/// Waits until a login has to end, and returns the reason. Cancel-safe.
async fn time_is_up(shared: &Shared, seat: &Seat, deadline: Instant) -> ErrorText {
    tokio::select! {
        () = seat.overdue() => ErrorText::new(CANNOT_CONNECT_NOW, "login timed out: the client did not answer the server's authentication request while clients from other addresses were waiting")
            .hint("Retry, or connect to another host."),
        () = sleep_until(deadline) => timed_out(seat),
        () = shared.stopping() => too_late(),
    }
}

/// The error for a client or server that did not respond in time.
fn timed_out(seat: &Seat) -> ErrorText {
    let text = match seat.owes_answer() {
        // The server's message.
        true => ErrorText::new("57014", "canceling authentication due to timeout"),
        false => ErrorText::new(CANNOT_CONNECT_NOW, "timed out waiting for the server behind the proxy"),
    };
    text.hint("The limit is the proxy's setting startup_timeout.")
}

/// Logs in at one host. The inner error is a failure after which another host may work.
async fn try_to_log_in(
    shared: &Shared,
    client: &mut Peer,
    seat: &Seat,
    address: &Address,
    packet: &[u8],
) -> Result<Result<(Peer, Ends, Authenticated), Option<Failure>>, Refused> {
    let mut attempts = attempts(&shared.encryption(), address);
    loop {
        let (mut server, ends) = match connect_by(shared, address, &mut attempts).await {
            Ok(stream) => {
                let ends = stream.ends();
                (Peer::new(stream), ends)
            }
            Err(error) => {
                let is_encrypted = is_tls_failure(&error);
                attempts.fails(Failure::Connect(error), is_encrypted);
                return Ok(Err(attempts.failure));
            }
        };
        server.writer.output.extend_from_slice(packet);
        let is_encrypted = server.secured.is_some();
        let may_differ = attempts.left.as_slice().iter().any(|it| (*it == Attempt::Plain) == is_encrypted);
        if may_differ || attempts.failure.is_some() {
            let refusal = refusal(client, &mut server).await;
            if let Some(refusal) = report_upstream_failure(client, refusal).await? {
                attempts.fails(Failure::Refused(refusal), is_encrypted);
                if may_differ {
                    continue;
                }
                return report(shared, client, attempts.failure).await;
            }
        }
        let binding = Binding::between(client, &server);
        let allowed = shared.settings().allow_unauthenticated.clone();
        let authenticated = authenticate(client, &mut server, binding, seat, &allowed).await?;
        return Ok(Ok((server, ends, authenticated)));
    }
}

/// The server's refusal before authentication, which may depend on the encryption.
async fn refusal(client: &mut Peer, server: &mut Peer) -> Result<Option<Bytes>, Refused> {
    Ok(match first_answer(client, server).await? {
        Some((backend::ERROR, frame)) if field(body(&frame), b'C') == Some(NOT_LET_IN) => Some(frame),
        _ => None,
    })
}

/// Forwards a cancel request unchanged to a host, and waits until the server closes the connection: then it has sent the signal.
pub async fn cancel(shared: &Shared, address: &Address, packet: Bytes) -> io::Result<()> {
    let mut server = Peer::new(connect_to(shared, address).await?);
    server.writer.output.extend_from_slice(&packet);
    server.writer.flush().await?;
    server.reader.fill().await
}

/// Connects to a host by the first way that works.
///
/// # Errors
/// The errors of the last way.
async fn connect_to(shared: &Shared, address: &Address) -> io::Result<Stream> {
    try_to_connect(&shared.settings(), &shared.encryption(), address).await
}

/// Connects to a host by the first way of these settings that works.
///
/// # Errors
/// The errors of the last way.
pub async fn try_to_connect(settings: &Settings, encryption: &TlsMaterial, address: &Address) -> io::Result<Stream> {
    connect_with(settings, encryption, address, &mut attempts(encryption, address)).await
}

/// Connects to the first of these hosts that accepts a connection.
///
/// # Errors
/// The error of the last host.
async fn connect_to_any(shared: &Shared, hosts: Vec<Address>) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotConnected, shared.servers.table().summary(true));
    for host in hosts {
        match connect_to(shared, &host).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The remaining ways to connect.
struct Attempts {
    left: std::slice::Iter<'static, Attempt>,
    failure: Option<Failure>,
}

/// A failure after which another way to connect may work.
enum Failure {
    /// The connection failed.
    Connect(io::Error),
    /// The server refused the session by this error.
    Refused(Bytes),
}

impl Attempts {
    fn new(ways: &'static [Attempt]) -> Self {
        Attempts { left: ways.iter(), failure: None }
    }

    /// Keeps the failure of the encrypted attempt: the other one only reports that the connection is not encrypted.
    fn fails(&mut self, failure: Failure, is_encrypted: bool) {
        if is_encrypted || self.failure.is_none() {
            self.failure = Some(failure);
        }
    }
}

fn attempts(encryption: &TlsMaterial, address: &Address) -> Attempts {
    Attempts::new(match address {
        Address::Tcp { .. } => encryption.server.attempts(),
        // libpq does not use TLS over Unix sockets either.
        Address::Unix { .. } => &[Attempt::Plain],
    })
}

/// Connects without TLS; None if the settings do not allow that.
pub async fn connect_plainly(shared: &Shared) -> io::Result<Option<Stream>> {
    let Some(address) = shared.servers.for_operators().into_iter().next() else { return Ok(None) };
    match attempts(&shared.encryption(), &address).left.any(|attempt| *attempt == Attempt::Plain) {
        true => connect_by(shared, &address, &mut Attempts::new(&[Attempt::Plain])).await.map(Some),
        false => Ok(None),
    }
}

/// Returns true if the server is away: it is unreachable, does not answer this startup packet, or reports that it is
/// starting or shutting down. Cancel-safe.
pub async fn is_away(shared: &Shared, packet: &[u8]) -> bool {
    let ask = async {
        let mut server = Peer::new(connect_to_any(shared, shared.servers.for_operators()).await?);
        server.writer.output.extend_from_slice(packet);
        server.writer.flush().await?;
        loop {
            match server.reader.server_frame(MAX_AUTHENTICATION) {
                Ok(Some((backend::NEGOTIATE_VERSION, _))) => {}
                Ok(Some((backend::ERROR, frame))) => {
                    return Ok(field(body(&frame), b'C') == Some(CANNOT_CONNECT_NOW.as_bytes()));
                }
                Ok(Some(_)) | Err(_) => return Ok(false),
                Ok(None) if server.reader.ended => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(None) => server.reader.fill().await?,
            }
        }
    };
    !matches!(tokio::time::timeout(CONNECT_LIMIT, ask).await, Ok(Ok(false)))
}

/// Connects as sessions do, and closes the connection. True if it was encrypted. Cancel-safe.
///
/// # Errors
/// No server may serve a session, or the error of the last host.
pub async fn reach(shared: &Shared) -> io::Result<bool> {
    let hosts = shared.servers.available(Duration::ZERO).await.unwrap_or_default();
    Ok(matches!(connect_to_any(shared, hosts).await?, Stream::Tls(..)))
}

/// Tries the ways to connect until one works.
async fn connect_by(shared: &Shared, address: &Address, attempts: &mut Attempts) -> io::Result<Stream> {
    connect_with(&shared.settings(), &shared.encryption(), address, attempts).await
}

async fn connect_with(
    settings: &Settings,
    encryption: &TlsMaterial,
    address: &Address,
    attempts: &mut Attempts,
) -> io::Result<Stream> {
    let limit = settings.upstream.connect_timeout.max(CONNECT_LIMIT);
    loop {
        let Some(&attempt) = attempts.left.next() else { return Err(io::ErrorKind::NotConnected.into()) };
        let connecting = attempt_to_connect(settings, address, &encryption.server, attempt);
        let result = tokio::time::timeout(limit, connecting).await;
        match result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            // A server that cannot be reached at all is not tried again.
            Err(error) if attempt == Attempt::Offered && is_tls_failure(&error) => {
                tracing::debug!(%error, "upstream_tls_failed");
                attempts.fails(Failure::Connect(error), true);
            }
            result => return result,
        }
    }
}

async fn attempt_to_connect(
    settings: &Settings,
    address: &Address,
    tls: &Connector,
    attempt: Attempt,
) -> io::Result<Stream> {
    let stream = Stream::connect(address, settings.limits.keepalive, settings.upstream.connect_timeout).await?;
    let (stream, host) = match (stream, address) {
        (Stream::Tcp(stream), Address::Tcp { host, .. }) if attempt != Attempt::Plain => (stream, host),
        (stream, _) => return Ok(stream),
    };
    match tls.negotiate(Carrier::Runtime(stream), host).await? {
        Negotiated::Tls(stream, secured) => Ok(Stream::Tls(Box::new((*stream).into()), secured)),
        Negotiated::Plain(Carrier::Runtime(stream)) if attempt == Attempt::Offered => Ok(Stream::Tcp(stream)),
        Negotiated::Plain(_) => Err(io::Error::other(NoTls::NotOffered)),
    }
}

/// True if the TLS handshake failed. A server without TLS does not count as a failure.
fn is_tls_failure(error: &io::Error) -> bool {
    let is_offered = error.get_ref().and_then(|why| why.downcast_ref::<NoTls>()) != Some(&NoTls::NotOffered);
    is_offered && diagnose(error, ConfiguredIn::Settings).is_some()
}

/// Reports to the client why no way to connect has worked.
async fn report<T>(shared: &Shared, client: &mut Peer, failure: Option<Failure>) -> Result<T, Refused> {
    match failure {
        Some(Failure::Refused(error)) => pass_refusal(client, &error).await,
        Some(Failure::Connect(error)) => unreachable(shared, client, error).await,
        None => unreachable(shared, client, io::ErrorKind::NotConnected.into()).await,
    }
}

/// Writes the error for a client whose server cannot be reached.
async fn unreachable<T>(shared: &Shared, client: &mut Peer, error: io::Error) -> Result<T, Refused> {
    if shared.log_limit.allows("upstream_unreachable", "") {
        tracing::error!(upstream = %shared.settings().upstream, %error, "upstream_unreachable");
    }
    let text = tls_text(&error).unwrap_or_else(|| {
        ErrorText::new(CANNOT_CONNECT_NOW, format!("could not connect to the server behind the proxy: {error}"))
            .hint("Check that PostgreSQL is running at the address in the proxy's `upstream` setting.")
    });
    refuse::<()>(client, text).await.ok();
    Err(Refused::Upstream(error))
}
