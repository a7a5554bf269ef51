//! The executor of the relay threads. Each thread polls its sessions and waits for all their sockets in one call.
//!
//! A session is a future. The thread polls it when one of its sockets is ready, or when its waker is called. The thread handles
//! all events of one wait before the next wait. tokio's runtime spends a third of a transaction's instructions on this:
//! docs/internals/decisions/053-threads-that-only-relay.md.
//!
//! Owns the sessions of a thread and the readiness of their sockets. A session stays on its thread. If a session has to block,
//! another thread continues with the other sessions.
//!
//! Must never
//! - poll a session on two threads at once;
//! - end a thread because a session panics;
//! - use an event for anything but another attempt: an event may belong to an earlier session in the same place.
//!
//! Sockets of a session do not register the waker. Poll them only from the session's own future, not from a spawned task or a
//! `FuturesUnordered`.

mod socket;

pub use socket::{Readiness, Relayed};

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::runtime::Handle;

/// Events that one wait returns at most.
const MAX_EVENTS: usize = 256;

/// The token of wake-ups. Other tokens are twice the place of a session, plus 1 for its second socket.
const WAKE: Token = Token(usize::MAX);

/// Sockets of a session: those of the client and of the server.
const SOCKETS: usize = 2;

type SessionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session with the handles that a poll needs. They move with the session, because cloning them takes longer.
struct Session {
    future: SessionFuture,
    waker: Waker,
    inbox: Arc<Inbox>,
}

/// A relay thread.
pub struct Relay(Arc<Inbox>);

/// Messages from other threads.
struct Inbox {
    messages: Mutex<Messages>,
    waker: mio::Waker,
}

#[derive(Default)]
struct Messages {
    /// New sessions.
    begun: Vec<SessionFuture>,
    /// Places of sessions whose waker was called.
    woken: Vec<usize>,
    /// Sessions that no longer block, with their places. None: the session has ended.
    unblocked: Vec<(usize, Option<Session>)>,
}

impl Inbox {
    fn send(&self, add: impl FnOnce(&mut Messages)) {
        add(&mut self.messages.lock());
        // Writing to an eventfd does not fail.
        self.waker.wake().ok();
    }
}

/// The state of a relay thread. If a session blocks, another thread continues with it.
struct Core {
    poll: mio::Poll,
    events: Events,
    inbox: Arc<Inbox>,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Places of the sessions to poll.
    ready: VecDeque<usize>,
    /// Place of the session that is being polled.
    current: usize,
}

struct Place {
    /// None if there is no session, or while it is polled.
    session: Option<Session>,
    wakeup: Arc<Wakeup>,
    /// The waker was called since the session last called [`take_woken`].
    is_woken: bool,
    /// The place is in `ready`.
    is_ready: bool,
    sockets: [Option<Arc<Readiness>>; SOCKETS],
}

struct Wakeup {
    place: usize,
    /// The waker was called since the last poll began.
    is_woken: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wakeup {
    fn take(&self) -> bool {
        // If the load misses a call, that call's message leads to another poll.
        self.is_woken.load(Ordering::Relaxed) && self.is_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.inbox.send(|messages| messages.woken.push(self.place));
        }
    }
}

thread_local! {
    /// The thread's state while it polls a session that has not blocked.
    static CORE: Cell<Option<Box<Core>>> = const { Cell::new(None) };
    /// True if the waker of the session that is being polled was called since the session last called [`take_woken`].
    /// None if no relay polls a session here.
    static IS_WOKEN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// None if no relay polls a session here, or the session has blocked.
fn with_core<R>(act: impl FnOnce(&mut Core) -> R) -> Option<R> {
    let mut core = CORE.take()?;
    let result = act(&mut core);
    CORE.set(Some(core));
    Some(result)
}

impl Relay {
    /// Starts a relay on a blocking thread of this runtime. Its sessions use the timers of the runtime.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(runtime: &Handle) -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        let inbox = Arc::new(Inbox { messages: Mutex::default(), waker });
        let core = Core {
            poll,
            events: Events::with_capacity(MAX_EVENTS),
            inbox: inbox.clone(),
            places: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            current: 0,
        };
        runtime.spawn_blocking(move || run(Box::new(core)));
        Ok(Relay(inbox))
    }

    /// Runs a session.
    pub fn begin(&self, session: impl Future<Output = ()> + Send + 'static) {
        let session = Box::pin(session);
        self.0.send(|messages| messages.begun.push(session));
    }
}

/// Does work that takes long. Meanwhile another thread continues with the other sessions.
pub fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
    match CORE.take() {
        Some(core) => {
            // A later call of the waker leads to another poll.
            IS_WOKEN.set(Some(true));
            // If the system starts no more threads, this one continues after the work.
            Handle::current().spawn_blocking(move || run(core));
            work()
        }
        None => tokio::task::block_in_place(work),
    }
}

/// Returns false if only sockets have woken the session since the last call.
pub fn take_woken() -> bool {
    let is_woken = IS_WOKEN.get();
    if is_woken == Some(true) {
        IS_WOKEN.set(Some(false));
    }
    is_woken != Some(false)
}

/// Lets the other sessions of the thread go first.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        if with_core(|core| core.make_ready(core.current)).is_none() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

