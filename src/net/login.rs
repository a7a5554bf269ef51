//! From the startup packet to the first ReadyForQuery: relays authentication.
//!
//! Must never read a secret, nor forward a message that needs a verdict: early client messages wait.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a login ends only its own session.

use super::binding::Binding;
use super::peer::Peer;
use super::refused::{Refused, pass_refusal, refuse, report_upstream_failure};
use crate::config::AllowedOrigin;
use crate::state::connections::Seat;
use bytes::Bytes;
use fencegate_session::HIGH_WATER;
use fencegate_statement::{Encoding, Lexing, ServerEncoding};
use fencegate_wire::error::{ErrorText, field};
use fencegate_wire::frame::body;
use fencegate_wire::frame::{HEADER, Header, InvalidLength};
use fencegate_wire::message;
use fencegate_wire::tag::{backend, frontend};
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Messages during authentication are at most this long, in bytes (`PG_MAX_AUTH_TOKEN_LENGTH`).
pub const MAX_AUTHENTICATION: usize = 65_535;
/// Maximum length of the server's messages until the session is ready, in bytes. The server may send long notices.
const MAX_GREETING: usize = 4 * 1024 * 1024;
/// The channel on which proxies notify.
pub(super) const CHANNEL: &[u8] = b"fencegate";
/// Time limit for the login of a client that has closed its sending half and may be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Facts that the server reported during the login.
pub struct Authenticated {
    /// The first ReadyForQuery, which the client has not received yet.
    pub ready: Bytes,
    /// The process number in BackendKeyData.
    pub process_id: Option<i32>,
    /// Complete content of the BackendKeyData message, which can cancel the session's statements.
    pub cancel_key: Bytes,
    pub reported: Reported,
}

/// The parameters that the server has reported so far. They may change before the session starts, when the server's
/// configuration is reloaded.
pub struct Reported {
    pub lexing: Lexing,
    /// True if the server reports each change of the search path.
    pub reports_path: bool,
    /// The search path, if it was reported after [`super::identify::Identified::path`] was read; the inner None: it is not UTF-8.
    pub path: Option<Option<String>>,
    /// The server's version.
    pub server_version: String,
    /// The session's `application_name`: the client's, or a default of the role or database.
    pub application_name: String,
}

impl Reported {
    fn none() -> Self {
        let lexing = Lexing {
            standard_conforming_strings: true,
            encoding: Encoding::AsciiUnsafe,
            server: ServerEncoding::Other,
            release: Lexing::NEWEST,
        };
        let (server_version, application_name) = (String::new(), String::new());
        Reported { lexing, reports_path: false, path: None, server_version, application_name }
    }

    /// Records a ParameterStatus.
    fn note(&mut self, content: &[u8]) {
        match message::parameter_status(content) {
            Some((name, value)) => {
                self.lexing.note(name, value);
                match name {
                    "search_path" => (self.reports_path, self.path) = (true, Some(Some(value.to_owned()))),
                    "server_version" => value.clone_into(&mut self.server_version),
                    "application_name" => value.clone_into(&mut self.application_name),
                    _ => {}
                }
            }
            None if content.starts_with(b"search_path\0") => (self.reports_path, self.path) = (true, Some(None)),
            None => {}
        }
    }
}

/// The server's first answer, except for the protocol version, which stays unread; `None` without an answer.
pub async fn first_answer(client: &mut Peer, server: &mut Peer) -> Result<Option<(u8, Bytes)>, Refused> {
    server.writer.flush().await.map_err(Refused::Upstream)?;
    let mut deadline = None;
    loop {
        let mut input = &server.reader.input[..];
        while let Some(header) = Header::from_server(input).map_err(broken)? {
            match input.get(..header.frame()) {
                Some(frame) if header.tag != backend::NEGOTIATE_VERSION => {
                    return Ok(Some((header.tag, Bytes::copy_from_slice(frame))));
                }
                Some(_) => input = &input[header.frame()..],
                // A message this long is not a refusal.
                None if header.body > MAX_AUTHENTICATION => return Ok(None),
                None => break,
            }
        }
        if server.reader.ended {
            return Ok(None);
        }
        read_either(client, server, &mut deadline).await?;
    }
}

