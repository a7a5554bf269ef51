//! The buffers of one side of a session, the client's or the server's.

use bytes::{Buf, Bytes, BytesMut};
use fencegate_wire::frame::{HEADER, Header};

/// An output of this many bytes or more takes no more until some of it is written.
pub const HIGH_WATER: usize = 128 * 1024;

/// Room for at most this many bytes is reserved at once for messages that are about to be forwarded.
pub(super) const LITTLE: usize = 4 * 1024;

/// The buffers of one side: input from it, output to it, and the rest of the message that is being forwarded from it.
#[derive(Default)]
pub struct Side {
    /// Bytes received and not handled yet.
    pub input: BytesMut,
    /// No more input will arrive.
    pub ended: bool,
    /// Bytes to be written.
    pub output: BytesMut,
    /// Bytes of the current message that are still to come.
    pub(super) rest: usize,
    /// These bytes are discarded.
    pub(super) discard: bool,
}

impl Side {
    /// A side with bytes that were read from it and bytes that are to be written to it.
    pub fn new(input: BytesMut, ended: bool, output: BytesMut) -> Self {
        Side { input, ended, output, rest: 0, discard: false }
    }

    /// The body of a message that has arrived.
    pub(super) fn message_body(&self, header: Header) -> &[u8] {
        &self.input[HEADER..header.frame()]
    }

    /// The body of the message, as far as it has arrived. Its end is not the end of the message.
    pub(super) fn start_of_body(&self, header: Header) -> &[u8] {
        &self.input[HEADER..self.input.len().min(header.frame())]
    }

    /// Forwards or discards the received part of the current message. Returns true if the message is complete.
    pub(super) fn pass_on(&mut self, output: &mut BytesMut) -> bool {
        let bytes = self.rest.min(self.input.len());
        if !self.discard {
            output.extend_from_slice(&self.input[..bytes]);
        }
        self.input.advance(bytes);
        self.rest -= bytes;
        self.rest == 0
    }
}

pub(super) fn frame_of(side: &mut Side, length: usize) -> Bytes {
    side.input.split_to(length).freeze()
}
