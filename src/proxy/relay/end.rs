//! How a session ends, and the last thing that its client is told.

use super::super::context::Context;
use super::super::definitions::Definitions;
use super::super::peer::body;
use super::super::rejection::{Outcome, cut_off};
use super::super::session::Session;
use super::super::shutdown::session_ends;
use super::{ClientFault, Relay, Side};
use crate::fence::CutOff;
use crate::fence::session::Activity;
use crate::wire::error::{ErrorText, Severity, field};
use crate::wire::message::{self, Status};
use std::io;
use std::time::Duration;

/// A client that does not take the rest of what it was sent within this time does not get it.
const LAST_WORDS: Duration = Duration::from_secs(300);

/// A server that does not take the goodbye within this time is left without one.
const LEAVE: Duration = Duration::from_secs(1);

/// admin_shutdown: what a process says that a drain, or anybody else, ends by pg_terminate_backend.
const ENDED_BY_COMMAND: &[u8] = b"57P01";

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The client said goodbye, or closed the connection without.
    #[error("client closed the connection")]
    Client,
    /// The client's connection has failed: it did not answer any more, say, or has closed it without reading what it was sent.
    #[error("connection to the client was lost: {0}")]
    ClientLost(io::Error),
    /// The server ended the session and said why; the client has been told.
    #[error("server ended the session")]
    Server,
    /// A newer token ended it.
    #[error("cut off by a newer token for resource {}", .0.resource)]
    CutOff(CutOff),
    /// The client broke the protocol.
    #[error("client broke the protocol: {0}")]
    ClientFault(ClientFault),
    /// The server broke the protocol.
    #[error("server broke the protocol: {0}")]
    ServerFault(String),
    /// The client was idle for longer than it may be.
    #[error("idle-session timeout")]
    IdleTimeout,
    /// The proxy stops.
    #[error("the proxy is shutting down")]
    Shutdown,
}

impl Relay {
    /// Says the last thing that the client can be told, and closes.
    pub(super) async fn last_words(mut self, end: End) -> End {
        let end = match self.client_fault.take() {
            Some(why) => End::ClientFault(why),
            None => end,
        };
        let (end, text) = match end {
            // The server ends what the client has said goodbye to.
            End::Server if self.terminating => (End::Client, None),
            End::Server => self.lost_server().await,
            End::ClientFault(why) => {
                let text = ErrorText::new("08P01", format!("protocol error: {why}"));
                (End::ClientFault(why), Some(text))
            }
            End::ServerFault(why) => {
                let text = ErrorText::new("08P01", format!("the server broke the protocol: {why}"));
                (End::ServerFault(why), Some(text))
            }
            // As the server says it.
            End::IdleTimeout => {
                let text = ErrorText::new("57P05", "terminating connection due to idle-session timeout");
                (End::IdleTimeout, Some(text.hint("The proxy's setting idle_timeout limits it: connect again.")))
            }
            End::Shutdown => (End::Shutdown, Some(session_ends())),
            other => (other, None),
        };
        if matches!(end, End::IdleTimeout | End::Shutdown) {
            // One that does not take it finds its socket closed.
            tokio::time::timeout(LEAVE, self.leave_server()).await.ok();
        }
        if let Some(text) = text.filter(|_| self.server.rest == 0 || self.server.discard) {
            text.put(&mut self.client.writer.output, Severity::Fatal);
            if let End::CutOff(_) = end {
                // Some drivers show an error only when its ReadyForQuery has come.
                message::put_ready(&mut self.client.writer.output, Status::Failed);
            }
        }
        let goodbye = async {
            self.client.writer.flush().await?;
            self.client.writer.close().await
        };
        // A client that is gone or does not read misses it: there is nobody left to tell. The proxy does not wait for it.
        tokio::select! {
            _ = tokio::time::timeout(LAST_WORDS, goodbye) => {}
            () = self.term.farewell_over() => {}
        }
        self.count_bytes();
        let end = match (end, self.client_lost.take()) {
            // Without the goodbye of TLS it has closed it all the same.
            (End::Client, Some(error)) if !self.terminating && error.kind() != io::ErrorKind::UnexpectedEof => {
                End::ClientLost(error)
            }
            (end, _) => end,
        };
        if !self.server.reader.ended && (self.catalogue_changed || self.definitions.are_under_way()) {
            let announcements = self.context.announcements().clone();
            announcements.spawn(until_the_server_ends(self.server, self.context, self.definitions));
        }
        end
    }

