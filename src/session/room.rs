//! Room for the long messages that are held whole until they are judged.
//!
//! Owns the bound of one message. Must never hold a long message without room for all of it: the bound of what all
//! sessions hold together depends on that.

use super::task::Room;
use super::{Host, Session, Task};
use crate::statement::OpaqueReason;
use crate::wire::frame::Header;

/// The longest statement that is held to be judged, in bytes; longer ones are unverifiable.
const MAX_STATEMENT: usize = 16 * 1024 * 1024;

/// Up to this many bytes every session may hold what it likes.
const LONG: usize = 1024 * 1024;

impl<H: Host> Session<H> {
    /// Asks for room to hold a message whole; an error says why there is none. Nothing while that is waited for, and
    /// meanwhile no more of the message is read.
    ///
    /// A client that only announces a long message gets no room: it is asked for once more has arrived than every session may
    /// hold. It is for the whole message, so that no session that has a part of its room waits for the rest. A client that
    /// then sends too slowly while others wait loses it.
    pub(super) fn make_room(&mut self, header: Header) -> Option<Result<(), OpaqueReason>> {
        if header.body <= LONG {
            return Some(Ok(()));
        }
        if header.body > MAX_STATEMENT {
            return Some(Err(OpaqueReason::TooLong));
        }
        let input = self.client.input.len();
        match &self.pending.room {
            None if input < LONG => {
                self.pending.wanted = LONG;
                return None;
            }
            None => {
                let (bytes, behind) = (header.frame(), !self.replies.is_empty());
                let Some(room) = self.host.room(bytes, input, behind) else {
                    self.ask_for(Task::Room { bytes, there: input, behind });
                    return None;
                };
                self.pending.room = Some(Some(room));
            }
            Some(_) => {}
        }
        if let Some(Some(room)) = &mut self.pending.room
            && input < header.frame()
            && room.is_overdue(input)
        {
            self.pending.room = Some(None);
        }
        self.pending.room.as_ref().map(|room: &Option<Room>| room.as_ref().map(|_| ()).ok_or(OpaqueReason::NoRoom))
    }
}
