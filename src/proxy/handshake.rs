//! From an accepted socket to a session that can be relayed: encryption requests, the startup
//! packet, authentication passed through untouched, and the question whose process it is.
//!
//! Not cancel-safe where nothing else is said: a handshake that is dropped ends its session, and no other.

use super::console::ConsoleSession;
use super::context::{Context, LoginRole};
use super::parameter::{Parameter, Value};
use super::peer::{HIGH_WATER, Peer, body};
use super::rejection::Rejection;
use super::relay::Started;
use super::shared::Shared;
use super::stream::Stream;
use crate::fence::session::{Identity, SessionFence};
use crate::fence::value::FenceValue;
use crate::statement::{Encoding, Lexing};
use crate::wire::error::{ErrorText, Severity, field};
use crate::wire::frame::InvalidLength;
use crate::wire::message;
use crate::wire::startup::{self, InvalidPacket, Packet, Replication};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A client has this long to send its startup packet, as `authentication_timeout` is by default.
const STARTUP_LIMIT: Duration = Duration::from_secs(60);
/// Messages during authentication are at most this long, in bytes (`PG_MAX_AUTH_TOKEN_LENGTH`).
const MAX_AUTHENTICATION: usize = 65_535;
/// The name that the proxy keeps for its console.
const CONSOLE: &str = "fencegate";