    /// Lets nothing go on at the server: what it runs for the session is cancelled, and the session says goodbye there.
    async fn leave_server(&mut self) {
        if self.activity == Activity::Busy
            && let Err(error) = self.context.cancel(&self.session.cancel_key).await
        {
            tracing::warn!(session = self.session.number, %error, "statement_not_cancelled");
        }
        if self.client.rest == 0 {
            message::put_terminate(&mut self.server.writer.output);
        }
        // Where this fails the server is gone.
        self.server.writer.flush().await.ok();
        self.server.writer.close().await.ok();
    }

    /// The server connection has ended unasked. A session that a newer token cut off is told so: its process was ended by
    /// command, or had no time to say why.
    async fn lost_server(&mut self) -> (End, Option<ErrorText>) {
        let in_flight = !self.replies.is_empty() || self.client.rest > 0;
        let said = match self.server.reader.server_frame(usize::MAX) {
            Ok(Some((b'E', frame))) => Some(frame),
            _ => None,
        };
        let may_be_cut_off = said.as_ref().is_none_or(|error| field(body(error), b'C') == Some(ENDED_BY_COMMAND));
        if may_be_cut_off && let Some(by) = self.context.database().clone().cut_off_by(&self.fence).await {
            let outcome = if in_flight || self.may_have_committed { Outcome::Unknown } else { Outcome::RolledBack };
            let Session { number: session, user, database, .. } = &*self.session;
            tracing::warn!(
                session,
                user,
                database,
                resource = by.resource,
                presented = by.presented.token,
                highest = by.highest.token,
                outcome = outcome.name(),
                "session_cut_off"
            );
            self.fence.set_activity(Activity::CutOff);
            if !in_flight && !self.wants_an_answer().await {
                return (End::Client, None);
            }
            let text = cut_off(&by.resource, by.presented, by.highest, outcome);
            return (End::CutOff(by), Some(text));
        }
        match said {
            Some(error) => {
                self.client.writer.output.extend_from_slice(&error);
                (End::Server, None)
            }
            // It closed because the client had: nobody asks why.
            None if self.closed => (End::Client, None),
            None => (End::Server, Some(ErrorText::new("08006", "server closed the connection unexpectedly"))),
        }
    }

    /// Waits until the client says something: drivers show an error only as an answer. One that says nothing is told all the
    /// same when it has been idle for too long, or the proxy stops. False: there is nobody to tell.
    async fn wants_an_answer(&mut self) -> bool {
        let Relay { client, term, .. } = self;
        while client.reader.input.is_empty() && !client.reader.ended {
            if term.end(true).is_some() {
                return true;
            }
            tokio::select! {
                result = client.reader.fill() => if result.is_err() { return false },
                result = client.writer.drain(), if client.writer.is_pending() => if result.is_err() { return false },
                () = term.change() => {}
            }
        }
        client.reader.input.first().is_some_and(|tag| *tag != b'X')
    }
}

/// The server may go on with what it was sent, and commit definitions: they count until it ends.
async fn until_the_server_ends(mut server: Side, context: Context, mut definitions: Definitions) {
    // Where this fails the server is gone, which its reading half tells.
    server.writer.close().await.ok();
    while !server.reader.ended && server.reader.fill().await.is_ok() {
        server.reader.input.clear();
    }
    context.catalogue_changed();
    definitions.withdraw();
}
