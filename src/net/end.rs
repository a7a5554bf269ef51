//! How a session ends, and the last thing that its client is told.

use super::driver::{Driver, Socket};
use super::peer::body;
use crate::fence::CutOff;
use crate::fence::session::Activity;
use crate::server::shutdown::session_ends;
use crate::session::definitions::Definitions;
use crate::session::rejection::{Outcome, cut_off};
use crate::session::{ClientFault, Relay, Side, frame_of};
use crate::state::context::Context;
use crate::state::sessions::Session;
use crate::wire::error::{ErrorText, Severity, field};
use crate::wire::frame::Header;
use crate::wire::message::{self, Status};
use crate::wire::tag::{backend, frontend};
use bytes::Bytes;
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

impl Driver {
    /// Says the last thing that the client can be told, and closes.
    pub async fn last_words(mut self, end: End) -> End {
        let end = match self.session.client_fault.take() {
            Some(why) => End::ClientFault(why),
            None => end,
        };
        let (end, text) = match end {
            // The server ends what the client has said goodbye to.
            End::Server if self.session.terminating => (End::Client, None),
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
        if let Some(text) = text {
            self.session.say_last(&text, &end);
        }
        // A client that is gone or does not read misses it: there is nobody left to tell. The proxy does not wait for it.
        tokio::select! {
            _ = tokio::time::timeout(LAST_WORDS, self.client.close(&mut self.session.client)) => {}
            () = self.term.farewell_over() => {}
        }
        self.count_bytes();
        let end = match (end, self.client_lost.take()) {
            // Without the goodbye of TLS it has closed it all the same.
            (End::Client, Some(error)) if !self.session.terminating && error.kind() != io::ErrorKind::UnexpectedEof => {
                End::ClientLost(error)
            }
            (end, _) => end,
        };
        let Relay { server, context, definitions, catalogue_changed, .. } = self.session;
        if !server.ended && (catalogue_changed || definitions.are_under_way()) {
            let announcements = context.announcements().clone();
            announcements.spawn(until_the_server_ends(self.server, server, context, definitions));
        }
        end
    }

    /// Lets nothing go on at the server: what it runs for the session is cancelled, and the session says goodbye there.
    async fn leave_server(&mut self) {
        let session = &mut self.session;
        if session.activity == Activity::Busy
            && let Err(error) = session.context.cancel(&session.about.cancel_key).await
        {
            tracing::warn!(session = session.about.number, %error, "statement_not_cancelled");
        }
        if session.client.rest == 0 {
            message::put_terminate(&mut session.server.output);
        }
        // Where this fails the server is gone.
        self.server.sink.flush(&mut session.server.output).await.ok();
        self.server.close(&mut session.server).await.ok();
    }

    /// The server connection has ended unasked. A session that a newer token cut off is told so: its process was ended by
    /// command, or had no time to say why.
    async fn lost_server(&mut self) -> (End, Option<ErrorText>) {
        let said = self.session.last_error();
        let may_be_cut_off = said.as_ref().is_none_or(|error| field(body(error), b'C') == Some(ENDED_BY_COMMAND));
        let database = self.session.context.database().clone();
        if may_be_cut_off && let Some(by) = database.cut_off_by(&self.session.fence).await {
            let outcome = self.session.cut_off(&by);
            if !self.session.is_in_flight() && !self.wants_an_answer().await {
                return (End::Client, None);
            }
            let text = cut_off(&by.resource, by.presented, by.highest, outcome);
            return (End::CutOff(by), Some(text));
        }
        match said {
            Some(error) => {
                self.session.client.output.extend_from_slice(&error);
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
        let Driver { session: Relay { client: side, .. }, client, term, .. } = self;
        while side.input.is_empty() && !side.ended {
            if term.end(true).is_some() {
                return true;
            }
            let is_pending = client.sink.is_pending(&side.output);
            tokio::select! {
                read = client.source.fill(&mut side.input) => match read {
                    Ok(read) => side.ended |= read == 0,
                    Err(_) => return false,
                },
                written = client.sink.drain(&mut side.output), if is_pending => if written.is_err() { return false },
                () = term.change() => {}
            }
        }
        side.input.first().is_some_and(|tag| *tag != frontend::TERMINATE)
    }
}

impl Relay {
    /// Puts the last thing that the client is told, where it has not got half of a message.
    fn say_last(&mut self, text: &ErrorText, end: &End) {
        if self.server.rest > 0 && !self.server.discard {
            return;
        }
        text.put(&mut self.client.output, Severity::Fatal);
        if let End::CutOff(_) = end {
            // Some drivers show an error only when its ReadyForQuery has come.
            message::put_ready(&mut self.client.output, Status::Failed);
        }
    }

    /// The error that the server has said last, if it is there.
    fn last_error(&mut self) -> Option<Bytes> {
        let header = Header::from_server(&self.server.input).ok()??;
        let is_error = header.tag == backend::ERROR && self.server.input.len() >= header.frame();
        is_error.then(|| frame_of(&mut self.server, header.frame()))
    }

    /// The client waits for an answer.
    fn is_in_flight(&self) -> bool {
        !self.replies.is_empty() || self.client.rest > 0
    }

    /// A newer token has ended the server process: what became of the open transaction.
    fn cut_off(&self, by: &CutOff) -> Outcome {
        let is_unknown = self.is_in_flight() || self.may_have_committed;
        let outcome = if is_unknown { Outcome::Unknown } else { Outcome::RolledBack };
        let Session { number: session, user, database, .. } = &*self.about;
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
        outcome
    }
}

/// The server may go on with what it was sent, and commit definitions: they count until it ends.
async fn until_the_server_ends(mut socket: Socket, mut side: Side, context: Context, mut definitions: Definitions) {
    // Where this fails the server is gone, which its reading half tells.
    socket.close(&mut side).await.ok();
    while socket.source.fill(&mut side.input).await.is_ok_and(|read| read > 0) {
        side.input.clear();
    }
    context.catalogue_changed();
    definitions.withdraw();
}
