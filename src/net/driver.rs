//! The driver of a session: it owns both sockets, fills and drains the session's buffers, performs the session's tasks,
//! and wakes it.
//!
//! Must never read more from one side than the other side's buffer can hold.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a driver closes both sockets.

use super::peer::{Peer, Sink, Source, allocate, recycle};
use super::performing::Performing;
use super::term::{Alarm, Signal, Term};
use crate::relay;
use crate::state::context::SessionHost;
use crate::state::room::LOOK_AGAIN;
use fencegate_session::{End, HIGH_WATER, Session, Settings, Side, Step};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for the statements of a client that has disconnected: nothing signals their completion.
const AFTER_HANG_UP: Duration = Duration::from_secs(10);

/// Time after which a busy session yields to other sessions of its thread.
const AT_ONCE: Duration = Duration::from_millis(5);

/// Number of turns without a wait after which the session yields, too.
const TURNS: usize = 32;

/// Work that remains after the end of a session: waiting for the end of its server process.
pub type Leftover = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session with its sockets.
pub struct Driver {
    pub session: Session<SessionHost>,
    pub client: Socket,
    pub server: Socket,
    /// The task that the session has requested.
    performing: Option<Performing>,
    /// Error of the client's socket, if it failed.
    pub client_lost: Option<io::Error>,
    /// Set when the client no longer reads: the session ends at this time at the latest.
    hang_up: Option<Instant>,
    alarm: Alarm,
    /// Turns since the session last waited.
    turns: usize,
    /// True once the proxy has closed its sending half to the server.
    pub closed: bool,
    /// Orders from outside that may end the session.
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

    /// Moves the socket to the relay that polls the session.
    fn relayed(self) -> io::Result<Self> {
        let (source, sink) = self.source.relayed(self.sink)?;
        Ok(Socket { source, sink })
    }

    /// Closes the sending half after the side's output. Cancel-safe.
    pub async fn close(&mut self, side: &mut Side) -> io::Result<()> {
        self.sink.close(&mut side.output).await
    }
}

impl Driver {
    /// A session whose first ReadyForQuery waits in the client's output.
    pub fn new(host: SessionHost, client: Peer, server: Peer, started: Settings) -> Self {
        let orders = host.context.shared().orders.subscribe();
        let term = Term::new(orders, &host.record);
        let ((client, client_side), (server, server_side)) = (Socket::new(client), Socket::new(server));
        let session = Session::new(host, client_side, server_side, started, now());
        Driver {
            session,
            client,
            server,
            performing: None,
            client_lost: None,
            hang_up: None,
            alarm: Alarm::default(),
            turns: 0,
            closed: false,
            term,
        }
    }

    /// The session's record, and the policies and database that apply to it.
    pub fn host(&self) -> &SessionHost {
        &self.session.host
    }

    /// Moves the sockets to the relay that polls the session.
    fn relayed(self: Box<Self>) -> io::Result<Box<Self>> {
        let this = *self;
        Ok(Box::new(Driver { client: this.client.relayed()?, server: this.server.relayed()?, ..this }))
    }

    /// Runs the session to its end, at a relay. The future stays boxed, and reserves memory for the shutdown steps only then.
    /// Returns the work that remains after that.
    pub async fn run(self: Box<Self>) -> (End, Option<Leftover>) {
        let mut this = match self.relayed() {
            Ok(this) => this,
            Err(error) => return (End::ClientLost(error), None),
        };
        let end = loop {
            if let Err(end) = this.turn().await {
                break end;
            }
        };
        if this.session.server.ended {
            this.session.definitions_ended();
        }
        // The last message may take minutes. Leave the queues for room and permits first.
        this.performing = None;
        Box::pin(this.last_words(end)).await
    }

    /// Lets the session handle its input, then waits for an event. Cancel-safe.
    async fn turn(&mut self) -> Result<(), End> {
        let goes_on = self.handle()?;
        self.count_bytes();
        match self.term.end(self.session.is_idle()) {
            // Do not lose bytes that have just arrived.
            Some(end) if !self.receives_more().await => Err(end),
            Some(_) => Ok(()),
            None if goes_on || self.turns >= TURNS => {
                self.turns = 0;
                relay::yield_now().await;
                Ok(())
            }
            None => poll_fn(|context| self.poll_event(context)).await,
        }
    }

    /// Returns true if there is more to handle after other sessions of the thread have run.
    fn handle(&mut self) -> Result<bool, End> {
        let Session { client, server, .. } = &mut self.session;
        for (from, to) in [(&client.input, &mut server.output), (&server.input, &mut client.output)] {
            if !from.is_empty() {
                allocate(to);
            }
        }
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

    /// Checks once whether an idle client has sent something in time.
    async fn receives_more(&mut self) -> bool {
        if !self.session.is_idle() || self.term.is_over() {
            return false;
        }
        self.term.record_activity();
        let Driver { session, client, .. } = self;
        let side = &mut session.client;
        let polled = poll_fn(|context| Poll::Ready(client.source.poll_fill(context, &mut side.input))).await;
        let Poll::Ready(Ok(read)) = polled else { return false };
        side.ended |= read == 0;
        true
    }

    pub fn count_bytes(&self) {
        let SessionHost { context, record } = &self.session.host;
        record.passed.bytes(self.client.source.bytes, self.client.sink.bytes, &context.shared().metrics);
    }

    /// Writes pending output and records events. Ready when the session has input to handle.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let has_room = self.poll_writes(context);
        let has_read = self.poll_reads(context);
        let is_signaled = self.poll_signals(context);
        match self.poll_alarm(context) {
            Poll::Pending if has_room || has_read || is_signaled => {
                self.turns += 1;
                Poll::Ready(Ok(()))
            }
            alarm => {
                self.turns = 0;
                let Session { client, server, .. } = &mut self.session;
                [&mut client.output, &mut server.output].into_iter().for_each(recycle);
                alarm
            }
        }
    }

