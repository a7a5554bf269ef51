//! The driver of a session: it owns the two sockets, fills and drains the session's buffers, does what the session asks
//! for, and wakes it.
//!
//! Must never read more of one side than there is room for on the other.
//!
//! Not cancel-safe where nothing else is said: a driver that is dropped closes both sockets.

use super::peer::{Peer, Sink, Source};
use super::perform::Performing;
use super::term::Term;
use crate::session::task::Done;
use crate::session::{End, HIGH_WATER, Session, Side, Started, Step};
use crate::state::host::SessionHost;
use crate::state::room::LOOK_AGAIN;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The time limit for statements of a client that has hung up: there is no sign when they are done.
const AFTER_HANG_UP: Duration = Duration::from_secs(10);

/// A session that has much to handle lets others of its thread have their turn after this time.
const AT_ONCE: Duration = Duration::from_millis(5);

/// A session with its sockets.
pub struct Driver {
    pub session: Session<SessionHost>,
    pub client: Socket,
    pub server: Socket,
    /// What the session has asked for.
    performing: Option<Performing>,
    /// How the client's socket failed.
    pub client_lost: Option<io::Error>,
    /// The client does not read any more: the session ends then at the latest.
    hang_up: Option<Instant>,
    /// The server was told that nothing more comes.
    pub closed: bool,
    /// What may end the session from outside.
    pub term: Term,
}

/// The two directions of a socket.
pub struct Socket {
    pub source: Source,
    pub sink: Sink,
}

impl Socket {
    fn new(peer: Peer) -> (Self, Side) {
        let (source, input, ended) = peer.reader.into_parts();
        let (sink, output) = peer.writer.into_parts();
        (Socket { source, sink }, Side::new(input, ended, output))
    }

    /// Tells it that nothing more will come, behind the side's output. Cancel-safe.
    pub async fn close(&mut self, side: &mut Side) -> io::Result<()> {
        self.sink.close(&mut side.output).await
    }
}

impl Driver {
    /// A session whose first ReadyForQuery waits in the client's output.
    pub fn new(host: SessionHost, client: Peer, server: Peer, started: Started) -> Self {
        let orders = host.context.shared().orders.subscribe();
        let term = Term::new(orders, host.record.kill.clone(), host.record.database.clone());
        let ((client, client_side), (server, server_side)) = (Socket::new(client), Socket::new(server));
        let session = Session::new(host, client_side, server_side, started, now());
        Driver { session, client, server, performing: None, client_lost: None, hang_up: None, closed: false, term }
    }

    /// The session's record, and the policies and database that apply to it.
    pub fn host(&self) -> &SessionHost {
        &self.session.host
    }

    /// Runs the session to its end.
    pub async fn run(mut self) -> End {
        let end = loop {
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        if self.session.server.ended {
            self.session.definitions_over();
        }
        self.last_words(end).await
    }

    /// Has the session handle what has been read, then waits for something to happen. Cancel-safe.
    async fn turn(&mut self) -> Result<(), End> {
        let goes_on = self.handle()?;
        self.count_bytes();
        match self.term.end(self.session.is_idle()) {
            // What has arrived at the last moment is not lost.
            Some(end) if !self.hears_more().await => Err(end),
            Some(_) => Ok(()),
            None if goes_on => {
                tokio::task::yield_now().await;
                Ok(())
            }
            None => self.wait_for_event().await,
        }
    }

    /// True when there is more to handle, and other sessions of the thread have their turn first.
    fn handle(&mut self) -> Result<bool, End> {
        let since = now();
        let mut step = self.session.step(since)?;
        while let Step::GoOn = step {
            let now = now();
            if now - since > AT_ONCE {
                return Ok(true);
            }
            step = self.session.step(now)?;
        }
        if let Step::Do(task) = step {
            let SessionHost { context, record, .. } = &self.session.host;
            self.performing = Some(Performing::new(task, context, record));
        }
        Ok(false)
    }

    /// Looks once whether an idle client has sent something, for which there is still time.
    async fn hears_more(&mut self) -> bool {
        if !self.session.is_idle() || self.term.is_over() {
            return false;
        }
        self.term.heard();
        let side = &mut self.session.client;
        let heard = tokio::time::timeout(Duration::ZERO, self.client.source.fill(&mut side.input)).await;
        let Ok(Ok(read)) = heard else { return false };
        side.ended |= read == 0;
        true
    }

    pub fn count_bytes(&self) {
        let SessionHost { context, record } = &self.session.host;
        record.passed.bytes(self.client.source.bytes, self.client.sink.bytes, &context.shared().metrics);
    }

    /// Waits until one thing happens, and notes it. Cancel-safe.
    async fn wait_for_event(&mut self) -> Result<(), End> {
        let is_held_back = self.session.is_held_back();
        let next_look = self.session.keeps_room().then(|| Instant::now() + LOOK_AGAIN);
        let Driver { session, client, server, performing, client_lost, hang_up, closed, term } = self;
        // What is left of the input when nothing holds it back is a message that will never be whole.
        let client_done = session.client.ended && !is_held_back;
        if (client_done || session.is_terminating()) && session.server.output.is_empty() && !*closed {
            *closed = true;
            server.sink.end();
        }
        // Beyond this the kernel's buffers fill, and the client waits.
        let client_room = session.room_for_input();
        let is_held = term.is_paused() && session.is_idle();
        session.host.record.held.store(is_held, Ordering::Relaxed);
        let read_client = !session.client.ended
            && !is_held
            && session.server.output.len() < HIGH_WATER
            && session.client.input.len() < client_room;
        let read_server = !session.server.ended && session.client.output.len() < HIGH_WATER;
        let write_client = client.sink.is_pending(&session.client.output);
        let write_server = server.sink.is_pending(&session.server.output);
        let gives_up = *hang_up;
        let mut lost = |error: io::Error| {
            client_lost.get_or_insert(error);
            hang_up.get_or_insert(Instant::now() + AFTER_HANG_UP);
        };
        tokio::select! {
            read = client.source.fill(&mut session.client.input), if read_client => {
                term.heard();
                // A reset, as of a client that hangs up without reading: what it sent before is done all the same.
                session.client.ended = read.map_err(&mut lost).unwrap_or(0) == 0;
            }
            // A reset, as after a crash, is the end as well; last_words then writes the error that is missing.
            read = server.source.fill(&mut session.server.input), if read_server => {
                session.server.ended = read.unwrap_or(0) == 0;
            }
            written = client.sink.drain(&mut session.client.output), if write_client => {
                term.heard();
                if let Err(error) = written {
                    // The client does not read any more; what it has sent before is still read and done.
                    client.sink.give_up(&mut session.client.output);
                    lost(error);
                }
            }
            () = moment(gives_up) => return Err(End::Client),
            () = term.change() => {}
            written = server.sink.drain(&mut session.server.output), if write_server => {
                if written.is_err() {
                    // The server is gone; what it said before may still be there to be read.
                    server.sink.give_up(&mut session.server.output);
                }
            }
            () = moment(next_look) => {}
            done = done(performing) => {
                *performing = None;
                session.done(done);
            }
            () = session.fence.revoked.notified() => session.revoked(),
        }
        Ok(())
    }
}

/// The time for the session, which has no clock.
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Waits for the end of the task, or for ever. Cancel-safe.
async fn done(performing: &mut Option<Performing>) -> Done {
    match performing {
        Some(performing) => performing.done().await,
        None => std::future::pending().await,
    }
}

/// Waits for that moment, or for ever. Cancel-safe.
pub async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
