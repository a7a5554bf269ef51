//! Limits on the data kept for the server, and when the fence counts the session as busy.

use super::*;
use crate::task::{HeldRoom, Room};

/// Room that no other session waits for.
struct Wide;

impl HeldRoom for Wide {
    fn is_overdue(&mut self, _: usize) -> bool {
        false
    }
}

#[test]
fn a_full_output_accepts_no_message_and_keeps_its_room() {
    for (bytes, is_full) in [(HIGH_WATER - 1, false), (HIGH_WATER, true)] {
        let mut session = session("");
        session.pipeline.keep_room(Some(Box::new(Wide)));
        session.server.output.put_bytes(b'x', bytes);
        sends(&mut session, &query("SELECT 1"));
        assert_eq!(session.server.output.len() == bytes, is_full);
        assert_eq!(session.client.input == query("SELECT 1"), is_full);
        assert_eq!(session.pipeline.keeps_room(), is_full);
        assert!(session.is_held_up());
        // The output is written.
        session.server.output.clear();
        settle(&mut session);
        assert!(!session.pipeline.keeps_room() && session.client.input.is_empty() && !session.is_held_up());
    }
}

/// Sending the last error to a client that does not read may take minutes.
#[test]
fn an_ended_session_releases_its_room() {
    for (unsent, keeps) in [(0, false), (1, true)] {
        let mut session = session("");
        session.pipeline.keep_room(Some(Box::new(Wide)));
        session.message.room = Some(Box::new(Wide) as Room).into();
        session.client.input.put_bytes(b'x', HIGH_WATER);
        session.server.output.put_bytes(b'x', unsent);
        session.release_room();
        assert!(!session.message.room.is_granted() && session.client.input.capacity() == 0);
        assert_eq!(session.pipeline.keeps_room(), keeps, "the server may still receive the rest");
    }
}

/// A takeover in between must not find the process idle.
#[test]
fn the_session_is_marked_busy_before_it_sends() {
    let mut session = session("");
    assert_eq!(session.fence().activity(), Activity::Idle);
    session.begin_forwarding();
    assert!(session.is_busy() && session.fence().activity() == Activity::Busy);
    assert!(session.server.output.is_empty());
    session.begin_forwarding();
    assert!(session.is_busy());
}
