//! From an accepted socket to a session that can be relayed: encryption requests, the startup
//! packet, authentication passed through untouched, and the question whose process it is.
//!
//! Not cancel-safe where nothing else is said: a handshake that is dropped ends its session, and no other.

use super::console::ConsoleSession;
use super::context::{Context, LoginRole};
use super::parameter::{Parameter, Value};
use super::peer::{Peer, body};
use super::rejection::Rejection;
use super::relay::Started;
use super::shared::Shared;
use super::stream::Stream;
use crate::fence::session::{Identity, SessionFence};
use crate::fence::value::FenceValue;
use crate::statement::{Encoding, Lexing};
use crate::wire::error::{ErrorText, Severity, field};
use crate::wire::frame::{HEADER, Header, InvalidLength};
use crate::wire::message;
use crate::wire::startup::{self, InvalidPacket, Packet, Replication};
use bytes::{Bytes, BytesMut};
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
        // The server says nothing to what it cannot read as a packet, as when a client begins with TLS at once.
        Ok(Err(StartupError::Invalid(why @ InvalidPacket::Length, ..))) => {
            return Err(Refused::Client(why.to_string()));
        }
        Ok(Err(StartupError::Invalid(why, sent))) => return refuse_packet(&shared, &mut client, why, sent).await,
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
    let context = Context::new(shared, startup.database());
    let role = LoginRole { name: startup.user().to_owned(), session };
    let (identity, value) = match startup.replication() {
        // It has no database and cannot run SQL, so that there is nothing to fence or to ask.
        Replication::Physical => (Err("it is a physical replication session".into()), None),
        Replication::Logical if context.is_fenced() && !role.exempt(context.policies()) => {
            let text = ErrorText::new("LF004", "cannot tell what a logical replication session would write")
                .hint("Connect replication clients to the server directly, or as a role in exempt_roles.");
            return refuse(&mut client, text).await;
        }
        Replication::None | Replication::Logical => {
            identify(&mut client, &mut server, authenticated.process_id).await.map_err(Refused::Upstream)?
        }
    };
    if let Err(why) = FenceValue::parse(value.as_deref().unwrap_or_default()) {
        return refuse(&mut client, Rejection::InvalidSetting { why }.text()).await;
    }
    context.prepare().await;
    client.writer.output.extend_from_slice(&authenticated.ready);
    let parameter = Parameter::new(if identity.is_ok() { Value::read(value.as_deref()) } else { Value::Unknown });
    let fence = Arc::new(SessionFence::new(identity));
    let started = Started { client, server, role, fence, parameter, lexing: authenticated.lexing };
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
                let sent = [&packet, &client.reader.input[..]].concat();
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
    match tokio::time::timeout(STARTUP_LIMIT, ask_what_is_wrong(shared, sent)).await {
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
    let mut server = Peer::new(Stream::connect(&shared.settings.upstream).await?);
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

/// Relays authentication, whatever its method, up to the first ReadyForQuery.
pub(super) async fn authenticate(client: &mut Peer, server: &mut Peer) -> Result<Authenticated, Refused> {
    let mut process_id = None;
    let mut lexing = Lexing { standard_conforming_strings: true, encoding: Encoding::AsciiUnsafe };
    let mut asked = false;
    loop {
        while let Some((tag, frame)) = server.reader.server_frame(MAX_AUTHENTICATION).map_err(broken)? {
            let content = body(&frame);
            match tag {
                b'Z' => return Ok(Authenticated { ready: frame, process_id, lexing }),
                b'K' => process_id = content.first_chunk().map(|bytes| i32::from_be_bytes(*bytes)),
                b'S' => note_lexing(content, &mut lexing),
                b'R' => asked = content.first_chunk().is_some_and(asks),
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
        // Anything else that a client sends ahead waits in its buffer: it has to be judged.
        while let Some(tag) = client.reader.input.first().copied().filter(|tag| asked || *tag == b'p') {
            match client.reader.client_frame(MAX_AUTHENTICATION) {
                Ok(Some((_, frame))) => server.writer.output.extend_from_slice(&frame),
                Ok(None) if tag == b'p' => break,
                // No answer to what the server asked: it refuses it once it has seen how it begins.
                _ => {
                    let start = client.reader.input.split_to(HEADER.min(client.reader.input.len()));
                    server.writer.output.extend_from_slice(&start);
                    client.reader.input.clear();
                    client.reader.ended = true;
                }
            }
            asked = false;
        }
        client.writer.flush().await?;
        if client.reader.ended && asked {
            return Err(Refused::Client("client closed the connection during authentication".into()));
        }
        server.writer.flush().await.map_err(Refused::Upstream)?;
        let listen = !client.reader.ended && client.reader.input.len() <= MAX_AUTHENTICATION;
        tokio::select! {
            result = client.reader.fill(), if listen => result?,
            result = server.reader.fill() => result.map_err(Refused::Upstream)?,
        }
    }
}

/// Whether the server waits for an answer to this kind of request.
fn asks(kind: &[u8; 4]) -> bool {
    const OK: u32 = 0;
    const SASL_FINAL: u32 = 12;
    ![OK, SASL_FINAL].contains(&u32::from_be_bytes(*kind))
}

/// Asks the session whose process it is, and what its token is. Without an answer the session goes
/// on, but is admitted to nothing.
///
/// # Errors
/// When the connection to the server breaks.
async fn identify(
    client: &mut Peer,
    server: &mut Peer,
    process_id: Option<i32>,
) -> io::Result<(Result<Identity, String>, Option<String>)> {
    message::put_query(&mut server.writer.output, &[IDENTITY_QUESTION.as_bytes()]);
    server.writer.flush().await?;
    let mut answer: Option<Vec<Option<String>>> = None;
    let mut failure = "the server did not say whose process this is".to_owned();
    loop {
        while let Some((tag, frame)) = server.reader.server_frame(MAX_AUTHENTICATION).map_err(invalid_data)? {
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
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        server.reader.fill().await?;
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
    Refused::Upstream(invalid_data(error))
}

fn invalid_data(error: InvalidLength) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
