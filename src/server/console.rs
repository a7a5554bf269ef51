//! A client of the console: the server authenticates it under its role, then the proxy answers its commands. While the
//! server is unavailable, `outage` admits clients.
//!
//! Owns the client's socket and the length of its messages. Must never answer a client whose role is not in
//! `admin_roles`.

mod proxy;

use super::outage;
use crate::net::handshake::IncomingClient;
use crate::net::peer::{Peer, Reader};
use crate::net::refused::{Refused, refuse};
use crate::net::stream::WriteHalf;
use crate::net::upstream::{LoggedIn, Route, log_in};
use crate::operate::console::{Console, PreparedCommand, error_info, frontend, refusal};
use crate::state::connections::Seat;
use crate::state::lifecycle::session_ends;
use crate::state::shared::Shared;
use bytes::{Buf, Bytes};
use fencegate_session::{ClientFault, End};
use fencegate_wire::error::{ErrorText, Severity};
use fencegate_wire::frame::{Header, body};
use fencegate_wire::{message, tag};
use futures_util::SinkExt;
use pgwire::api::{ClientInfo, DefaultClient, NoopHandler, PgWireConnectionState};
use pgwire::error::PgWireError;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::ReadyForQuery;
use pgwire::tokio::server::{PgWireMessageServerCodec, process_message};
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{Empty, Join};
use tokio_util::codec::Framed;

/// Maximum length of a message, in bytes.
const LARGEST_MESSAGE: usize = 64 * 1024;

/// A client that may use the console.
pub struct ConsoleSession {
    client: Peer,
    role: String,
    server_version: String,
}

impl ConsoleSession {
    /// Lets the server authenticate the client, in a session that is closed immediately.
    /// Not cancel-safe: dropping it closes the sockets.
    ///
    /// # Errors
    /// There is no session. The client has been told the reason if possible.
    pub async fn open(shared: Arc<Shared>, caller: IncomingClient, seat: &mut Seat) -> Result<Self, Refused> {
        let IncomingClient { mut client, startup, deadline } = caller;
        let packet = startup.for_database(shared.settings().control_database());
        if outage::admits(&shared, &client, startup.user(), &packet).await {
            seat.keep_place();
            let role = startup.user().to_owned();
            tracing::warn!(session = seat.number(), role, "console_without_server");
            outage::put_greeting(&mut client.writer.output);
            client.writer.flush().await?;
            return Ok(ConsoleSession { client, role, server_version: String::new() });
        }
        let LoggedIn { mut server, authenticated, .. } =
            log_in(&shared, &mut client, seat, Route::Console, &packet, deadline).await?;
        seat.keep_place();
        message::put_terminate(&mut server.writer.output);
        // Ignore errors: the session is no longer needed.
        server.writer.flush().await.ok();
        let role = startup.user().to_owned();
        if !shared.settings().admin_roles.contains(&role) {
            let text = ErrorText::new("42501", format!("role \"{role}\" may not use fencegate's console"))
                .hint("Connect as a role in the proxy's setting admin_roles.");
            return refuse(&mut client, text).await;
        }
        client.writer.output.extend_from_slice(&authenticated.ready);
        client.writer.flush().await?;
        Ok(ConsoleSession { client, role, server_version: authenticated.reported.server_version })
    }

    /// The client's role.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Answers commands until the session ends, and returns why it ended. Not cancel-safe: a command may be half done.
    pub async fn run(self, shared: Arc<Shared>) -> End {
        self.answer(shared).await.unwrap_or_else(End::ClientLost)
    }

    async fn answer(self, shared: Arc<Shared>) -> io::Result<End> {
        let Peer { mut reader, writer, .. } = self.client;
        let mut answers = Answers::new(writer.into_parts().0.into_half());
        let console = Arc::new(Console::new(shared.clone(), self.role, self.server_version));
        loop {
            let next = tokio::select! {
                next = next_message(&mut reader) => next?,
                () = shared.stopping() => return answers.end(session_ends(), End::Shutdown).await,
            };
            match next {
                Next::End | Next::Message(tag::frontend::TERMINATE, _) => return Ok(End::Client),
                Next::Message(tag, frame) => {
                    let mut answer = pin!(answers.answer(&console, tag, body(&frame)));
                    tokio::select! {
                        biased;
                        answered = &mut answer => answered?,
                        () = left(&mut reader) => {
                            // Ends commands that only wait. The others complete.
                            console.client_left();
                            answer.await?;
                        }
                    }
                }
                Next::TooLong(tag, bytes) => answers.refuse(tag, too_long(bytes)).await?,
                Next::Broken(why) => {
                    return answers.end(ErrorText::new("08P01", why.to_string()), End::ClientFault(why)).await;
                }
            }
        }
    }
}

/// The client's next message.
enum Next {
    /// A tag and a frame.
    Message(u8, Bytes),
    /// A tag and the length. The message was skipped.
    TooLong(u8, usize),
    /// The start of the next message cannot be determined.
    Broken(ClientFault),
    /// The client has disconnected.
    End,
}

