//! The end of a session: orders from outside (the shutdown of the proxy, the idle timeout, KILL, PAUSE, and revocations), the timer
//! of its deadlines, its last message to the client, and the end of both connections.
//!
//! Must never end a session in a transaction, unless the proxy's time is up or an operator ends that session. Must never let a
//! deadline pass unnoticed; the timer may fire too early.

use super::driver::{Driver, Leftover, Socket};
use super::upstream;
use crate::relay;
use crate::state::context::SessionHost;
use crate::state::lifecycle::{FAREWELL, Orders, Phase, session_ends, session_killed, session_replaced};
use crate::state::sessions::SessionRecord;
use fencegate_fence::CutOff;
use fencegate_fence::session::SessionFence;
use fencegate_session::rejection::{CutOffOutcome, cut_off};
use fencegate_session::{End, Session};
use fencegate_wire::error::{ErrorText, field};
use fencegate_wire::frame::body;
use fencegate_wire::startup;
use fencegate_wire::tag::frontend;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// An order to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The orders to all sessions have changed.
    Orders,
    /// An operator or another primary ends the session.
    Kill,
    /// A newer token has revoked an admission.
    Revoked,
}

/// State that determines when a session has to end.
pub struct Term {
    orders: watch::Receiver<Orders>,
    /// The orders as last seen.
    now: Orders,
    kill: CancellationToken,
    /// [`Signal::Kill`] has arrived. Cheaper to read than the token.
    is_killed: bool,
    is_replaced: Arc<AtomicBool>,
    fence: Arc<SessionFence>,
    /// One future per signal. The session checks for signals with each message, and polls only the futures that were
    /// woken.
    signals: FuturesUnordered<Pin<Box<dyn Future<Output = Signal> + Send>>>,
    /// The futures have to be polled even if nothing has woken the session.
    is_due: bool,
    alarm: Alarm,
    database: String,
    /// Start of the idle time; None if not idle, or without an idle timeout.
    idle_since: Option<Instant>,
    /// Time since which the session's time is up.
    over_since: Option<Instant>,
}

impl Term {
    /// A session that starts now.
    pub fn new(mut orders: watch::Receiver<Orders>, session: &SessionRecord) -> Self {
        let now = orders.borrow_and_update().clone();
        let (kill, fence, database) = (session.kill.clone(), session.fence.clone(), session.database.clone());
        let is_replaced = session.is_replaced.clone();
        let (signals, alarm) = (FuturesUnordered::new(), Alarm::default());
        let mut term = Term {
            orders,
            now,
            kill,
            is_killed: false,
            is_replaced,
            fence,
            signals,
            is_due: true,
            alarm,
            database,
            idle_since: None,
            over_since: None,
        };
        [Signal::Orders, Signal::Kill, Signal::Revoked].into_iter().for_each(|signal| term.listen(signal));
        term
    }

    fn listen(&mut self, signal: Signal) {
        self.is_due = true;
        let (mut orders, kill, fence) = (self.orders.clone(), self.kill.clone(), self.fence.clone());
        self.signals.push(match signal {
            Signal::Orders => Box::pin(async move {
                // The proxy outlives its sessions, so this does not fail.
                orders.changed().await.ok();
                signal
            }),
            Signal::Kill => Box::pin(async move {
                kill.cancelled().await;
                signal
            }),
            Signal::Revoked => Box::pin(async move {
                fence.revoked.notified().await;
                signal
            }),
        });
    }

    /// True if the database is paused.
    pub fn is_paused(&self) -> bool {
        self.now.paused.contains(&self.database)
    }

    /// Records that the client has sent or read something.
    pub fn record_activity(&mut self) {
        self.idle_since = self.idle_since.map(|_| Instant::now());
    }

    /// True if the time is up.
    pub fn is_over(&self) -> bool {
        self.now.phase == Phase::Ending || self.kill.is_cancelled()
    }

    /// Why the session has to end now, if it has to. `is_idle`: the session is outside a transaction, and no request is
    /// pending.
    pub fn end(&mut self, is_idle: bool) -> Option<End> {
        if self.orders.has_changed().unwrap_or(false) {
            self.look();
        }
        if self.is_killed {
            return Some(if self.is_replaced.load(Ordering::SeqCst) { End::Replaced } else { End::Killed });
        }
        // A held session cannot send anything.
        let idle_timeout = self.now.idle_timeout.filter(|_| !self.is_paused());
        match (self.now.phase, idle_timeout) {
            (Phase::Ending, _) => return Some(End::Shutdown),
            (Phase::Draining, _) => {
                self.idle_since = None;
                return is_idle.then_some(End::Shutdown);
            }
            (Phase::Running, None) => self.idle_since = None,
            (Phase::Running, Some(_)) if !is_idle => self.idle_since = None,
            (Phase::Running, Some(_)) => {
                self.idle_since.get_or_insert_with(Instant::now);
            }
        }
        self.idle_until().is_some_and(|until| until <= Instant::now()).then_some(End::IdleTimeout)
    }