    /// Writes to both sides. Returns true if a full buffer blocked the session and has been partly drained.
    fn poll_writes(&mut self, context: &mut Context<'_>) -> bool {
        let Driver { session, client, server, client_lost, hang_up, closed, term, .. } = self;
        let was_held_up = session.is_held_up();
        // Pending client input waits for room in this buffer; the next step handles it.
        let has_more = session.server.output.len() >= HIGH_WATER;
        let before = client.sink.bytes + server.sink.bytes;
        let mut is_lost = false;
        if client.sink.is_pending(&session.client.output) {
            let sent = client.sink.bytes;
            if let Poll::Ready(Err(error)) = client.sink.poll_flush(context, &mut session.client.output) {
                // The client no longer reads. Its earlier input is still read and executed.
                client.sink.give_up(&mut session.client.output);
                client_lost.get_or_insert(error);
                hang_up.get_or_insert_with(|| Instant::now() + AFTER_HANG_UP);
                is_lost = true;
            }
            if client.sink.bytes != sent {
                term.record_activity();
            }
        }
        // Unhandled input that nothing holds back is an incomplete message.
        let client_done = session.client.ended && !session.is_held_back();
        if (client_done || session.is_terminating()) && !has_more && !*closed {
            *closed = true;
            server.sink.end();
        }
        if server.sink.is_pending(&session.server.output)
            && let Poll::Ready(Err(_)) = server.sink.poll_flush(context, &mut session.server.output)
        {
            // The server is gone. Its earlier responses may still be readable.
            server.sink.give_up(&mut session.server.output);
            is_lost = true;
        }
        is_lost || was_held_up && client.sink.bytes + server.sink.bytes != before
    }

    /// Reads from both sides, as far as the session has room. Returns true if the session has input to handle.
    fn poll_reads(&mut self, context: &mut Context<'_>) -> bool {
        let Driver { session, client, server, client_lost, hang_up, term, .. } = self;
        let mut has_read = false;
        if !session.server.ended
            && session.client.output.len() < HIGH_WATER
            && let Poll::Ready(read) = server.source.poll_fill(context, &mut session.server.input)
        {
            // A reset, as after a crash, counts as the end too. `last_words` then sends the missing error.
            session.server.ended = read.unwrap_or(0) == 0;
            has_read = true;
        }
        let is_held = term.is_paused() && session.is_idle();
        session.host.context.shared().sessions.hold(&session.host.record, is_held);
        // Beyond this limit, the kernel's buffers fill and the client waits.
        let has_room =
            session.server.output.len() < HIGH_WATER && session.client.input.len() < session.room_for_input();
        if !session.client.ended
            && !is_held
            && has_room
            && let Poll::Ready(read) = client.source.poll_fill(context, &mut session.client.input)
        {
            term.record_activity();
            let read = read.unwrap_or_else(|error| {
                // A reset, as from a client that disconnects without reading. Its earlier input is still executed.
                client_lost.get_or_insert(error);
                hang_up.get_or_insert_with(|| Instant::now() + AFTER_HANG_UP);
                0
            });
            session.client.ended = read == 0;
            has_read = true;
        }
        has_read
    }

    /// Signals the session that its task is done, or that a newer token has revoked an admission. Returns true if there
    /// was a signal.
    fn poll_signals(&mut self, context: &mut Context<'_>) -> bool {
        let Driver { session, performing, term, .. } = self;
        let signal = term.poll_signal(context);
        if let Poll::Ready(Signal::Revoked) = signal {
            session.revoked();
        }
        let Some(Poll::Ready(done)) = performing.as_mut().map(|performing| performing.poll_done(context)) else {
            return signal.is_ready();
        };
        *performing = None;
        session.done(done);
        true
    }

    /// Ready when a deadline has passed: to check whether the session may keep its room or wait longer, or to leave a
    /// client that has hung up.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let next_look = self.session.keeps_room().then(|| Instant::now() + LOOK_AGAIN);
        let wakes = self.session.wakes_at().map(Instant::from_std);
        let (hang_up, idle_until) = (self.hang_up, self.term.idle_until());
        if next_look.is_none() && wakes.is_none() && hang_up.is_none() && idle_until.is_none() {
            return Poll::Pending;
        }
        let Some(at) = [next_look, wakes, hang_up, idle_until].into_iter().flatten().min() else {
            return Poll::Pending;
        };
        if self.alarm.poll_until(at, context).is_pending() {
            return Poll::Pending;
        }
        let gives_up = self.hang_up.is_some_and(|at| at <= Instant::now());
        Poll::Ready(if gives_up { Err(End::Client) } else { Ok(()) })
    }
}

/// The current time, for the session, which has no clock.
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
