//! From an accepted socket to a session that can be relayed: encryption requests, the startup packet, and what `login`
//! does next.
//!
//! Not cancel-safe where nothing else is said: a handshake that is dropped ends its session, and no other.

use super::connections::{RESERVED, Seat};
use super::console::ConsoleSession;
use super::context::Context;
use super::login::{Authenticated, MAX_AUTHENTICATION, authenticate, identify, tell_of_upstream};
use super::parameter::{Parameter, Value};
use super::peer::Peer;
use super::rejection::Rejection;
use super::relay::Started;
use super::session::Session;
use super::shared::Shared;
use super::shutdown::{Stage, shutting_down};
use super::stream::Stream;
use crate::fence::session::SessionFence;
use crate::fence::value::FenceValue;
use crate::wire::error::{ErrorText, Severity};
use crate::wire::frame::Header;
use crate::wire::message;
use crate::wire::startup::{self, InvalidPacket, Packet, Replication, Startup};
use bytes::{Bytes, BytesMut};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

/// The server has this long for what is asked of it beside sessions.
const ASIDE_LIMIT: Duration = Duration::from_secs(60);
/// The name that the proxy keeps for its console.
const CONSOLE: &str = "fencegate";

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The client's doing, or its going away.
    #[error("{0}")]
    Client(String),
    /// The server refused it, in words of its own that the client has got.
    #[error("refused by the server")]
    Server,
    /// The server cannot be reached, or broke off.
    #[error("server: {0}")]
    Upstream(io::Error),
    /// It was a request to cancel, which has been passed on.
    #[error("cancel request")]
    Cancelled,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Refused::Client(error.to_string())
    }
}

/// What a client has come for.
pub enum Opened {
    /// A session with the server.
    Session(Box<(Context, Started)>),
    /// The console.
    Console(ConsoleSession),
}

/// Brings a session up. Not cancel-safe: the sockets are closed when it is dropped.
///
/// # Errors
/// When there is no session; the client has been told why, where it can be told.
pub async fn shake_hands(shared: Arc<Shared>, stream: Stream, seat: &mut Seat, peer: &str) -> Result<Opened, Refused> {
    let deadline = Instant::now() + shared.settings().limits.startup;
    let mut client = Peer::new(stream);
    let opening = tokio::select! {
        opening = timeout_at(deadline, read_startup(&mut client)) => opening,
        () = seat.given_up() => return Err(Refused::Client("others came, and it had said nothing".into())),
    };
    let startup = match opening {
        Err(_) => return Err(Refused::Client("no startup packet in time".into())),
        Ok(Err(StartupError::Io(error))) => return Err(error.into()),
        // The server says nothing to what it cannot read as a packet, as when a client begins with TLS at once.
        Ok(Err(StartupError::Invalid(why @ InvalidPacket::Length, ..))) => {
            return Err(Refused::Client(why.to_string()));
        }
        Ok(Err(StartupError::Invalid(why, sent))) => return refuse_packet(&shared, &mut client, why, sent).await,
        Ok(Ok(Packet::CancelRequest(packet))) => return Err(cancel(&shared, packet).await),
        Ok(Ok(Packet::Startup(startup))) => startup,
        Ok(Ok(Packet::SslRequest | Packet::GssEncryptionRequest)) => return Err(Refused::Client("no session".into())),
    };
    let for_console = startup.database() == CONSOLE && startup.replication() == Replication::None;
    if let Err(text) = take_place(&shared, seat, &startup, for_console) {
        return refuse(&mut client, text).await;
    }
    if for_console {
        return ConsoleSession::open(shared, client, &startup, deadline).await.map(Opened::Console);
    }
    let mut server = connect(&shared, &mut client).await?;
    server.writer.output.extend_from_slice(&startup.packet);
    let authenticated = authenticate(&shared, &mut client, &mut server, deadline).await?;
    // Not before: anybody may say that they are somebody else.
    let per_user = shared.settings().limits.connections_per_user.map(NonZeroUsize::get);
    if !seat.belongs_to(startup.user(), per_user) {
        message::put_terminate(&mut server.writer.output);
        // It ends in any case when the socket is closed.
        server.writer.flush().await.ok();
        return refuse(&mut client, too_many_of(startup.user())).await;
    }
    // Not before the server has let the client in: a database that nobody may name gets no connections.
    let context = match startup.replication() {
        Replication::Physical => Context::without_database(shared),
        Replication::None | Replication::Logical => Context::new(shared, startup.database()),
    };
    context.prepare().await;
    let application_name = startup.parameter("application_name").unwrap_or_default();
    let (user, database, pid) = (startup.user(), startup.database(), authenticated.process_id);
    let session = Session::new(seat.number(), user, database, peer.to_owned(), application_name, pid);
    let (identity, value) = match startup.replication() {
        Replication::Physical => (Err("it is a physical replication session".into()), None),
        Replication::Logical if context.rejects_opaque() && !session.exempt(context.policies()) => {
            let text = ErrorText::new("LF004", "cannot tell what a logical replication session would write")
                .hint("Connect replication clients to the server directly, as a role in exempt_roles, or set `opaque: require_token` or `allow` in the policy.");
            return refuse(&mut client, text).await;
        }
        Replication::None | Replication::Logical => {
            let identified = identify(&mut client, &mut server, authenticated.process_id).await;
            tell_of_upstream(&mut client, identified).await?
        }
    };
    if let Err(why) = FenceValue::parse(value.as_deref().unwrap_or_default()) {
        return refuse(&mut client, Rejection::InvalidSetting { why }.text()).await;
    }
    client.writer.output.extend_from_slice(&authenticated.ready);
    let parameter = Parameter::new(if identity.is_ok() { Value::read(value.as_deref()) } else { Value::Unknown });
    let fence = Arc::new(SessionFence::new(identity));
    let replicates = startup.replication() != Replication::None;
    let session = Arc::new(session);
    let Authenticated { lexing, cancel_key, .. } = authenticated;
    let started = Started { client, server, session, replicates, fence, parameter, lexing, cancel_key };
    Ok(Opened::Session(Box::new((context, started))))
}

