//! From an accepted socket to an established session: calls `opening`, `upstream`, `login` and `identify`.
//!
//! Owns the order of the checks. Must never open a control connection for a name that the server has not authenticated.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a handshake ends only its own session.

use super::driver::Driver;
use super::identify::{Identified, identify};
use super::login::Authenticated;
use super::opening::{OpeningError, SERVER_LIMIT, read_opening, refuse_packet};
use super::peer::Peer;
use super::pooler;
use super::proxy_header::{self, Announced, HeaderError};
use super::refused::{Refused, refuse, report_upstream_failure};
use super::stream::Stream;
use super::upstream::{self, LoggedIn, Route, log_in};
use crate::config::{Address, Limits, Origin};
use crate::state::connections::{LoginKind, NoPlace, Seat, SessionGroup};
use crate::state::context::Context;
use crate::state::context::SessionHost;
use crate::state::lifecycle::{CANNOT_CONNECT_NOW, Phase, paused, too_late};
use crate::state::sessions::SessionRecord;
use crate::state::shared::Shared;
use bytes::Bytes;
use fencegate_fence::CONSOLE;
use fencegate_fence::session::{Identity, IdentityError, SessionFence};
use fencegate_fence::value::FenceValue;
use fencegate_policy::Mode;
use fencegate_session::Settings;
use fencegate_session::parameter::{Parameter, ParameterValue};
use fencegate_session::path::Path;
use fencegate_session::rejection::Rejection;
use fencegate_wire::client_error::ClientError;
use fencegate_wire::error::ErrorText;
use fencegate_wire::message;
use fencegate_wire::startup::{self, InvalidPacket, Packet, Replication, Startup};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::time::{Instant, timeout, timeout_at};