/// Relays authentication, whatever its method, up to the first ReadyForQuery.
pub async fn authenticate(
    client: &mut Peer,
    server: &mut Peer,
    binding: Binding,
    seat: &Seat,
    allowed: &[AllowedOrigin],
) -> Result<Authenticated, Refused> {
    let may_skip_authentication = may_skip_authentication(client, server, allowed);
    let authenticated = relay_authentication(client, server, binding, seat, may_skip_authentication).await;
    report_upstream_failure(client, authenticated).await
}

/// A server that accepts a client without authentication trusts the address, system user or certificate of the proxy,
/// not of the client. Acceptable only if the client could have connected directly: both connections are TCP on the
/// proxy's machine.
fn may_skip_authentication(client: &Peer, server: &Peer, allowed: &[AllowedOrigin]) -> bool {
    client.origin.is_loopback()
        && server.origin.is_loopback()
        && server.secured.as_ref().is_none_or(|it| !it.has_client_certificate)
        || allowed.iter().any(|allowed| allowed.covers(client.origin))
}

fn unauthenticated() -> ErrorText {
    ErrorText::new("28000", "the server behind the proxy admitted this session without authentication, and the proxy does not allow that")
        .detail("The methods `trust`, `peer`, `ident` and `cert` in pg_hba.conf identify the proxy, not the client.")
        .hint("Require a password in pg_hba.conf (scram-sha-256). Or add the client's address to the proxy's setting allow_unauthenticated: then clients from there may connect as any role.")
}

async fn relay_authentication(
    client: &mut Peer,
    server: &mut Peer,
    mut binding: Binding,
    seat: &Seat,
    may_skip_authentication: bool,
) -> Result<Authenticated, Refused> {
    let (mut process_id, mut cancel_key) = (None, Bytes::new());
    let mut reported = Reported::none();
    let (mut requested, mut no_answer) = (false, false);
    // The server has requested authentication; the client has responded.
    let (mut ever_requested, mut ever_answered) = (false, false);
    let mut deadline = None;
    loop {
        while let Some((tag, mut frame)) = server.reader.server_frame(MAX_GREETING).map_err(broken)? {
            let content = body(&frame);
            match tag {
                backend::READY => {
                    return Ok(Authenticated { ready: frame, process_id, cancel_key, reported });
                }
                backend::KEY_DATA => {
                    process_id = content.first_chunk().map(|bytes| i32::from_be_bytes(*bytes));
                    cancel_key = Bytes::copy_from_slice(content);
                }
                backend::PARAMETER_STATUS => reported.note(content),
                backend::AUTHENTICATION => {
                    requested = content.first_chunk().is_some_and(requests_answer);
                    seat.set_awaiting_answer(requested);
                    ever_requested |= requested;
                    if !requested && !ever_requested && !may_skip_authentication {
                        return refuse(client, unauthenticated()).await;
                    }
                    frame = binding.request(frame);
                }
                backend::ERROR => return pass_refusal(client, &frame).await,
                _ => (),
            }
            client.writer.output.extend_from_slice(&frame);
        }
        if server.reader.ended && no_answer {
            // The client may not answer this request.
            return Err(Refused::silently("client broke the protocol during authentication"));
        }
        if server.reader.ended {
            return Err(Refused::Upstream(io::ErrorKind::UnexpectedEof.into()));
        }
        if requested {
            match pass_answer(client, server, &mut binding).await? {
                AuthenticationResponse::Awaited => (),
                AuthenticationResponse::Passed => {
                    (requested, ever_answered) = (false, true);
                    seat.set_awaiting_answer(false);
                }
                AuthenticationResponse::Other => (requested, no_answer) = (false, true),
            }
        }
        // Health checks also abort the connection.
        let left = |why: Refused| match why {
            Refused::Client(_, None) if requested && !ever_answered => Refused::Unauthenticated,
            why => why,
        };
        client.writer.flush().await.map_err(|error| left(error.into()))?;
        if client.reader.ended && requested {
            return Err(left(Refused::silently("client closed the connection during authentication")));
        }
        server.writer.flush().await.map_err(Refused::Upstream)?;
        read_either(client, server, &mut deadline).await.map_err(left)?;
    }
}

