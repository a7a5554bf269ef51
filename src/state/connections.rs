//! Counts and limits of client connections.
//!
//! Only counts connections: it holds no session.
//!
//! Owns the counts. Must never let unauthenticated clients take all places, at the proxy or at the server. Must never keep
//! sessions from ending: a cancel request needs no place. Must never count a connection against a user or database before
//! the server has authenticated it: clients that only claim the name would lock others out.

use crate::waiting_connections::{SourceAddress, WaitingConnections};
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

/// Places beyond `max_connections` for the console, so that an operator can connect when all others are taken. Also the
/// maximum number of concurrent console logins.
pub const RESERVED: usize = 3;

/// Maximum number of concurrent logins at the server, never more than half of all places. Further clients wait before
/// the proxy connects to the server for them.
const LOGINS_AT_ONCE: usize = 40;

/// One in this many concurrent logins is reserved for other addresses than the busiest.
const OTHERS_SHARE: usize = 5;

/// Minimum number of connections that may wait, even with few places.
const WAIT_AT_LEAST: usize = 16;

/// Time for a client that keeps other addresses waiting to answer each request of the server. Event loops of honest
/// clients may be busy for seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Interval of the checks of that limit.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All clients' connections.
#[derive(Default)]
pub struct Connections {
    taken: watch::Sender<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The limit on sessions, as of the last call that passed it.
    most: usize,
    /// Connections whose clients have sent nothing yet.
    silent: WaitingConnections,
    /// Connections that have requested encryption but have not sent a startup packet.
    speaking: WaitingConnections,
    /// Connections that wait to log in, by [`LoginKind`].
    queues: [WaitingConnections; 2],
    /// Logins in progress, by connection number.
    logins: HashMap<u64, Login>,
    /// The number of these, by [`LoginKind`].
    under_way: [usize; 2],
    /// Sessions that have logged in.
    sessions: usize,
    /// The sessions of each user, database and address.
    sessions_of: HashMap<SessionGroup, usize>,
}

/// The purpose of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginKind {
    /// A session with the server.
    Session,
    /// The console, with the name of a role in `admin_roles`.
    Console,
}

/// Sessions that count together. The fields are what clients claim in the startup packet, or the source of the
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionGroup {
    /// Sessions of a user.
    User(String),
    /// Sessions in a database.
    Database(String),
    /// Sessions from an address.
    Address(SourceAddress),
}

/// Why a client gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All places are taken by sessions.
    Sessions,
    /// Too many other clients wait to log in.
    Queue,
}

struct Login {
    kind: LoginKind,
    source: SourceAddress,
    /// Time since which the client owes the server an answer.
    owes_since: Option<Instant>,
}

impl Taken {
    fn places(&self) -> usize {
        self.sessions + self.logins.len()
    }

    fn waiting(&self) -> usize {
        self.silent.len() + self.speaking.len() + self.queues.iter().map(WaitingConnections::len).sum::<usize>()
    }

    /// Maximum number of waiting connections.
    fn room(&self) -> usize {
        self.most.max(WAIT_AT_LEAST)
    }

    fn waiting_lists(&mut self) -> impl Iterator<Item = &mut WaitingConnections> {
        [&mut self.silent, &mut self.speaking].into_iter().chain(&mut self.queues)
    }

    /// Removes the connection from the waiting ones.
    fn leave(&mut self, source: SourceAddress, number: u64) {
        self.waiting_lists().for_each(|list| drop(list.remove(source, number)));
    }

    /// Evicts one waiting connection. Silent ones get at most half of the room, so that they cannot evict the others.
    fn make_room(&mut self) -> Option<Arc<Notify>> {
        if self.silent.len() >= self.room().div_ceil(2) {
            return self.silent.pop_longest();
        }
        self.waiting_lists().max_by_key(|list| list.len())?.pop_longest()
    }

    /// Returns true if no place is free and no login will free one.
    fn is_full(&self, kind: LoginKind) -> bool {
        self.sessions >= self.most(kind)
    }

    /// The places of sessions and logins.
    fn most(&self, kind: LoginKind) -> usize {
        self.most + if kind == LoginKind::Console { RESERVED } else { 0 }
    }

    /// Maximum number of concurrent logins.
    fn at_once(&self, kind: LoginKind) -> usize {
        match kind {
            LoginKind::Session => (self.most / 2).clamp(1, LOGINS_AT_ONCE),
            LoginKind::Console => RESERVED,
        }
    }