/// Whose process a session has, asked in the session itself. Qualified, and without operators: the
/// search path is the client's. The numbers are exact, whatever the client's formats.
const IDENTITY_QUESTION: &str = "SELECT pg_catalog.pg_backend_pid(), \
    (SELECT extract(epoch FROM backend_start) FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())), \
    (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
    extract(epoch FROM pg_catalog.pg_postmaster_start_time()), \
    pg_catalog.pg_is_in_recovery(), \
    pg_catalog.current_setting('lease.fence', true)";

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
pub async fn shake_hands(shared: Arc<Shared>, stream: Stream, session: u64) -> Result<Opened, Refused> {
    let mut client = Peer::new(stream);
    let startup = match tokio::time::timeout(STARTUP_LIMIT, read_startup(&mut client)).await {
        Err(_) => return Err(Refused::Client("no startup packet in time".into())),
        Ok(Err(StartupError::Io(error))) => return Err(error.into()),
        Ok(Err(StartupError::Invalid(why, packet))) => return refuse_packet(&shared, &mut client, why, &packet).await,
        Ok(Ok(Packet::CancelRequest(packet))) => return Err(cancel(&shared, packet).await),
        Ok(Ok(Packet::Startup(startup))) => startup,
        Ok(Ok(Packet::SslRequest | Packet::GssEncryptionRequest)) => return Err(Refused::Client("no session".into())),
    };
    if startup.database() == CONSOLE && startup.replication() == Replication::None {
        return ConsoleSession::open(shared, client, &startup).await.map(Opened::Console);
    }
    let mut server = connect(&shared, &mut client).await?;
    server.writer.output.extend_from_slice(&startup.packet);
    let authenticated = authenticate(&mut client, &mut server).await?;
    // Not before the server has let the client in: a database that nobody may name gets no connections.
    let context = match startup.replication() {
        Replication::Physical => Context::without_database(shared),
        Replication::None | Replication::Logical => Context::new(shared, startup.database()),
    };
    context.prepare().await;
    let role = LoginRole { name: startup.user().to_owned(), session };
    let (identity, value) = match startup.replication() {
        Replication::Physical => (Err("it is a physical replication session".into()), None),
        Replication::Logical if context.rejects_opaque() && !role.exempt(context.policies()) => {
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
    let started = Started { client, server, role, replicates, fence, parameter, lexing: authenticated.lexing };
    Ok(Opened::Session(Box::new((context, started))))
}

/// Connects to the server, or tells the client why not.
pub(super) async fn connect(shared: &Shared, client: &mut Peer) -> Result<Peer, Refused> {
    match Stream::connect(&shared.settings.upstream).await {
        Ok(stream) => Ok(Peer::new(stream)),
        Err(error) => {
            tracing::error!(upstream = %shared.settings.upstream, %error, "upstream_unreachable");
            let text = ErrorText::new("08006", format!("could not connect to the server behind the proxy: {error}"))
                .hint("Is PostgreSQL running where the proxy's --upstream says?");
            refuse::<()>(client, text).await.ok();
            Err(Refused::Upstream(error))
        }
    }
}

enum StartupError {
    /// With the packet, as far as its length could be believed.
    Invalid(InvalidPacket, Bytes),
    Io(io::Error),
}

/// Refuses encryption as often as it is asked for, up to the packet that matters. Cancel-safe only
/// in that nothing but this session is lost.
async fn read_startup(client: &mut Peer) -> Result<Packet, StartupError> {
    // Each kind may be asked for once: a client that goes on asking is none.
    for _ in 0..3 {
        match read_packet(client).await? {
            Packet::SslRequest | Packet::GssEncryptionRequest => {
                if !client.reader.input.is_empty() {
                    // Bytes sent ahead would be taken for encrypted ones (CVE-2021-23214).
                    return Err(StartupError::Invalid(InvalidPacket::Layout, Bytes::new()));
                }
                client.writer.output.extend_from_slice(b"N");
                client.writer.flush().await.map_err(StartupError::Io)?;
            }
            packet => return Ok(packet),
        }
    }
    Err(StartupError::Invalid(InvalidPacket::Layout, Bytes::new()))
}

async fn read_packet(client: &mut Peer) -> Result<Packet, StartupError> {
    let invalid = |why| StartupError::Invalid(why, Bytes::new());
    loop {
        if let Some(length) = startup::packet_length(&client.reader.input).map_err(invalid)?
            && client.reader.input.len() >= length
        {
            let packet = client.reader.input.split_to(length).freeze();
            return startup::read(packet.clone()).map_err(|why| StartupError::Invalid(why, packet));
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
async fn refuse_packet<T>(shared: &Shared, client: &mut Peer, why: InvalidPacket, packet: &[u8]) -> Result<T, Refused> {
    if packet.is_empty() {
        return refuse(client, ErrorText::new("08P01", why.to_string())).await;
    }
    let asked = async {
        let mut server = Peer::new(Stream::connect(&shared.settings.upstream).await?);
        server.writer.output.extend_from_slice(packet);
        server.writer.flush().await?;
        // To a client of protocol 2 it speaks that: so its words are passed on, not its frames.
        while !server.reader.ended && server.reader.input.len() < MAX_AUTHENTICATION {
            server.reader.fill().await?;
            if server.reader.input.first().is_some_and(|tag| *tag != b'E') {
                // It takes the packet for a good one.
                server.reader.input.clear();
                break;
            }
        }
        Ok::<_, io::Error>(server.reader.input)
    };
    match tokio::time::timeout(STARTUP_LIMIT, asked).await {
        Ok(Ok(error)) if !error.is_empty() => {
            client.writer.output.extend_from_slice(&error);
            client.writer.flush().await?;
            client.writer.close().await?;
            Err(Refused::Client(why.to_string()))
        }
        _ => refuse(client, ErrorText::new("08P01", why.to_string())).await,
    }
}

/// Passes a request to cancel on as it is. Like the server, says nothing to the client.
async fn cancel(shared: &Shared, packet: Bytes) -> Refused {
    let passed_on = async {
        let mut server = Stream::connect(&shared.settings.upstream).await?;
        server.write_all(&packet).await?;
        // The server closes once it has sent the signal: then the client may go on.
        server.read(&mut [0]).await
    };
    match tokio::time::timeout(STARTUP_LIMIT, passed_on).await {
        Ok(Err(error)) => Refused::Upstream(error),
        Ok(Ok(_)) | Err(_) => Refused::Cancelled,
    }
}

/// What the server said while it let the session in.
pub(super) struct Authenticated {
    /// Its first ReadyForQuery, which the client does not have yet.
    pub(super) ready: Bytes,
    /// As in BackendKeyData.
    process_id: Option<i32>,
    lexing: Lexing,
}

/// Where the server broke off or broke the protocol, the client is told.
async fn tell_of_upstream<T>(client: &mut Peer, result: Result<T, Refused>) -> Result<T, Refused> {
    if let Err(Refused::Upstream(error)) = &result {
        let text = match error.kind() {
            io::ErrorKind::InvalidData => ErrorText::new("08P01", format!("the server broke the protocol: {error}")),
            _ => ErrorText::new("08006", "server closed the connection unexpectedly"),
        };
        refuse::<()>(client, text).await.ok();
    }
    result
}

/// Relays authentication, whatever its method, up to the first ReadyForQuery.
pub(super) async fn authenticate(client: &mut Peer, server: &mut Peer) -> Result<Authenticated, Refused> {
    let authenticated = relay_authentication(client, server).await;
    tell_of_upstream(client, authenticated).await
}

async fn relay_authentication(client: &mut Peer, server: &mut Peer) -> Result<Authenticated, Refused> {
    let mut process_id = None;
    let mut lexing = Lexing { standard_conforming_strings: true, encoding: Encoding::AsciiUnsafe };
    loop {
        // Anything else that a client sends ahead waits in its buffer: it has to be judged.
        while client.reader.input.first() == Some(&b'p') {
            match client.reader.client_frame(MAX_AUTHENTICATION) {
                Ok(Some((_, frame))) => server.writer.output.extend_from_slice(&frame),
                Ok(None) => break,
                Err(error) => return refuse(client, ErrorText::new("08P01", error.to_string())).await,
            }
        }
        while let Some((tag, frame)) = server.reader.server_frame(MAX_AUTHENTICATION).map_err(broken)? {
            let content = body(&frame);
            match tag {
                b'Z' => return Ok(Authenticated { ready: frame, process_id, lexing }),
                b'K' => process_id = content.first_chunk().map(|bytes| i32::from_be_bytes(*bytes)),
                b'S' => note_lexing(content, &mut lexing),
                b'E' => {
                    client.writer.output.extend_from_slice(&frame);
                    client.writer.flush().await?;
                    client.writer.close().await?;
                    return Err(Refused::Server);
                }
                _ => (),
            }
            client.writer.output.extend_from_slice(&frame);
        }
        if server.reader.ended {
            return Err(Refused::Upstream(io::ErrorKind::UnexpectedEof.into()));
        }
        if client.reader.ended {
            return Err(Refused::Client("client closed the connection during authentication".into()));
        }
        client.writer.flush().await?;
        server.writer.flush().await.map_err(Refused::Upstream)?;
        let listen = client.reader.input.len() <= MAX_AUTHENTICATION;
        tokio::select! {
            result = client.reader.fill(), if listen => result?,
            result = server.reader.fill() => result.map_err(Refused::Upstream)?,
        }
    }
}

/// Asks the session whose process it is, and what its token is. Without an answer the session goes
/// on, but is admitted to nothing.
///
/// # Errors
/// When the connection to the server breaks, or the client goes away.
async fn identify(
    client: &mut Peer,
    server: &mut Peer,
    process_id: Option<i32>,
) -> Result<(Result<Identity, String>, Option<String>), Refused> {
    message::put_query(&mut server.writer.output, &[IDENTITY_QUESTION.as_bytes()]);
    server.writer.flush().await.map_err(Refused::Upstream)?;
    let mut answer: Option<Vec<Option<String>>> = None;
    let mut failure = "the server did not say whose process this is".to_owned();
    loop {
        while let Some((tag, frame)) = server.reader.server_frame(MAX_AUTHENTICATION).map_err(broken)? {
            match tag {
                b'Z' => {
                    let Some(mut columns) = answer else { return Ok((Err(failure), None)) };
                    let value = columns.pop().flatten();
                    return Ok((identity(columns, process_id), value));
                }
                b'D' => answer = message::columns(body(&frame)),
                b'E' => {
                    let reason = field(body(&frame), b'M').unwrap_or_default();
                    failure = String::from_utf8_lossy(reason).into_owned();
                }
                b'N' | b'A' | b'S' => client.writer.output.extend_from_slice(&frame),
                _ => (),
            }
        }
        if server.reader.ended {
            return Err(Refused::Upstream(io::ErrorKind::UnexpectedEof.into()));
        }
        if client.writer.output.len() >= HIGH_WATER {
            client.writer.flush().await?;
        }
        if client.reader.ended {
            return Err(Refused::Client("client closed the connection before it was ready".into()));
        }
        let listen = client.reader.input.len() <= MAX_AUTHENTICATION;
        tokio::select! {
            result = client.reader.fill(), if listen => result?,
            result = server.reader.fill() => result.map_err(Refused::Upstream)?,
        }
    }
}

fn identity(columns: Vec<Option<String>>, process_id: Option<i32>) -> Result<Identity, String> {
    let missing = || "the server did not say all of whose process this is".to_owned();
    let columns: Vec<String> = columns.into_iter().collect::<Option<_>>().ok_or_else(missing)?;
    let [pid, backend_start, system_identifier, postmaster_start, in_recovery] =
        <[String; 5]>::try_from(columns).map_err(|_| missing())?;
    let pid = pid.parse().map_err(|_| missing())?;
    if process_id != Some(pid) {
        return Err(
            "the session does not keep its server process: is there a pooler between the proxy and the server?".into(),
        );
    }
    Ok(Identity { pid, backend_start, system_identifier, postmaster_start, in_recovery: in_recovery != "f" })
}

/// Takes note of what changes the meaning of text.
pub(super) fn note_lexing(parameter: &[u8], lexing: &mut Lexing) {
    if let Some((name, value)) = message::parameter_status(parameter) {
        note_setting(name, value, lexing);
    }
}

/// As [`note_lexing`].
pub(super) fn note_setting(name: &str, value: &str, lexing: &mut Lexing) {
    match name {
        "standard_conforming_strings" => lexing.standard_conforming_strings = value != "off",
        "client_encoding" => lexing.encoding = Encoding::from_name(value),
        _ => (),
    }
}

fn broken(error: InvalidLength) -> Refused {
    Refused::Upstream(io::Error::new(io::ErrorKind::InvalidData, error))
}
