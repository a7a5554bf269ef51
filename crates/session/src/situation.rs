//! A session's situation, for tests that count which events they have tried in which situations.

use super::host::Host;
use super::message::Stage;
use super::pipeline::{Audience, Pipeline, Request};
use super::session::Session;

/// The stage of the client's message at hand, and the first reply that the server owes.
pub type Situation = (StageKind, Owed);

/// A stage of the message at hand, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the comments are those of the stages")]
pub enum StageKind {
    Reading,
    Settling,
    Asking,
    Requesting,
    Performing,
    BehindAdmit,
    Restarting,
    Discarding,
}

/// The first reply that the server owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owed {
    /// No reply.
    Nothing,
    /// No reply: the server skips messages up to a Sync that was not sent.
    Skips,
    /// The reply to a COPY from the client. The server is reading its data.
    CopyIn,
    /// The reply to a statement of the proxy.
    Own,
    /// The reply to a statement that the proxy sends before the client's next message.
    OwnAhead,
    /// The reply to a statement that replaces a rejected one.
    Rejection,
    /// The reply to a simple query.
    Query,
    /// The reply to a message of the extended protocol.
    Extended,
    /// ReadyForQuery for a Sync.
    Sync,
    /// The reply to a fast-path call.
    FunctionCall,
}

impl<H: Host> Session<H> {
    /// The situation in which the next event arrives.
    pub fn situation(&mut self) -> Situation {
        let stage = match self.message.stage() {
            Stage::Reading => StageKind::Reading,
            Stage::Settling => StageKind::Settling,
            Stage::Asking(_) => StageKind::Asking,
            Stage::Requesting(_) => StageKind::Requesting,
            Stage::Performing => StageKind::Performing,
            Stage::BehindAdmit => StageKind::BehindAdmit,
            Stage::Restarting => StageKind::Restarting,
            Stage::Discarding { .. } => StageKind::Discarding,
        };
        (stage, owed(&mut self.pipeline))
    }
}

fn owed(pipeline: &mut Pipeline) -> Owed {
    let (is_skipping, is_copying_in) = (pipeline.is_skipping(), pipeline.is_copying_in());
    let Some(first) = pipeline.front() else { return if is_skipping { Owed::Skips } else { Owed::Nothing } };
    match (&first.audience, &first.to) {
        (Audience::Proxy, _) => Owed::Own,
        (Audience::ProxyAhead, _) => Owed::OwnAhead,
        (Audience::Rejection { .. }, _) => Owed::Rejection,
        (Audience::Client, _) if is_copying_in => Owed::CopyIn,
        (Audience::Client, Request::Query { .. }) => Owed::Query,
        (Audience::Client, Request::Sync) => Owed::Sync,
        (Audience::Client, Request::FunctionCall) => Owed::FunctionCall,
        (Audience::Client, _) => Owed::Extended,
    }
}