/// Registers a socket of the session that is being polled, which must not have blocked.
///
/// # Errors
/// The system's error, or no relay polls a session here.
pub fn register(socket: OwnedFd) -> io::Result<Relayed> {
    with_core(|core| core.register(socket)).unwrap_or(Err(io::ErrorKind::Unsupported.into()))
}

/// Registers for other events, if the session that is being polled has not blocked.
fn reregister(socket: &OwnedFd, token: Token, interest: Interest) -> Option<io::Result<()>> {
    with_core(|core| core.poll.registry().reregister(&mut SourceFd(&socket.as_raw_fd()), token, interest))
}

fn run(mut core: Box<Core>) {
    loop {
        core.wait();
        for _ in 0..core.ready.len() {
            let Some(place) = core.ready.pop_front() else { break };
            match poll_session(core, place) {
                Some(still) => core = still,
                None => return,
            }
        }
    }
}

/// Returns None if the session has blocked, and another thread continues.
fn poll_session(mut core: Box<Core>, place: usize) -> Option<Box<Core>> {
    let it = &mut core.places[place];
    it.is_ready = false;
    let Some(Session { mut future, waker, inbox }) = it.session.take() else { return Some(core) };
    let was_woken = std::mem::take(&mut it.is_woken);
    IS_WOKEN.set(Some(it.wakeup.take() | was_woken));
    core.current = place;
    CORE.set(Some(core));
    // The panic hook has logged the panic.
    let poll = || future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
    let is_over = catch_unwind(AssertUnwindSafe(poll)).unwrap_or(true);
    let future = if is_over { discard(future) } else { Some(future) };
    let is_woken = IS_WOKEN.take() == Some(true);
    match CORE.take() {
        Some(mut core) => {
            core.places[place].is_woken = is_woken;
            core.put_back(place, future.map(|future| Session { future, waker, inbox }));
            Some(core)
        }
        None => {
            let session = future.map(|future| Session { future, waker, inbox: inbox.clone() });
            inbox.send(|messages| messages.unblocked.push((place, session)));
            None
        }
    }
}

fn discard(future: SessionFuture) -> Option<SessionFuture> {
    catch_unwind(AssertUnwindSafe(|| drop(future))).ok();
    None
}

impl Core {
    /// Waits for events and messages. Queues their sessions.
    fn wait(&mut self) {
        let timeout = (!self.ready.is_empty()).then_some(Duration::ZERO);
        // Fails only if a signal interrupts it, with no events.
        self.poll.poll(&mut self.events, timeout).ok();
        let mut has_messages = false;
        for event in &self.events {
            match event.token() {
                WAKE => has_messages = true,
                Token(token) => {
                    let (place, socket) = (token / SOCKETS, token % SOCKETS);
                    let Some(it) = self.places.get_mut(place) else { continue };
                    if it.sockets[socket].as_ref().is_some_and(|readiness| readiness.note(event)) {
                        it.make_ready(place, &mut self.ready);
                    }
                }
            }
        }
        if has_messages {
            self.take_messages();
        }
    }

    fn take_messages(&mut self) {
        let Messages { begun, woken, unblocked } = std::mem::take(&mut *self.inbox.messages.lock());
        for (place, session) in unblocked {
            let it = &mut self.places[place];
            it.is_woken = true;
            it.sockets.iter().flatten().for_each(|readiness| readiness.doubt());
            self.put_back(place, session);
            self.make_ready(place);
        }
        woken.into_iter().for_each(|place| self.make_ready(place));
        for future in begun {
            let place = self.free.pop().unwrap_or(self.places.len());
            let wakeup = Arc::new(Wakeup { place, is_woken: AtomicBool::new(true), inbox: self.inbox.clone() });
            let waker = Waker::from(wakeup.clone());
            let session = Some(Session { future, waker, inbox: self.inbox.clone() });
            let it = Place { session, wakeup, is_woken: true, is_ready: false, sockets: [None, None] };
            match self.places.get_mut(place) {
                Some(free) => *free = it,
                None => self.places.push(it),
            }
            self.make_ready(place);
        }
    }

    fn make_ready(&mut self, place: usize) {
        if let Some(it) = self.places.get_mut(place) {
            it.make_ready(place, &mut self.ready);
        }
    }

    /// Ends a poll. None: the session has ended.
    fn put_back(&mut self, place: usize, session: Option<Session>) {
        let it = &mut self.places[place];
        if session.is_none() {
            it.sockets = [None, None];
            self.free.push(place);
        }
        it.session = session;
    }

    fn register(&mut self, socket: OwnedFd) -> io::Result<Relayed> {
        let place = &mut self.places[self.current];
        let index = place.sockets.iter().position(Option::is_none).ok_or(io::ErrorKind::InvalidInput)?;
        let token = Token(self.current * SOCKETS + index);
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)?;
        let readiness = Arc::new(Readiness::default());
        place.sockets[index] = Some(readiness.clone());
        Ok(Relayed::new(socket, token, readiness))
    }
}

impl Place {
    fn make_ready(&mut self, place: usize, ready: &mut VecDeque<usize>) {
        if !self.is_ready {
            self.is_ready = true;
            ready.push_back(place);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