/// Whether there is room for one more, before the server is asked anything.
fn take_place(shared: &Shared, seat: &mut Seat, startup: &Startup, for_console: bool) -> Result<(), ErrorText> {
    let settings = shared.settings();
    let most = settings.limits.connections.get();
    let is_admin = || settings.admin_roles.iter().any(|role| role == startup.user());
    let reserved = if for_console && is_admin() { RESERVED } else { 0 };
    if shared.orders.borrow().stage != Stage::Running {
        return Err(shutting_down());
    }
    if !seat.take_place(most + reserved) {
        // As the server says it.
        let text = ErrorText::new("53300", "sorry, too many clients already");
        return Err(text.hint(format!("The proxy's setting max_connections is {most}.")));
    }
    Ok(())
}

fn too_many_of(user: &str) -> ErrorText {
    // As the server says it.
    ErrorText::new("53300", format!("too many connections for role \"{user}\""))
        .hint("The proxy's setting max_connections_per_user limits them.")
}

/// Connects to the server, or tells the client why not.
pub(super) async fn connect(shared: &Shared, client: &mut Peer) -> Result<Peer, Refused> {
    match Stream::connect(&shared.settings().upstream).await {
        Ok(stream) => Ok(Peer::new(stream)),
        Err(error) => {
            tracing::error!(upstream = %shared.settings().upstream, %error, "upstream_unreachable");
            let text = ErrorText::new("08006", format!("could not connect to the server behind the proxy: {error}"))
                .hint("Is PostgreSQL running where the proxy's --upstream says?");
            refuse::<()>(client, text).await.ok();
            Err(Refused::Upstream(error))
        }
    }
}

enum StartupError {
    /// With what the server has to be sent to say so, each but the last answered by a refusal.
    Invalid(InvalidPacket, Vec<Bytes>),
    Io(io::Error),
}

/// Refuses encryption as often as it is asked for, up to the packet that matters. Cancel-safe only
/// in that nothing but this session is lost.
async fn read_startup(client: &mut Peer) -> Result<Packet, StartupError> {
    let mut refused = Vec::new();
    loop {
        let packet = read_packet(client).await?;
        match startup::read(packet.clone()) {
            // Each kind may be asked for once.
            Ok(Packet::SslRequest | Packet::GssEncryptionRequest) if refused.contains(&packet) => {
                let why = startup::repeated(&packet);
                refused.push(packet);
                return Err(StartupError::Invalid(why, refused));
            }
            Ok(Packet::SslRequest | Packet::GssEncryptionRequest) if !client.reader.input.is_empty() => {
                // Nothing of what the client has sent behind it: a server that missed the fault would run that.
                let sent = [&packet[..], b"\0"].concat();
                return Err(StartupError::Invalid(InvalidPacket::Unencrypted, vec![sent.into()]));
            }
            Ok(Packet::SslRequest | Packet::GssEncryptionRequest) => {
                client.writer.output.extend_from_slice(b"N");
                client.writer.flush().await.map_err(StartupError::Io)?;
                refused.push(packet);
            }
            Ok(packet) => return Ok(packet),
            Err(why) => return Err(StartupError::Invalid(why, vec![packet])),
        }
    }
}