/// Not cancel-safe: the rest of a long message would be read as another message.
async fn next_message(reader: &mut Reader) -> io::Result<Next> {
    loop {
        match Header::from_client(&reader.input) {
            Err(error) => return Ok(Next::Broken(error.into())),
            Ok(Some(header)) if !is_known(header.tag) => {
                return Ok(Next::Broken(ClientFault::Unknown(header.tag)));
            }
            Ok(Some(header)) if header.body > LARGEST_MESSAGE => {
                let passed = pass_over(reader, header.frame()).await?;
                return Ok(if passed { Next::TooLong(header.tag, header.body) } else { Next::End });
            }
            Ok(Some(header)) if reader.input.len() >= header.frame() => {
                return Ok(Next::Message(header.tag, reader.input.split_to(header.frame()).freeze()));
            }
            Ok(_) if reader.ended => return Ok(Next::End),
            Ok(_) => reader.fill().await?,
        }
    }
}

/// Returns when the client has disconnected. Never returns if the client has sent more than the buffer holds.
/// Cancel-safe.
async fn left(reader: &mut Reader) {
    while !reader.ended && reader.input.len() < LARGEST_MESSAGE {
        if reader.fill().await.is_err() {
            return;
        }
    }
    if !reader.ended {
        pending().await
    }
}

/// Discards this many bytes as they arrive. False: the client disconnected before.
async fn pass_over(reader: &mut Reader, bytes: usize) -> io::Result<bool> {
    let mut left = bytes;
    loop {
        let there = left.min(reader.input.len());
        reader.input.advance(there);
        left -= there;
        if left == 0 || reader.ended {
            return Ok(left == 0);
        }
        reader.fill().await?;
    }
}

/// True for messages that a client may send after authentication.
fn is_known(tag: u8) -> bool {
    b"QPBDECHSFXdcf".contains(&tag)
}

fn too_long(bytes: usize) -> ErrorText {
    let message = format!("the command has {bytes} bytes; the console accepts at most {LARGEST_MESSAGE}");
    ErrorText::new("54000", message)
}

/// pgwire's view of the client's socket. pgwire does not read from it, so the proxy can check the length and framing of
/// each message first.
struct Answers {
    socket: Framed<Join<Empty, WriteHalf>, PgWireMessageServerCodec<PreparedCommand>>,
}

impl Answers {
    fn new(output: WriteHalf) -> Self {
        // The address is not used.
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let codec = PgWireMessageServerCodec::new(DefaultClient::new(nowhere, false));
        let mut socket = Framed::new(tokio::io::join(tokio::io::empty(), output), codec);
        // The server has completed the previous states.
        socket.set_state(PgWireConnectionState::ReadyForQuery);
        Answers { socket }
    }

    /// Not cancel-safe: a command may be half done.
    async fn answer(&mut self, console: &Arc<Console>, tag: u8, body: &[u8]) -> io::Result<()> {
        // Ignores the rest of a COPY that was never started, as the server does.
        if self.skips(tag) || b"dcf".contains(&tag) {
            return Ok(());
        }
        let message = match frontend::message(tag, body) {
            Ok(message) => message,
            Err(text) => return self.refuse(tag, text).await,
        };
        let none = Arc::new(NoopHandler);
        let (simple, extended) = (console.clone(), console.clone());
        let answered =
            process_message(message, &mut self.socket, none.clone(), simple, extended, none.clone(), none).await;
        match answered {
            Ok(()) => Ok(()),
            Err(error) => self.fail(tag, error).await,
        }
    }

    /// Not cancel-safe: the client may have received a part of it.
    async fn refuse(&mut self, tag: u8, text: ErrorText) -> io::Result<()> {
        if self.skips(tag) {
            return Ok(());
        }
        self.fail(tag, refusal(text, Severity::Error)).await
    }

    /// Sends an error. The transaction continues: there is nothing to roll back, and psql's own completion queries are
    /// errors here. Not cancel-safe: the client may have received a part of it.
    async fn fail(&mut self, tag: u8, error: PgWireError) -> io::Result<()> {
        self.socket.feed(PgWireBackendMessage::ErrorResponse(error_info(error).into())).await?;
        if frontend::is_extended(tag) {
            self.socket.set_state(PgWireConnectionState::AwaitingSync);
        } else {
            self.socket.set_state(PgWireConnectionState::ReadyForQuery);
            let ready = ReadyForQuery::new(self.socket.transaction_status());
            self.socket.feed(PgWireBackendMessage::ReadyForQuery(ready)).await?;
        }
        self.socket.flush().await
    }

    /// Sends the reason for the session's end. Not cancel-safe: the client may have received a part of it.
    async fn end(&mut self, text: ErrorText, end: End) -> io::Result<End> {
        let error = error_info(refusal(text, Severity::Fatal));
        self.socket.send(PgWireBackendMessage::ErrorResponse(error.into())).await?;
        self.socket.close().await?;
        Ok(end)
    }

    /// After an error in the extended protocol, everything up to Sync is skipped.
    fn skips(&self, tag: u8) -> bool {
        tag != tag::frontend::SYNC && matches!(self.socket.state(), PgWireConnectionState::AwaitingSync)
    }
}
