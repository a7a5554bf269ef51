//! The end of a session, and its last message to the client.

use super::host::Host;
use super::message::MessageRoom;
use super::rejection::CutOffOutcome;
use super::session::{ClientFault, End, Life, Session};
use super::side::frame_of;
use bytes::{Bytes, BytesMut};
use fencegate_fence::session::Activity;
use fencegate_wire::error::{ErrorText, Severity};
use fencegate_wire::frame::Header;
use fencegate_wire::message::{self, Status};
use fencegate_wire::tag::backend;

impl<H: Host> Session<H> {
    /// Writes the last message to the client, unless half of another one has been sent.
    pub fn say_last(&mut self, text: &ErrorText, end: &End) {
        if self.server.rest > 0 && !self.server.discard {
            return;
        }
        text.put(&mut self.client.output, Severity::Fatal);
        if let End::CutOff(_) = end {
            // Some drivers show an error only when its ReadyForQuery has come.
            message::put_ready(&mut self.client.output, Status::Failed);
        }
    }

    /// The last error of the server, if it has arrived.
    pub fn last_error(&mut self) -> Option<Bytes> {
        let header = Header::from_server(&self.server.input).ok()??;
        let is_error = header.tag == backend::ERROR && self.server.input.len() >= header.frame();
        is_error.then(|| frame_of(&mut self.server, header.frame()))
    }

    /// Returns true if the client waits for an answer.
    pub fn is_in_flight(&self) -> bool {
        !self.pipeline.is_empty() || self.client.rest > 0 || self.pipeline.repetition.is_refused()
    }

    /// A newer token has ended the server process. Returns the outcome of the open transaction.
    pub fn cut_off(&self) -> CutOffOutcome {
        self.process.fence.set_activity(Activity::CutOff);
        if self.is_in_flight() || self.transaction.may_have_committed() {
            CutOffOutcome::Unknown
        } else {
            CutOffOutcome::RolledBack
        }
    }

    /// How the client broke the protocol, if it did.
    pub fn client_fault(&self) -> Option<ClientFault> {
        match &self.life {
            Life::Broken(why) => Some(why.clone()),
            Life::Open | Life::Terminating => None,
        }
    }

    /// Returns true if the server runs a statement for the client.
    pub fn is_busy(&self) -> bool {
        self.process.is_busy()
    }

    /// Drops unhandled client input, and releases its room and permit.
    pub fn release_room(&mut self) {
        self.client.input = BytesMut::new();
        (self.message.room, self.message.text.permit) = (MessageRoom::Unasked, None);
        if self.server.output.is_empty() {
            self.pipeline.release_room();
        }
    }

    /// Sends Terminate to the server, unless half of another message has been sent.
    pub fn put_terminate(&mut self) {
        if self.client.rest == 0 {
            message::put_terminate(&mut self.server.output);
        }
    }

    /// Drops messages that were forwarded and have not been sent, while the server is busy with earlier ones. Half of a message
    /// may have been sent, so that nothing can follow. Returns false if nothing was unsent.
    pub fn take_back_unsent(&mut self) -> bool {
        let is_unsent = self.is_busy() && !self.server.output.is_empty();
        if is_unsent {
            self.server.output.clear();
        }
        is_unsent
    }

    /// Returns true if the server may still commit definitions when the session leaves it.
    pub fn defines_after_its_end(&self) -> bool {
        !self.server.ended && self.transaction.may_define()
    }

    /// The server has ended the transaction: its definitions are in the catalog by now, or never will be.
    pub fn server_gone(&mut self) {
        self.host.catalog_changed();
        self.transaction.definitions_mut().withdraw(&self.host);
    }
}