    fn may_begin(&self, kind: LoginKind) -> bool {
        self.places() < self.most(kind) && self.under_way[kind as usize] < self.at_once(kind)
    }

    /// The addresses with as many logins in progress as one address may have.
    fn at_their_limit(&self, kind: LoginKind) -> HashSet<SourceAddress> {
        let all = self.at_once(kind).min(self.most(kind).saturating_sub(self.sessions));
        let of_one = all.saturating_sub(all.div_ceil(OTHERS_SHARE)).max(1);
        let mut logins: HashMap<SourceAddress, usize> = HashMap::new();
        for login in self.logins.values().filter(|login| login.kind == kind) {
            *logins.entry(login.source).or_default() += 1;
        }
        logins.into_iter().filter(|(_, count)| *count >= of_one).map(|(source, _)| source).collect()
    }

    /// Admits waiting connections to the login, within the limits. If sessions have all places, wakes the waiting
    /// connections to refuse them.
    fn admit(&mut self) {
        for kind in [LoginKind::Session, LoginKind::Console] {
            while self.is_full(kind) || self.may_begin(kind) {
                let at_their_limit = if self.is_full(kind) { HashSet::new() } else { self.at_their_limit(kind) };
                let next = self.queues[kind as usize].pop_next(|source| !at_their_limit.contains(source));
                let Some((source, number, notify)) = next else { break };
                if !self.is_full(kind) {
                    self.logins.insert(number, Login { kind, source, owes_since: None });
                    self.under_way[kind as usize] += 1;
                }
                notify.notify_one();
            }
        }
    }

    /// Records that the login has succeeded.
    fn begin_session(&mut self, number: u64) {
        self.end_login(number);
        self.sessions += 1;
        self.admit();
    }

    fn sessions_in(&self, group: &SessionGroup) -> usize {
        self.sessions_of.get(group).copied().unwrap_or_default()
    }

    fn leave_group(&mut self, group: &SessionGroup) {
        if let Some(sessions) = self.sessions_of.get_mut(group) {
            *sessions -= 1;
            if *sessions == 0 {
                self.sessions_of.remove(group);
            }
        }
    }

    /// Records that the login is over.
    fn end_login(&mut self, number: u64) {
        if let Some(login) = self.logins.remove(&number) {
            self.under_way[login.kind as usize] -= 1;
        }
    }

    /// True if another address waits for this login's place and the client has not answered the server for too long.
    fn is_overdue(&self, number: u64) -> bool {
        let Some(Login { kind, source, owes_since: Some(owes_since) }) = self.logins.get(&number) else { return false };
        if owes_since.elapsed() < ANSWER_LIMIT {
            return false;
        }
        // Console logins use places that others could use.
        let kinds = [LoginKind::Session, LoginKind::Console].into_iter().take(1 + *kind as usize);
        kinds.into_iter().any(|kind| {
            let at_their_limit = self.at_their_limit(kind);
            let waits_for_it = |other: &SourceAddress| other != source && !at_their_limit.contains(other);
            self.queues[kind as usize].sources().any(waits_for_it)
        })
    }
}

/// A connection's share in the counts, until dropped.
pub struct Seat {
    connections: Arc<Connections>,
    number: u64,
    source: SourceAddress,
    notify: Arc<Notify>,
    /// A session, with the groups in which it counts.
    session: Option<Vec<SessionGroup>>,
}

impl Connections {
    /// A client has connected; its number is higher than all earlier ones. If too many connections wait, one is
    /// evicted: honest clients send their startup packets immediately.
    pub fn enter(self: &Arc<Self>, number: u64, source: SourceAddress, most: usize) -> Seat {
        let notify = Arc::new(Notify::new());
        self.taken.send_modify(|taken| {
            taken.most = most;
            while taken.waiting() >= taken.room() {
                let Some(longest) = taken.make_room() else { break };
                longest.notify_one();
            }
            taken.silent.insert(source, number, notify.clone());
        });
        Seat { connections: self.clone(), number, source, notify, session: None }
    }

    /// The number of places in use.
    pub fn places(&self) -> usize {
        self.taken.borrow().places()
    }

    /// Returns when no place is taken. Cancel-safe.
    pub async fn none_left(&self) {
        // This process owns the sender, so the channel stays open.
        self.taken.subscribe().wait_for(|taken| taken.places() == 0).await.ok();
    }
}

