//! A client of the console: let in by the server, as the role that it is there, then answered by us.
//!
//! Owns the client's socket and the form of the exchange. Must never have passwords of its own,
//! nor answer anybody whom the server has not let in or who is not named in `admin_roles`.

use super::handshake::{Refused, refuse};
use super::peer::{Peer, body};
use super::shared::Shared;
use super::shutdown::session_ends;
use super::upstream::log_in;
use crate::console::{self, Scene};
use crate::wire::error::{ErrorText, Severity};
use crate::wire::frame::split_string;
use crate::wire::message::{self, Status};
use crate::wire::startup::Startup;
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

/// Messages are at most this long, in bytes.
const LARGEST_MESSAGE: usize = 64 * 1024;

/// A client that may use the console.
pub struct ConsoleSession {
    client: Peer,
    role: String,
}

impl ConsoleSession {
    /// Lets the server find out who the client is, in a session that is closed at once.
    /// Not cancel-safe: the sockets are closed when it is dropped.
    ///
    /// # Errors
    /// When there is no session; the client has been told why, where it can be told.
    pub async fn open(
        shared: Arc<Shared>,
        mut client: Peer,
        startup: &Startup,
        deadline: Instant,
    ) -> Result<Self, Refused> {
        let packet = startup.for_database(shared.settings().control_database());
        let (mut server, authenticated) = log_in(&shared, &mut client, &packet, deadline).await?;
        message::put_terminate(&mut server.writer.output);
        // It may have gone already: nothing more is wanted of it.
        server.writer.flush().await.ok();
        let role = startup.user().to_owned();
        if !shared.settings().admin_roles.contains(&role) {
            let text = ErrorText::new("42501", format!("role \"{role}\" may not use the console of fencegate"))
                .hint("Connect as one of the roles in the proxy's setting admin_roles.");
            return refuse(&mut client, text).await;
        }
        client.writer.output.extend_from_slice(&authenticated.ready);
        client.writer.flush().await?;
        Ok(ConsoleSession { client, role })
    }

    /// Who it is.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Answers until the client leaves. Not cancel-safe: a command may be half done.
    ///
    /// # Errors
    /// Those of the client's socket, and of what it sends.
    pub async fn run(mut self, shared: &Shared) -> io::Result<()> {
        // After an error in the extended protocol everything up to the Sync is skipped.
        let mut skipping = false;
        loop {
            let Some((tag, frame)) = self.next_message(shared).await? else { return Ok(()) };
            let output = &mut self.client.writer.output;
            match tag {
                b'X' => return Ok(()),
                b'S' => {
                    skipping = false;
                    message::put_ready(output, Status::Idle);
                }
                _ if skipping => {}
                b'Q' => {
                    match split_string(body(&frame)) {
                        Some((text, [])) => console::answer(&scene(shared, &self.role), text, output).await,
                        // As a server says it.
                        _ => ErrorText::new("08P01", "invalid message format").put(output, Severity::Error),
                    }
                    message::put_ready(output, Status::Idle);
                }
                b'P' | b'B' | b'D' | b'E' | b'C' | b'F' => {
                    only_simple().put(output, Severity::Error);
                    skipping = tag != b'F';
                    if !skipping {
                        message::put_ready(output, Status::Idle);
                    }
                }
                // Flush, and the rest of a COPY that there never was: the server says nothing to them either.
                b'H' | b'd' | b'c' | b'f' => {}
                _ => return self.break_off(format!("invalid frontend message type {tag}")).await,
            }
            self.client.writer.flush().await?;
        }
    }

    /// The next whole message; None when the client has left.
    async fn next_message(&mut self, shared: &Shared) -> io::Result<Option<(u8, bytes::Bytes)>> {
        loop {
            match self.client.reader.client_frame(LARGEST_MESSAGE) {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) if self.client.reader.ended => return Ok(None),
                Ok(None) => tokio::select! {
                    read = self.client.reader.fill() => read?,
                    () = shared.stopping() => return self.end(&session_ends()).await,
                },
                Err(error) => return self.break_off(error.to_string()).await,
            }
        }
    }

    async fn break_off<T>(&mut self, why: String) -> io::Result<T> {
        self.end(&ErrorText::new("08P01", why)).await
    }

    async fn end<T>(&mut self, why: &ErrorText) -> io::Result<T> {
        why.put(&mut self.client.writer.output, Severity::Fatal);
        self.client.writer.flush().await?;
        self.client.writer.close().await?;
        Err(io::Error::other(why.message.clone()))
    }
}

fn scene<'a>(shared: &'a Shared, role: &'a str) -> Scene<'a> {
    Scene {
        role,
        policies: shared.policies.borrow().clone(),
        leaders: shared.authority.as_ref().map(|it| it.leaders().borrow().clone()).unwrap_or_default(),
        databases: shared.downstreams().iter().map(|downstream| downstream.fence.clone()).collect(),
        open: Box::new(|name| shared.downstream(name).fence.clone()),
    }
}

fn only_simple() -> ErrorText {
    ErrorText::new("0A000", "the console of fencegate knows the simple query protocol only")
        .hint("Use psql, or a driver's way to send a statement without preparing it.")
}
