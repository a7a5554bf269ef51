//! How much of the message at hand has to arrive before it is judged, and the room for long messages that are held whole.
//!
//! Owns the bound of one message. Must never hold a long message without room for all of it: the bound of the memory that all
//! sessions hold together depends on that.

use super::host::Host;
use super::message::MessageRoom;
use super::session::{ClientFault, Session};
use super::task::Task;
use fencegate_statement::OpaqueReason;
use fencegate_wire::frame::{HEADER, Header};

/// The longest statement that is held to be judged, in bytes; longer ones are unverifiable.
const MAX_STATEMENT: usize = 16 * 1024 * 1024;

/// Every session may hold this many bytes without room.
const LONG: usize = 1024 * 1024;

/// The two names in a Bind end within this many bytes.
const MAX_NAMES: usize = 64 * 1024;

impl<H: Host> Session<H> {
    /// Returns true when the whole message has arrived.
    pub(super) fn is_whole(&mut self, header: Header) -> bool {
        self.message.want(header.frame());
        self.client.input.len() >= header.frame()
    }

    /// Returns true when the body has that many NUL-terminated strings at its start, or all of the message has arrived.
    pub(super) fn has_strings(&mut self, header: Header, count: usize) -> Result<bool, ClientFault> {
        let start = self.client.start_of_body(header);
        let start = &start[..start.len().min(MAX_NAMES)];
        let enough = start.iter().filter(|byte| **byte == 0).count() >= count || start.len() == header.body;
        if !enough && start.len() == MAX_NAMES {
            return Err(ClientFault::Unjudged("a name longer than 64 KiB"));
        }
        self.message.want(MAX_NAMES + HEADER);
        Ok(enough)
    }

    /// Requests room to hold a message whole. An error says why there is none. Returns `None` while the session waits for room;
    /// meanwhile it reads no more of the message.
    ///
    /// A client that only announces a long message gets no room: the session requests it once more has arrived than every
    /// session may hold. The room is for the whole message, so that no session that has a part of its room waits for the rest.
    /// A client that then sends too slowly while others wait loses the room.
    pub(super) fn make_room(&mut self, header: Header) -> Option<Result<(), OpaqueReason>> {
        if header.body <= LONG {
            return Some(Ok(()));
        }
        if header.body > MAX_STATEMENT {
            return Some(Err(OpaqueReason::TooLong));
        }
        let arrived = self.client.input.len();
        if matches!(self.message.room, MessageRoom::Unasked) {
            if arrived < LONG {
                self.message.want(LONG);
                return None;
            }
            let (bytes, behind) = (header.frame(), !self.pipeline.is_empty());
            let Some(room) = self.host.room(bytes, arrived, behind) else {
                self.request(Task::Room { bytes, there: arrived, behind });
                return None;
            };
            self.message.room = MessageRoom::Granted(room);
        }
        if let MessageRoom::Granted(room) = &mut self.message.room
            && arrived < header.frame()
            && room.is_overdue(arrived)
        {
            self.message.room = MessageRoom::Refused;
        }
        Some(if self.message.room.is_granted() { Ok(()) } else { Err(OpaqueReason::NoRoom) })
    }
}