/// The client's answer to an authentication request of the server.
enum AuthenticationResponse {
    Awaited,
    Passed,
    /// Not a valid response: the server will refuse it.
    Other,
}

/// Forwards one response to each request. Further messages of the client wait in its buffer for their verdict.
async fn pass_answer(
    client: &mut Peer,
    server: &mut Peer,
    binding: &mut Binding,
) -> Result<AuthenticationResponse, Refused> {
    let Some(tag) = client.reader.input.first() else { return Ok(AuthenticationResponse::Awaited) };
    match (*tag == frontend::PASSWORD).then(|| client.reader.client_frame(MAX_AUTHENTICATION)) {
        Some(Ok(Some((_, frame)))) => {
            if let Err(text) = binding.answer(&frame) {
                return refuse(client, text).await;
            }
            server.writer.output.extend_from_slice(&frame);
            Ok(AuthenticationResponse::Passed)
        }
        Some(Ok(None)) => Ok(AuthenticationResponse::Awaited),
        // Not a valid response to the server's request. The server refuses it after its first bytes.
        None | Some(Err(_)) => {
            let start = client.reader.input.split_to(HEADER.min(client.reader.input.len()));
            server.writer.output.extend_from_slice(&start);
            client.reader.input.clear();
            client.reader.ended = true;
            Ok(AuthenticationResponse::Other)
        }
    }
}

/// Reads the first input of either side. Sets the deadline when the client has sent everything: it may still wait for
/// the rest.
async fn read_either(client: &mut Peer, server: &mut Peer, deadline: &mut Option<Instant>) -> Result<(), Refused> {
    if client.reader.ended {
        deadline.get_or_insert(Instant::now() + PATIENCE);
    }
    let over = async {
        match *deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let listen = !client.reader.ended && client.reader.input.len() <= MAX_AUTHENTICATION;
    tokio::select! {
        result = client.reader.fill(), if listen => Ok(result?),
        result = server.reader.fill() => result.map_err(Refused::Upstream),
        () = over => Err(Refused::silently("client closed the connection before it was ready")),
    }
}

/// True if the server waits for a response to this kind of request.
fn requests_answer(kind: &[u8; 4]) -> bool {
    const OK: u32 = 0;
    const SASL_FINAL: u32 = 12;
    ![OK, SASL_FINAL].contains(&u32::from_be_bytes(*kind))
}

/// The next message of the server while it executes statements of the proxy. Records reported parameters. Forwards these,
/// warnings and notifications to the client, except notifications on the proxies' channel.
pub(super) async fn next(
    client: &mut Peer,
    server: &mut Peer,
    reported: &mut Reported,
    deadline: &mut Option<Instant>,
) -> Result<(u8, Bytes), Refused> {
    loop {
        if let Some((tag, frame)) = server.reader.server_frame(MAX_GREETING).map_err(broken)? {
            let content = body(&frame);
            let is_forwarded = match tag {
                backend::PARAMETER_STATUS => {
                    reported.note(content);
                    true
                }
                // Other notices are about the proxy's statements. Warnings are about the server.
                backend::NOTICE => field(content, b'V') == Some(b"WARNING"),
                backend::NOTIFICATION => message::notification(content).is_none_or(|(channel, _)| channel != CHANNEL),
                _ => false,
            };
            if is_forwarded {
                client.writer.output.extend_from_slice(&frame);
            }
            return Ok((tag, frame));
        }
        if server.reader.ended {
            return Err(Refused::Upstream(io::ErrorKind::UnexpectedEof.into()));
        }
        if client.writer.output.len() >= HIGH_WATER {
            client.writer.flush().await?;
        }
        read_either(client, server, deadline).await?;
    }
}

fn broken(error: InvalidLength) -> Refused {
    Refused::Upstream(io::Error::new(io::ErrorKind::InvalidData, error))
}