/// The first message of a client.
pub enum FirstPacket {
    /// A session.
    Client(Box<IncomingClient>),
    /// A cancel request, with its result.
    Cancel(&'static str),
}

/// The outcome of a handshake.
pub enum Opened {
    /// A session with the server.
    Session(Box<Driver>),
    /// The console. The server has not authenticated the client yet.
    Console(Box<IncomingClient>),
}

/// A client that has sent its startup packet.
pub struct IncomingClient {
    pub client: Peer,
    pub startup: Startup,
    /// Time by which the session must be ready.
    pub deadline: Instant,
}

impl IncomingClient {
    /// The user and database in the startup packet, before authentication.
    pub fn claims(&self) -> (String, String) {
        (self.startup.user().to_owned(), self.startup.database().to_owned())
    }
}

/// Reads the PROXY protocol header of a load balancer. Not cancel-safe: dropping it closes the socket.
///
/// # Errors
/// There is no valid header. The load balancer has been told the reason if possible.
pub async fn read_proxy_header(
    shared: &Shared,
    mut stream: Stream,
    seat: &Seat,
) -> Result<(Stream, Announced), Refused> {
    let Stream::Tcp(socket) = &mut stream else { return Ok((stream, Announced::Balancer)) };
    let read = tokio::select! {
        biased;
        read = timeout(shared.settings().limits.startup, proxy_header::read(socket)) => read,
        () = seat.given_up() => return Err(made_room()),
    };
    let text = match read {
        Ok(Ok(announced)) => return Ok((stream, announced)),
        Ok(Err(HeaderError::Left)) => return Err(Refused::Left),
        Ok(Err(HeaderError::Io(error))) => return Err(error.into()),
        Ok(Err(why @ HeaderError::Missing)) => ErrorText::new("08P01", why.to_string())
            .hint("The proxy's setting proxy_protocol_from names this address. Turn the PROXY protocol on at the load balancer (send-proxy-v2 in HAProxy), or remove the address from the setting."),
        Ok(Err(why @ HeaderError::Invalid(_))) => ErrorText::new("08P01", why.to_string()),
        Err(_) => return Err(Refused::silently("no PROXY protocol header within the time limit")),
    };
    let mut balancer = Peer::new(stream);
    tokio::select! {
        refused = refuse(&mut balancer, text) => refused,
        () = seat.given_up() => Err(made_room()),
    }
}

/// Reads a client's first packet. `announced`: the load balancer's header, if it must send one. Not cancel-safe: dropping
/// it closes the socket.
///
/// # Errors
/// The packet is invalid. The client has been told the reason if possible.
pub async fn read_first_packet(
    shared: &Shared,
    stream: Stream,
    announced: Option<Announced>,
    seat: &Seat,
) -> Result<FirstPacket, Refused> {
    let deadline = Instant::now() + shared.settings().limits.startup;
    let opening = tokio::select! {
        // Checked first, so that a client that has already sent its packet is served.
        biased;
        opening = timeout_at(deadline, read_opening(shared, stream, seat)) => opening,
        () = seat.given_up() => return Err(made_room()),
    };
    let (mut client, packet) = match opening {
        Err(_) => return Err(Refused::silently("no startup packet within the time limit")),
        Ok(Err(OpeningError::Left)) => return Err(Refused::Left),
        Ok(Err(OpeningError::Io(error))) => return Err(error.into()),
        // The server does not answer input that it cannot read as a packet, for example a TLS ClientHello without an
        // SSLRequest.
        Ok(Err(OpeningError::Invalid(why @ InvalidPacket::Length, ..))) => {
            return Err(Refused::silently(why.to_string()));
        }
        Ok(Err(OpeningError::Invalid(why, sent, mut client))) => {
            return tokio::select! {
                refused = refuse_packet(shared, &mut client, why, sent, announced.is_some()) => refused,
                () = seat.given_up() => Err(made_room()),
            };
        }
        Ok(Ok(opened)) => opened,
    };
    match announced {
        Some(Announced::Client(address)) => client.origin = Origin::Announced(address.ip()),
        Some(Announced::Unknown) => client.origin = Origin::Unknown,
        Some(Announced::Balancer) | None => {}
    }
    match packet {
        Packet::CancelRequest(packet) => cancel(shared, packet, Some(seat)).await.map(FirstPacket::Cancel),
        Packet::Startup(startup) => Ok(FirstPacket::Client(Box::new(IncomingClient { client, startup, deadline }))),
        Packet::SslRequest | Packet::GssEncryptionRequest => Err(Refused::silently("no session")),
    }
}

/// Establishes a session. Not cancel-safe: dropping it closes the sockets.
///
/// # Errors
/// No session was established. The client has been told the reason if possible.
pub async fn establish_session(
    shared: Arc<Shared>,
    caller: IncomingClient,
    seat: &mut Seat,
    peer: &str,
) -> Result<Opened, Refused> {
    let IncomingClient { mut client, startup, deadline } = caller;
    if let Some(text) = lacking_encryption(&shared, &client) {
        return refuse(&mut client, text).await;
    }
    let for_console = startup.database() == CONSOLE && startup.replication() == Replication::None;
    if let Err(text) = take_place(&shared, seat, &startup, for_console, deadline).await {
        return refuse(&mut client, text).await;
    }
    // The wait was not the client's fault.
    let deadline = Instant::now() + shared.settings().limits.startup;
    if for_console {
        return Ok(Opened::Console(Box::new(IncomingClient { client, startup, deadline })));
    }
    if timeout_at(deadline, shared.not_paused(startup.database())).await.is_err() {
        return refuse(&mut client, paused(startup.database())).await;
    }
    let LoggedIn { mut server, ends, mut authenticated, address } =
        log_in(&shared, &mut client, seat, Route::Session, &startup.packet, deadline).await?;
    // Only after authentication: before, any client may have claimed this name.
    if let Err(group) = seat.belongs_to(groups(&shared.settings().limits, seat, &startup)) {
        return refuse_logged_in(&mut client, &mut server, too_many_of(&group)).await;
    }
    // Only after authentication: otherwise any name in a startup packet would open control connections.
    let context = match startup.replication() {
        Replication::Physical => Context::without_database(shared, startup.user()),
        Replication::None | Replication::Logical => Context::new(shared, startup.database(), startup.user()),
    };
    context.prepare().await;
    let mut identified = match startup.replication() {
        Replication::Physical => Identified::not(IdentityError::PhysicalReplication),
        Replication::Logical if context.rejects_opaque() == Some(Mode::Enforce) => {
            return refuse(&mut client, logical_replication()).await;
        }
        Replication::None | Replication::Logical => {
            let identified =
                identify(&mut client, &mut server, authenticated.process_id, &mut authenticated.reported).await;
            report_upstream_failure(&mut client, identified).await?
        }
    };
    if let Err(text) = verify_server(context.shared(), &address, &identified.identity, identified.in_recovery).await {
        return refuse_logged_in(&mut client, &mut server, text).await;
    }
    let reported = &mut authenticated.reported;
    let proved = pooler::prove(&mut client, &mut server, ends, &mut identified, reported, &context).await;
    report_upstream_failure(&mut client, proved).await?;
    let Authenticated { ready, process_id, cancel_key, reported } = authenticated;
    pooler::report(&context, &identified.identity, &reported.application_name);
    let Identified { identity, database, value, path, temporary, .. } = identified;
    context.note_database(database);
    if let Err(why) = FenceValue::parse(value.as_deref().unwrap_or_default()) {
        let value = value.unwrap_or_default();
        return refuse(&mut client, Rejection::InvalidSetting { why, value }.text()).await;
    }
    client.writer.output.extend_from_slice(&ready);
    let parameter =
        Parameter::new(if identity.is_ok() { ParameterValue::read(value.as_deref()) } else { ParameterValue::Unknown });
    let fence = SessionFence::new(identity);
    let backend = (address, process_id, cancel_key);
    let (number, name) = (seat.number(), &reported.application_name);
    let record = SessionRecord::new(number, &startup, peer.to_owned(), backend, fence, parameter.current(), name);
    let replicates = startup.replication() != Replication::None;
    let path = Path::new(reported.path.unwrap_or(path).as_deref(), reported.reports_path);
    let started = Settings { replicates, temporary, parameter, path, lexing: reported.lexing, reported: None };
    let host = SessionHost { context, record: Arc::new(record) };
    Ok(Opened::Session(Box::new(Driver::new(host, client, server, started))))
}

fn logical_replication() -> ErrorText {
    ErrorText::new("LF004", "cannot determine what a logical replication session writes")
        .hint("Connect replication clients to the server directly, as a role in exempt_roles, or set `opaque: require_token` or `allow` in the policy.")
}

/// Refuses a client for which the server has already begun a session.
async fn refuse_logged_in<T>(client: &mut Peer, server: &mut Peer, text: ErrorText) -> Result<T, Refused> {
    message::put_terminate(&mut server.writer.output);
    // Ignore errors: closing the socket ends the session in any case.
    server.writer.flush().await.ok();
    refuse(client, text).await
}

/// Waits for a place before the proxy connects to the server.
async fn take_place(
    shared: &Shared,
    seat: &Seat,
    startup: &Startup,
    for_console: bool,
    deadline: Instant,
) -> Result<(), ErrorText> {
    let settings = shared.settings();
    let most = settings.limits.connections.get();
    let is_admin = || settings.admin_roles.iter().any(|role| role == startup.user());
    if shared.orders.borrow().phase != Phase::Running {
        return Err(too_late());
    }
    // Clients cannot claim another address, so this needs no authentication.
    if let (false, Some(address), Some(most)) = (for_console, seat.address(), settings.limits.connections_per_address) {
        let group = SessionGroup::Address(address);
        if seat.is_full(&group, most.get()) {
            return Err(too_many_of(&group));
        }
    }
    let kind = if for_console && is_admin() { LoginKind::Console } else { LoginKind::Session };
    let place = tokio::select! {
        place = timeout_at(deadline, seat.take_place(kind, most)) => place.unwrap_or(Err(NoPlace::Queue)),
        () = shared.stopping() => return Err(too_late()),
    };
    place.map_err(|why| match why {
        // The server's message.
        NoPlace::Sessions => ErrorText::new("53300", "sorry, too many clients already")
            .hint(format!("The proxy's setting max_connections is {most}.")),
        NoPlace::Queue => ErrorText::new(CANNOT_CONNECT_NOW, "too many clients are waiting to log in")
            .hint("Retry, or connect to another host."),
    })
}

/// Checks that the session's server is one that its target allows. The server may have been restarted or promoted since it
/// was last seen, so the check is repeated once after a new look. Cancel-safe.
async fn verify_server(
    shared: &Shared,
    address: &Address,
    identity: &Result<Identity, IdentityError>,
    in_recovery: bool,
) -> Result<(), ErrorText> {
    let servers = &shared.servers;
    let is_admitted = || match identity {
        _ if !servers.is_probed() => true,
        Ok(identity) => servers.admits(identity, in_recovery),
        // Accepts no SQL.
        Err(IdentityError::PhysicalReplication) => servers.keeps(address, None),
        Err(_) => false,
    };
    if !is_admitted() {
        servers.look_again(address).await;
        if !is_admitted() {
            let text = ErrorText::new(CANNOT_CONNECT_NOW, "this session's server is not one that the proxy may use");
            let table = servers.table();
            return Err(text.detail(table.summary(false)).hint(table.hint("Retry.")));
        }
    }
    Ok(())
}

fn made_room() -> Refused {
    Refused::silently("dropped to admit other clients: it had waited longest for its session")
}

/// The groups in which a session counts, with their limits. Like the server, counts no session of physical replication
/// against a database.
fn groups(limits: &Limits, seat: &Seat, startup: &Startup) -> Vec<(SessionGroup, Option<NonZeroUsize>)> {
    let mut groups = vec![(SessionGroup::User(startup.user().to_owned()), limits.connections_per_user)];
    if startup.replication() != Replication::Physical {
        let database = SessionGroup::Database(startup.database().to_owned());
        groups.push((database, limits.connections_per_database));
    }
    groups.extend(seat.address().map(|it| (SessionGroup::Address(it), limits.connections_per_address)));
    groups
}

fn too_many_of(group: &SessionGroup) -> ErrorText {
    let (message, setting) = match group {
        // The server's messages.
        SessionGroup::User(user) => (format!("too many connections for role \"{user}\""), "user"),
        SessionGroup::Database(database) => (format!("too many connections for database \"{database}\""), "database"),
        SessionGroup::Address(address) => (format!("too many connections from address \"{address}\""), "address"),
    };
    ErrorText::new("53300", message).hint(format!("The limit is the proxy's setting max_connections_per_{setting}."))
}

/// The error if the settings require encryption that the client's connection lacks. Unix sockets need none, as in the
/// server.
fn lacking_encryption(shared: &Shared, client: &Peer) -> Option<ErrorText> {
    let encryption = shared.encryption();
    let acceptor = encryption.clients.as_ref()?;
    match &client.secured {
        None if acceptor.is_required() && client.is_tcp() => Some(
            ErrorText::new("28000", "the connection is not encrypted, and the proxy requires TLS")
                .hint("Connect with sslmode=require, or better verify-full."),
        ),
        Some(secured) if acceptor.requires_certificate() && !secured.has_client_certificate => Some(
            ErrorText::new("28000", "connection requires a valid client certificate")
                .hint("Connect with a certificate (sslcert, sslkey) that an authority in the proxy's tls_client_ca has signed."),
        ),
        _ => None,
    }
}

/// Forwards a cancel request, in turn, if its key belongs to a session of this proxy. Otherwise any client could keep
/// the server busy with other keys. Other requests go to the predecessors. Like the server, sends no response and does
/// not require encryption. Serves a client that has already closed its side, because many clients do not wait. `seat`:
/// None if the request comes from a successor.
///
/// # Errors
/// The server could not be reached.
pub async fn cancel(shared: &Shared, packet: Bytes, seat: Option<&Seat>) -> Result<&'static str, Refused> {
    let Some(session) = shared.sessions.with_key(startup::cancel_key(&packet)) else {
        return Ok(if shared.predecessors.forward(&packet) { "passed to the predecessor" } else { "unknown key" });
    };
    // One request is being forwarded, and another one with the same effect is waiting.
    let Ok(_waits) = session.cancels.try_acquire() else { return Ok("another request is waiting") };
    if let Some(seat) = seat {
        seat.leave();
    }
    let passed_on = async {
        let _alone = session.cancel_lock.lock().await;
        let _turn = shared.cancels.acquire().await.map_err(io::Error::other)?;
        upstream::cancel(shared, &session.server, packet).await
    };
    match timeout(SERVER_LIMIT, passed_on).await {
        Ok(Ok(())) => Ok("forwarded"),
        Ok(Err(error)) => Err(Refused::Upstream(error)),
        Err(_) => Err(Refused::Upstream(io::ErrorKind::TimedOut.into())),
    }
}
