//! The parts of the client's current message, as far as they have arrived.
//!
//! Owns how much of it is wanted. Must never take the end of the input so far for the end of the message.

use super::{ClientFault, Host, Session};
use crate::wire::frame::{HEADER, Header};

/// The two names in a Bind end within this many bytes.
const MAX_NAMES: usize = 64 * 1024;

impl<H: Host> Session<H> {
    /// True when the whole message has arrived.
    pub(super) fn is_whole(&mut self, header: Header) -> bool {
        self.pending.wanted = header.frame();
        self.client.input.len() >= header.frame()
    }

    pub(super) fn message_body(&self, header: Header) -> &[u8] {
        &self.client.input[HEADER..header.frame()]
    }

    /// The body of the message, as far as it has arrived.
    pub(super) fn start_of_body(&self, header: Header) -> &[u8] {
        &self.client.input[HEADER..self.client.input.len().min(header.frame())]
    }

    /// True when that many NUL-terminated strings are there at the start of the body, or all of the message.
    pub(super) fn has_strings(&mut self, header: Header, count: usize) -> Result<bool, ClientFault> {
        let start = self.start_of_body(header);
        let start = &start[..start.len().min(MAX_NAMES)];
        let enough = start.iter().filter(|byte| **byte == 0).count() >= count || start.len() == header.body;
        if !enough && start.len() == MAX_NAMES {
            return Err(ClientFault::Unjudged("a name longer than 64 KiB"));
        }
        self.pending.wanted = MAX_NAMES + HEADER;
        Ok(enough)
    }
}