async fn read_packet(client: &mut Peer) -> Result<Bytes, StartupError> {
    loop {
        let length = startup::packet_length(&client.reader.input);
        if let Some(length) = length.map_err(|why| StartupError::Invalid(why, Vec::new()))?
            && client.reader.input.len() >= length
        {
            return Ok(client.reader.input.split_to(length).freeze());
        }
        if client.reader.ended {
            return Err(StartupError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        client.reader.fill().await.map_err(StartupError::Io)?;
    }
}

/// Tells the client why there will be no session.
pub(super) async fn refuse<T>(client: &mut Peer, text: ErrorText) -> Result<T, Refused> {
    text.put(&mut client.writer.output, Severity::Fatal);
    client.writer.flush().await?;
    client.writer.close().await?;
    Err(Refused::Client(text.message))
}

/// Lets the server say what is wrong with a packet, in its own words. Nothing else that the client
/// sends reaches it.
async fn refuse_packet<T>(
    shared: &Shared,
    client: &mut Peer,
    why: InvalidPacket,
    sent: Vec<Bytes>,
) -> Result<T, Refused> {
    match tokio::time::timeout(ASIDE_LIMIT, ask_what_is_wrong(shared, sent)).await {
        Ok(Ok(Some(error))) => {
            client.writer.output.extend_from_slice(&error);
            client.writer.flush().await?;
            client.writer.close().await?;
            Err(Refused::Client(why.to_string()))
        }
        _ => refuse(client, ErrorText::new("08P01", why.to_string())).await,
    }
}

/// All that the server says; None where it takes the packet for a good one, or offers encryption.
async fn ask_what_is_wrong(shared: &Shared, sent: Vec<Bytes>) -> io::Result<Option<BytesMut>> {
    let mut server = Peer::new(Stream::connect(&shared.settings().upstream).await?);
    let last = sent.len().saturating_sub(1);
    for (number, packet) in sent.into_iter().enumerate() {
        server.writer.output.extend_from_slice(&packet);
        server.writer.flush().await?;
        if number < last {
            server.reader.fill().await?;
            if server.reader.input.split().as_ref() != b"N" {
                return Ok(None);
            }
        }
    }
    // To a client of protocol 2 it speaks that: so its words are passed on, not its frames.
    while !server.reader.ended && server.reader.input.len() < MAX_AUTHENTICATION {
        server.reader.fill().await?;
        if !is_refusal(&server.reader.input) {
            return Ok(None);
        }
    }
    Ok(Some(server.reader.input))
}

/// As far as it goes: an error, behind the answer to a request for encryption or another version of the protocol.
fn is_refusal(answer: &[u8]) -> bool {
    let answer = answer.strip_prefix(b"N").unwrap_or(answer);
    let error = match Header::from_server(answer) {
        Ok(Some(header)) if header.tag == b'v' => answer.get(header.frame()..).unwrap_or_default(),
        _ => answer,
    };
    error.is_empty() || error.starts_with(b"E") || error.starts_with(b"v")
}

/// Passes a request to cancel on as it is. Like the server, says nothing to the client.
async fn cancel(shared: &Shared, packet: Bytes) -> Refused {
    match tokio::time::timeout(ASIDE_LIMIT, send_cancel(shared, &packet)).await {
        Ok(Err(error)) => Refused::Upstream(error),
        Ok(Ok(())) | Err(_) => Refused::Cancelled,
    }
}

/// Sends a request to cancel, and returns when the server has sent the signal. Cancel-safe: it may have gone or not.
pub(super) async fn send_cancel(shared: &Shared, packet: &[u8]) -> io::Result<()> {
    let mut server = Stream::connect(&shared.settings().upstream).await?;
    server.write_all(packet).await?;
    // The server closes then.
    server.read(&mut [0]).await.map(drop)
}