impl Seat {
    /// The connection's number in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The address of the client; None: a Unix socket.
    pub fn address(&self) -> Option<SourceAddress> {
        self.source.is_address().then_some(self.source)
    }

    /// True if the group already has `most` sessions.
    pub fn is_full(&self, group: &SessionGroup, most: usize) -> bool {
        self.connections.taken.borrow().sessions_in(group) >= most
    }

    /// Waits until the connection has to make room for others. Cancel-safe.
    pub async fn given_up(&self) {
        self.notify.notified().await;
    }

    /// Records that the client has requested encryption; its startup packet is still to come.
    pub fn speaks(&self) {
        self.change(|taken| {
            if let Some(notify) = taken.silent.remove(self.source, self.number) {
                taken.speaking.insert(self.source, self.number, notify);
            }
        });
    }

    /// Records that the client's request needs no place, so the connection no longer has to make room.
    pub fn leave(&self) {
        self.change(|taken| taken.leave(self.source, self.number));
    }

    /// Waits for permission to log in and for a place, or fails if there are too many clients. Cancel-safe: dropping
    /// the seat releases the place.
    ///
    /// # Errors
    /// The group that holds the places.
    pub async fn take_place(&self, kind: LoginKind, most: usize) -> Result<(), NoPlace> {
        self.change(|taken| {
            taken.most = most;
            taken.leave(self.source, self.number);
            taken.queues[kind as usize].insert(self.source, self.number, self.notify.clone());
            taken.admit();
        });
        loop {
            {
                let taken = self.connections.taken.borrow();
                if taken.logins.contains_key(&self.number) {
                    return Ok(());
                }
                if !taken.queues[kind as usize].contains(self.source, self.number) {
                    return Err(if taken.is_full(kind) { NoPlace::Sessions } else { NoPlace::Queue });
                }
            }
            // The connection may have been evicted just before it sent its packet, so check again.
            self.notify.notified().await;
        }
    }

    /// Records whether the server waits for the client's answer.
    pub fn set_awaiting_answer(&self, is_awaiting: bool) {
        self.change(|taken| {
            if let Some(login) = taken.logins.get_mut(&self.number) {
                login.owes_since = is_awaiting.then(Instant::now);
            }
        });
    }

    /// True if the client owes the server an answer.
    pub fn owes_answer(&self) -> bool {
        self.connections.taken.borrow().logins.get(&self.number).is_some_and(|login| login.owes_since.is_some())
    }

    /// Returns when the client that is logging in has to make room for others. Cancel-safe.
    pub async fn overdue(&self) {
        while !self.connections.taken.borrow().is_overdue(self.number) {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Records that the client is authenticated and can no longer be evicted.
    pub fn keep_place(&mut self) {
        self.session = Some(Vec::new());
        self.change(|taken| taken.begin_session(self.number));
    }

    /// Like [`Self::keep_place`], for a session that counts in these groups, each with the maximum number of its sessions.
    ///
    /// # Errors
    /// The first group that is full. The session then counts in none.
    pub fn belongs_to(&mut self, groups: Vec<(SessionGroup, Option<NonZeroUsize>)>) -> Result<(), SessionGroup> {
        let mut full = None;
        self.connections.taken.send_if_modified(|taken| {
            let is_full = |(group, most): &&(SessionGroup, Option<NonZeroUsize>)| {
                most.is_some_and(|most| taken.sessions_in(group) >= most.get())
            };
            full = groups.iter().find(is_full).map(|(group, _)| group.clone());
            if full.is_none() {
                groups.iter().for_each(|(group, _)| *taken.sessions_of.entry(group.clone()).or_default() += 1);
                taken.begin_session(self.number);
            }
            full.is_none()
        });
        full.map_or(Ok(()), Err)?;
        self.session = Some(groups.into_iter().map(|(group, _)| group).collect());
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        self.connections.taken.send_modify(change);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.change(|taken| {
            match &self.session {
                None => {
                    taken.leave(self.source, self.number);
                    taken.end_login(self.number);
                }
                Some(groups) => {
                    taken.sessions -= 1;
                    groups.iter().for_each(|group| taken.leave_group(group));
                }
            }
            taken.admit();
        });
    }
}

#[cfg(test)]
mod tests;
