//! Threads that relay: each runs the sessions that it was given, and waits for all their sockets in one call.
//!
//! A session is a future. The thread polls it when one of its sockets is ready, or when something else wakes it. Everything
//! that is ready after one wait is handled before the next. tokio's runtime does the same for a third of the proxy's
//! instructions: docs/internals/decisions/070.
//!
//! Owns the readiness of the sockets of sessions. A session stays on its thread. Only if it has to block, another thread
//! goes on with the others. Must never poll a session on two threads at once.

mod socket;

pub use socket::Relayed;

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use parking_lot::Mutex;
use socket::Readiness;
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

type Session = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A thread that relays.
pub struct Relay(Arc<Inbox>);

/// Messages from other threads.
struct Inbox {
    news: Mutex<News>,
    waker: mio::Waker,
}

#[derive(Default)]
struct News {
    begun: Vec<Session>,
    /// Places of sessions that were woken.
    woken: Vec<usize>,
    /// Sessions that have blocked, unless they have ended, and their places.
    back: Vec<(usize, Option<Session>)>,
}

impl Inbox {
    fn tell(&self, tell: impl FnOnce(&mut News)) {
        tell(&mut self.news.lock());
        // Fails only if the system has no memory for the counter.
        self.waker.wake().ok();
    }
}

/// The state of the thread, which another thread continues if a session blocks.
struct Core {
    poll: mio::Poll,
    events: Events,
    inbox: Arc<Inbox>,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Places of the sessions to poll.
    ready: VecDeque<usize>,
    /// Place of the session that is polled.
    current: usize,
}

struct Place {
    /// None while the session is polled, or if there is none.
    session: Option<Session>,
    waker: Waker,
    wakeup: Arc<Wakeup>,
    /// It is among those to poll.
    is_ready: bool,
    sockets: [Option<Arc<Readiness>>; SOCKETS],
}

struct Wakeup {
    place: usize,
    is_woken: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.inbox.tell(|news| news.woken.push(self.place));
        }
    }
}

thread_local! {
    /// The thread's state while it polls a session.
    static CORE: Cell<Option<Box<Core>>> = const { Cell::new(None) };

    /// The session that is polled was woken by something other than its sockets.
    static IS_WOKEN: Cell<bool> = const { Cell::new(true) };
}

impl Relay {
    /// Starts a thread of that runtime, whose timers its sessions use.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(runtime: &Handle) -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        let inbox = Arc::new(Inbox { news: Mutex::default(), waker });
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
        self.0.tell(|news| news.begun.push(session));
    }
}

/// Does work that takes long. Meanwhile another thread goes on with the other sessions.
pub fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
    match CORE.take() {
        Some(core) => {
            Handle::current().spawn_blocking(move || run(core));
            work()
        }
        None => tokio::task::block_in_place(work),
    }
}

/// Returns false if only the sockets of the session have woken it.
pub fn is_woken() -> bool {
    IS_WOKEN.get()
}

/// Lets the other sessions of the thread go first.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        match CORE.take() {
            Some(mut core) => {
                core.make_ready(core.current);
                CORE.set(Some(core));
            }
            None => context.waker().wake_by_ref(),
        }
        Poll::Pending
    })
    .await;
}

/// Registers a socket of the session that is polled.
///
/// # Errors
/// The system's error, or no relay polls a session here.
pub fn register(socket: OwnedFd) -> io::Result<Relayed> {
    let mut core = CORE.take().ok_or(io::ErrorKind::Unsupported)?;
    let registered = core.register(socket);
    CORE.set(Some(core));
    registered
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

/// None if another thread goes on with the others.
fn poll_session(mut core: Box<Core>, place: usize) -> Option<Box<Core>> {
    let it = &mut core.places[place];
    it.is_ready = false;
    let Some(mut session) = it.session.take() else { return Some(core) };
    IS_WOKEN.set(it.wakeup.is_woken.load(Ordering::Relaxed) && it.wakeup.is_woken.swap(false, Ordering::AcqRel));
    let waker = it.waker.clone();
    core.current = place;
    let inbox = core.inbox.clone();
    CORE.set(Some(core));
    // The hook of panics has logged it.
    let poll = || session.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
    let is_over = catch_unwind(AssertUnwindSafe(poll)).unwrap_or(true);
    let session = if is_over { discard(session) } else { Some(session) };
    match CORE.take() {
        Some(mut core) => {
            core.put_back(place, session);
            Some(core)
        }
        None => {
            inbox.tell(|news| news.back.push((place, session)));
            None
        }
    }
}

fn discard(session: Session) -> Option<Session> {
    catch_unwind(AssertUnwindSafe(|| drop(session))).ok();
    None
}

impl Core {
    /// Waits until a session is to be polled.
    fn wait(&mut self) {
        let timeout = (!self.ready.is_empty()).then_some(Duration::ZERO);
        if let Err(error) = self.poll.poll(&mut self.events, timeout)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "sockets_not_polled");
        }
        let mut has_news = false;
        for event in &self.events {
            match event.token() {
                WAKE => has_news = true,
                Token(token) => {
                    let (place, socket) = (token / SOCKETS, token % SOCKETS);
                    let Some(it) = self.places.get_mut(place) else { continue };
                    if let Some(readiness) = &it.sockets[socket] {
                        readiness.note(event);
                        it.make_ready(place, &mut self.ready);
                    }
                }
            }
        }
        if has_news {
            self.take_news();
        }
    }

    fn take_news(&mut self) {
        let News { begun, woken, back } = std::mem::take(&mut *self.inbox.news.lock());
        for (place, session) in back {
            self.places[place].sockets.iter().flatten().for_each(|readiness| readiness.doubt());
            self.put_back(place, session);
            self.make_ready(place);
        }
        woken.into_iter().for_each(|place| self.make_ready(place));
        for session in begun {
            let place = self.free.pop().unwrap_or(self.places.len());
            let wakeup = Arc::new(Wakeup { place, is_woken: AtomicBool::new(true), inbox: self.inbox.clone() });
            let waker = Waker::from(wakeup.clone());
            let it = Place { session: Some(session), waker, wakeup, is_ready: false, sockets: [None, None] };
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

    /// The session was polled. None: it is over.
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
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), token, both)?;
        let readiness = Arc::new(Readiness::default());
        place.sockets[index] = Some(readiness.clone());
        Ok(Relayed::new(socket, readiness))
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
