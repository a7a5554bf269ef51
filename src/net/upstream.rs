//! Connecting to the server, encrypted as `upstream_sslmode` says.
//!
//! Not cancel-safe where nothing else is said: a connection that is dropped is closed.

use super::binding::Binding;
use super::handshake::{Refused, refuse};
use super::login::{Authenticated, authenticate, first_answer, tell_of_upstream};
use super::peer::Peer;
use super::stream::Stream;
use crate::config::{Address, Settings};
use crate::state::connections::Seat;
use crate::state::lifecycle::too_late;
use crate::state::shared::Shared;
use crate::tls::{Attempt, Connector, Negotiated, NoTls, Told, Trouble, trouble};
use crate::wire::error::{ErrorText, field};
use crate::wire::frame::body;
use crate::wire::tag::backend;
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A server that does not accept a connection, or does not shake hands, within this time counts as down.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The server's error where pg_hba.conf has no entry for the encryption of the connection.
const NOT_LET_IN: &[u8] = b"28000";

/// Connects to the server, sends it the packet that starts a session, and relays authentication. Tells the client where
/// that fails.
/// Gives up at the deadline, when the proxy stops, and when the client answers too slowly while others wait to log in.
pub async fn log_in(
    shared: &Shared,
    client: &mut Peer,
    seat: &Seat,
    packet: &[u8],
    deadline: Instant,
) -> Result<(Peer, Authenticated), Refused> {
    let text = tokio::select! {
        logged_in = try_to_log_in(shared, client, seat, packet) => return logged_in,
        () = seat.overdue() => ErrorText::new("53300", "others wait to log in, and this client has not answered the server")
            .hint("While as many log in as may at once, each has a second to answer: try again."),
        // As the server says it.
        () = sleep_until(deadline) => ErrorText::new("57014", "canceling authentication due to timeout")
            .hint("The proxy's setting startup_timeout limits it."),
        () = shared.stopping() => too_late(),
    };
    refuse(client, text).await
}

async fn try_to_log_in(
    shared: &Shared,
    client: &mut Peer,
    seat: &Seat,
    packet: &[u8],
) -> Result<(Peer, Authenticated), Refused> {
    let mut attempts = attempts(shared);
    loop {
        let mut server = match connect_by(shared, &mut attempts).await {
            Ok(stream) => Peer::new(stream),
            Err(error) => return unreachable(shared, client, error).await,
        };
        server.writer.output.extend_from_slice(packet);
        let may_differ = attempts.as_slice().iter().any(|it| (*it == Attempt::Plain) == server.secured.is_some());
        if may_differ {
            let turned_away = is_turned_away(client, &mut server).await;
            if tell_of_upstream(client, turned_away).await? {
                continue;
            }
        }
        let binding = Binding::between(client, &server);
        let allowed = shared.settings().allow_unauthenticated.clone();
        let authenticated = authenticate(client, &mut server, binding, seat, &allowed).await?;
        return Ok((server, authenticated));
    }
}

/// The server refuses the client before any authentication: with more or less encryption it might not.
async fn is_turned_away(client: &mut Peer, server: &mut Peer) -> Result<bool, Refused> {
    Ok(match first_answer(client, server).await? {
        Some((backend::ERROR, frame)) => field(body(&frame), b'C') == Some(NOT_LET_IN),
        _ => false,
    })
}

/// Passes a request to cancel on as it is, and waits until the server has closed the connection: then it has sent the signal.
pub async fn cancel(shared: &Shared, packet: Bytes) -> io::Result<()> {
    let mut server = Peer::new(connect(shared).await?);
    server.writer.output.extend_from_slice(&packet);
    server.writer.flush().await?;
    server.reader.fill().await
}

/// Connects to the server by the first way that works.
///
/// # Errors
/// Those of the last way.
async fn connect(shared: &Shared) -> io::Result<Stream> {
    connect_by(shared, &mut attempts(shared)).await
}

type Attempts = std::slice::Iter<'static, Attempt>;

fn attempts(shared: &Shared) -> Attempts {
    match shared.settings().upstream {
        Address::Tcp { .. } => shared.encryption.server.attempts().iter(),
        // As in libpq, there is no TLS over a Unix socket.
        Address::Unix { .. } => [Attempt::Plain].iter(),
    }
}

/// Connects without TLS; None where the settings do not allow that.
pub async fn connect_plainly(shared: &Shared) -> io::Result<Option<Stream>> {
    match attempts(shared).any(|attempt| *attempt == Attempt::Plain) {
        true => connect_by(shared, &mut [Attempt::Plain].iter()).await.map(Some),
        false => Ok(None),
    }
}

/// Connects as sessions do, and closes the connection. Cancel-safe.
pub async fn reach(shared: &Shared) -> io::Result<()> {
    connect_by(shared, &mut attempts(shared)).await.map(drop)
}

/// Takes ways to connect until one works.
async fn connect_by(shared: &Shared, attempts: &mut Attempts) -> io::Result<Stream> {
    let settings = shared.settings();
    loop {
        let Some(&attempt) = attempts.next() else { return Err(io::ErrorKind::NotConnected.into()) };
        let connecting = attempt_to_connect(&settings, &shared.encryption.server, attempt);
        let result = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
        match result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            // A server that cannot be reached at all is not tried again.
            Err(error) if attempt == Attempt::Offered && trouble(&error, Told::Settings).is_some() => {
                tracing::debug!(%error, "upstream_tls_failed");
            }
            result => return result,
        }
    }
}

async fn attempt_to_connect(settings: &Settings, tls: &Connector, attempt: Attempt) -> io::Result<Stream> {
    let address = &settings.upstream;
    let (stream, host) = match (Stream::connect(address, settings.limits.keepalive).await?, address) {
        (Stream::Tcp(stream), Address::Tcp { host, .. }) if attempt != Attempt::Plain => (stream, host),
        (stream, _) => return Ok(stream),
    };
    match tls.negotiate(stream, host).await? {
        Negotiated::Tls(stream, secured) => Ok(Stream::Tls(Box::new((*stream).into()), secured)),
        Negotiated::Plain(stream) if attempt == Attempt::Offered => Ok(Stream::Tcp(stream)),
        Negotiated::Plain(_) => Err(io::Error::other(NoTls::NotOffered)),
    }
}

/// Writes the error for a client whose server cannot be reached.
async fn unreachable<T>(shared: &Shared, client: &mut Peer, error: io::Error) -> Result<T, Refused> {
    if shared.log_limit.allows("upstream_unreachable", "") {
        tracing::error!(upstream = %shared.settings().upstream, %error, "upstream_unreachable");
    }
    let text = tls_text(&error).unwrap_or_else(|| {
        ErrorText::new("08006", format!("could not connect to the server behind the proxy: {error}"))
            .hint("Is PostgreSQL running where the proxy's --upstream says?")
    });
    refuse::<()>(client, text).await.ok();
    Err(Refused::Upstream(error))
}

/// The error for clients where TLS with the server fails.
pub fn tls_text(error: &io::Error) -> Option<ErrorText> {
    let Trouble { message, hint } = trouble(error, Told::Settings)?;
    Some(ErrorText::new("08006", format!("could not connect to the server behind the proxy: {message}")).hint(hint))
}
