//! What a relay waits for: for the message at hand, and for anything to happen.
//!
//! Owns when each side is read. Must never read more of one than there is room for on the other.

use super::super::context::Turn;
use super::super::peer::HIGH_WATER;
use super::super::room::Room;
use super::{End, Relay, release};
use crate::fence::Refusal;
use crate::fence::session::Activity;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// What a client has sent before it hung up gets this long to be done; nobody will know when it is.
const AFTER_HANG_UP: Duration = Duration::from_secs(10);

/// What the first message of the client that was not forwarded yet waits for.
pub(super) enum Wait {
    /// The server owes nothing any more.
    Settle,
    /// The answer to our question: the value of the parameter.
    Value,
    /// The same: as whom the session acts.
    Role,
    /// Admission to the resource of that name, and to others; what comes next is asked for as long as this is wanted.
    Admit(String, JoinHandle<Result<(), Refusal>>, Arc<()>),
    /// Something to be done first: see [`Relay::first`].
    First(JoinHandle<Option<Turn>>),
    /// Room for a long message, which may be refused.
    Room(JoinHandle<Option<Room>>),
}

impl Relay {
    /// Waits until one thing happens, and notes it. Cancel-safe.
    pub(super) async fn wait_for_event(&mut self) -> Result<(), End> {
        let is_held_back = self.is_held_back();
        // Of a message that has room, and is not there yet.
        let room = self.room.iter().flatten().next().filter(|_| self.wait.is_none());
        let next_look = room.map(Room::next_look);
        let Relay { client, server, wait, fence, context, hang_up, client_lost, term, .. } = self;
        // What is left of the input when nothing holds it back is a message that will never be whole.
        let client_done = client.reader.ended && !is_held_back;
        if (client_done || self.terminating) && server.writer.output.is_empty() && !self.closed {
            self.closed = true;
            server.writer.end();
        }
        // Beyond this the kernel's buffers fill, and the client waits.
        let client_room = self.wanted.max(HIGH_WATER);
        let read_client =
            !client.reader.ended && server.writer.output.len() < HIGH_WATER && client.reader.input.len() < client_room;
        let read_server = !server.reader.ended && client.writer.output.len() < HIGH_WATER;
        let waits = !matches!(wait, None | Some(Wait::Settle | Wait::Value | Wait::Role));
        tokio::select! {
            result = client.reader.fill(), if read_client => {
                term.heard();
                if let Err(error) = result {
                    // A reset, as of a client that hangs up without reading: what it sent before is done all the same.
                    client.reader.ended = true;
                    client_lost.get_or_insert(error);
                    hang_up.get_or_insert(Instant::now() + AFTER_HANG_UP);
                }
                Ok(())
            }
            result = server.reader.fill(), if read_server => match result {
                Ok(()) => Ok(()),
                // A reset, as after a crash, is the end as well; what it leaves unsaid is told in last_words.
                Err(_) => { server.reader.ended = true; Ok(()) }
            },
            result = client.writer.drain(), if client.writer.is_pending() => {
                term.heard();
                if let Err(error) = result {
                    // Nobody reads any more; what was sent before may still be there to be read, and to be done.
                    client.writer.give_up();
                    client_lost.get_or_insert(error);
                    hang_up.get_or_insert(Instant::now() + AFTER_HANG_UP);
                }
                Ok(())
            }
            () = moment(*hang_up) => Err(End::Client),
            () = term.change() => Ok(()),
            result = server.writer.drain(), if server.writer.is_pending() => {
                if result.is_err() {
                    // The server is gone; what it said before may still be there to be read.
                    server.writer.give_up();
                }
                Ok(())
            },
            () = moment(next_look) => Ok(()),
            () = finish(wait, &mut self.refused, &mut self.turn, &mut self.room), if waits => Ok(()),
            () = fence.revoked.notified() => { self.revoked = true; release(context, fence); Ok(()) },
        }
    }

    /// A message of the client that is there waits for something. For the end of a long message from the server it waits only
    /// where the proxy may have to answer by itself, and the server owes nothing: one that does owe something may keep the rest
    /// of a long row until it reads more, or the end.
    fn is_held_back(&self) -> bool {
        let waits_for_message =
            self.server.rest > 0 && self.activity == Activity::Idle && !self.client.reader.input.is_empty();
        self.wait.is_some() || self.replies.is_full() || waits_for_message
    }
}

/// Waits for the end of what is waited for. Cancel-safe: the task goes on.
async fn finish(
    wait: &mut Option<Wait>,
    refused: &mut Option<Refusal>,
    turn: &mut Option<Turn>,
    room: &mut Option<Option<Room>>,
) {
    match wait {
        Some(Wait::Admit(resource, admission, _wanted)) => {
            let outcome =
                admission.await.unwrap_or_else(|error| Err(Refusal::unavailable(resource, error.to_string())));
            *refused = outcome.err();
            *wait = None;
        }
        Some(Wait::First(done)) => {
            // A panic in it changes nothing: what it was for is looked at again.
            *turn = done.await.ok().flatten();
            *wait = None;
        }
        Some(Wait::Room(asked)) => {
            *room = Some(asked.await.ok().flatten());
            *wait = None;
        }
        None | Some(Wait::Settle | Wait::Value | Wait::Role) => std::future::pending().await,
    }
}

/// Waits for that moment, or for ever. Cancel-safe.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