    /// The next signal.
    pub fn poll_signal(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        if !relay::take_woken() && !self.is_due {
            return Poll::Pending;
        }
        let Poll::Ready(Some(signal)) = self.signals.poll_next_unpin(context) else {
            self.is_due = false;
            return Poll::Pending;
        };
        match signal {
            Signal::Orders => self.look(),
            Signal::Kill => self.is_killed = true,
            Signal::Revoked => {}
        }
        self.listen(signal);
        Poll::Ready(signal)
    }

    /// Waits until the result of [`Self::end`] may have changed. Cancel-safe.
    pub async fn change(&mut self) {
        poll_fn(|context| {
            let signal = self.poll_signal(context);
            let is_over = self.idle_until().is_some_and(|until| self.alarm.poll_until(until, context).is_ready());
            if signal.is_ready() || is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Waits until the time limit for the session's end has passed. It starts when the proxy grants no more time.
    /// Cancel-safe.
    pub async fn farewell_over(&mut self) {
        loop {
            self.look();
            match self.over_since {
                Some(since) => return sleep_until(since + FAREWELL).await,
                // Do not use the alarm: after an idle timeout, its time has already passed.
                None => drop(poll_fn(|context| self.poll_signal(context)).await),
            }
        }
    }

    fn look(&mut self) {
        self.now = self.orders.borrow_and_update().clone();
        if self.is_over() {
            self.over_since.get_or_insert_with(Instant::now);
        }
    }

    /// Time at which the session will have been idle for too long, unless it becomes active.
    pub fn idle_until(&self) -> Option<Instant> {
        Some(self.idle_since? + self.now.idle_timeout?)
    }
}

/// A timer that is created on first use: most sessions wait for nothing.
#[derive(Default)]
pub struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready at that time, or earlier if an earlier time was requested before.
    pub fn poll_until(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if at < sleep.deadline() {
            sleep.as_mut().reset(at);
        }
        let rings = sleep.as_mut().poll(context);
        if rings.is_ready() {
            self.0 = None;
        }
        rings
    }
}

/// Time limit for a client to read its remaining output, after which the rest is discarded.
const LAST_WORDS: Duration = Duration::from_secs(300);

/// Time limit for the server to accept a Terminate message.
const LEAVE: Duration = Duration::from_secs(1);

/// admin_shutdown: the error of a process that a drain or an operator ends with pg_terminate_backend.
const ENDED_BY_COMMAND: &[u8] = b"57P01";

impl Driver {
    /// Writes the last message to the client, and closes. Returns the work that remains after that.
    pub async fn last_words(mut self: Box<Self>, end: End) -> (End, Option<Leftover>) {
        let end = match self.session.client_fault() {
            Some(why) => End::ClientFault(why),
            None => end,
        };
        let (end, text) = match end {
            // The server closes the connection after the client's Terminate.
            End::Server if self.session.is_terminating() && !self.session.is_in_flight() => (End::Client, None),
            End::Server => self.lost_server().await,
            End::ClientFault(why) => {
                let text = ErrorText::new("08P01", format!("protocol error: {why}"));
                (End::ClientFault(why), Some(text))
            }
            End::ServerFault(why) => {
                let text = ErrorText::new("08P01", format!("the server broke the protocol: {why}"));
                (End::ServerFault(why), Some(text))
            }
            // The server's message.
            End::IdleTimeout => {
                let text = ErrorText::new("57P05", "terminating connection due to idle-session timeout");
                (End::IdleTimeout, Some(text.hint("The session exceeded the proxy's idle_timeout. Connect again.")))
            }
            End::Shutdown => (End::Shutdown, Some(session_ends())),
            End::Killed => (End::Killed, Some(session_killed())),
            End::Replaced => (End::Replaced, Some(session_replaced())),
            other => (other, None),
        };
        if matches!(end, End::IdleTimeout | End::Shutdown | End::Killed | End::Replaced) {
            // A server that does not read Terminate finds its socket closed.
            tokio::time::timeout(LEAVE, self.leave_server()).await.ok();
        }
        if let Some(text) = text {
            self.session.send_last(&text, &end);
        }
        self.session.release_room();
        // A client that has disconnected or does not read misses the message. The proxy does not wait for it.
        tokio::select! {
            _ = tokio::time::timeout(LAST_WORDS, self.client.close(&mut self.session.client)) => {}
            () = self.term.farewell_over() => {}
        }
        self.count_bytes();
        let end = match (end, self.client_lost.take()) {
            // The client closed the connection without TLS's close_notify.
            (End::Client, Some(error))
                if !self.session.is_terminating() && error.kind() != io::ErrorKind::UnexpectedEof =>
            {
                End::ClientLost(error)
            }
            (end, _) => end,
        };
        let leftover = self.session.defines_after_its_end().then(|| {
            let unfinished = self.host().context.shared_database().unfinished.clone();
            let leftover = unfinished.track_future(until_the_server_ends(self.server, self.session));
            Box::pin(leftover) as Leftover
        });
        (end, leftover)
    }

    /// Stops the session's work at the server: cancels its current statement and sends Terminate.
    async fn leave_server(&mut self) {
        let session = &mut self.session;
        let SessionHost { context, record } = &session.host;
        let cancel = startup::cancel_request(&record.cancel_key);
        if session.is_busy()
            && let Err(error) = upstream::cancel(context.shared(), &record.server, cancel).await
        {
            tracing::warn!(session = record.number, %error, "statement_not_cancelled");
        }
        if !session.take_back_unsent() {
            session.put_terminate();
        }
        // If this fails, the server is gone.
        self.server.sink.flush(&mut session.server.output).await.ok();
        self.server.close(&mut session.server).await.ok();
    }

    /// The server connection has ended unexpectedly. If a newer token cut the session off, reports this as the reason:
    /// the process was terminated by command, or could not send a reason.
    async fn lost_server(&mut self) -> (End, Option<ErrorText>) {
        self.host().context.shared().servers.request_look();
        let said = self.session.last_error();
        let may_be_cut_off = said.as_ref().is_none_or(|error| field(body(error), b'C') == Some(ENDED_BY_COMMAND));
        if may_be_cut_off && let Some(by) = self.host().context.cut_off_by(self.session.fence()).await {
            let outcome = self.session.cut_off();
            log_cut_off(&self.host().record, &by, outcome);
            self.host().context.keep_cut_off(&self.host().record, &by, outcome.name());
            if !self.session.is_in_flight() && !self.wants_an_answer().await {
                return (End::Client, None);
            }
            let text = cut_off(&by.resource, by.presented, by.highest, outcome);
            return (End::CutOff(by), Some(text));
        }
        match said {
            Some(error) => {
                self.session.client.output.extend_from_slice(&error);
                (End::Server, None)
            }
            // The server closed the connection because the client had: no reason is needed.
            None if self.closed => (End::Client, None),
            None => (End::Server, Some(ErrorText::new("08006", "server closed the connection unexpectedly"))),
        }
    }

    /// Waits until the client sends something, because drivers show an error only as a response. A silent client
    /// receives the error when it has been idle for too long, or when the proxy stops. Returns false if the client has
    /// disconnected.
    async fn wants_an_answer(&mut self) -> bool {
        let Driver { session, client, term, .. } = self;
        let side = &mut session.client;
        while side.input.is_empty() && !side.ended {
            if term.end(true).is_some() {
                return true;
            }
            let is_pending = client.sink.is_pending(&side.output);
            tokio::select! {
                read = client.source.fill(&mut side.input) => match read {
                    Ok(read) => side.ended |= read == 0,
                    Err(_) => return false,
                },
                written = client.sink.flush(&mut side.output), if is_pending => if written.is_err() { return false },
                () = term.change() => {}
            }
        }
        side.input.first().is_some_and(|tag| *tag != frontend::TERMINATE)
    }
}

fn log_cut_off(record: &SessionRecord, by: &CutOff, outcome: CutOffOutcome) {
    let SessionRecord { number: session, user, database, address, .. } = record;
    tracing::warn!(
        session,
        user,
        database,
        address,
        application_name = record.application_name(),
        resource = by.resource,
        presented = by.presented.token,
        highest = by.highest.token,
        outcome = outcome.name(),
        "session_cut_off"
    );
}

/// The server may still execute earlier messages and commit definitions. They count until its process ends, however
/// long that takes. Only the shutdown of the proxy does not wait for it.
async fn until_the_server_ends(mut socket: Socket, mut session: Session<SessionHost>) {
    let Socket { source, sink } = &mut socket;
    let side = &mut session.server;
    let mut is_closed = false;
    // The server may stop reading until its responses are read.
    loop {
        tokio::select! {
            // If this fails, the server is gone, and reading reports the end.
            _ = sink.close(&mut side.output), if !is_closed => is_closed = true,
            read = source.fill(&mut side.input) => match read {
                Ok(1..) => side.input.clear(),
                _ => break,
            },
        }
    }
    session.server_gone();
}
