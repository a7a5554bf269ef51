//! Converts events into lanes of nodes and fences.
//!
//! Owns the assignment of events to nodes. Must never guess between two nodes: it then names the client.

use super::event::{Event, Kind, Life, Micros, date_and_time};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of lanes of nodes, and of fences. Events of further ones are counted.
const MOST_LANES: usize = 24;

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) from: Micros,
    pub(super) to: Micros,
    /// Date and time of the first event.
    pub(super) started: String,
    pub(super) nodes: Vec<Node>,
    pub(super) fences: Vec<Fence>,
    /// Number of events of nodes and fences without a lane.
    pub(super) without_lane: usize,
    /// Maximum number of lanes of each kind while events are added.
    most: usize,
}

/// A node: a candidate, or another client of the proxy.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) terms: Vec<Term>,
    /// Intervals in which it waited for its turn.
    pub(super) waits: Vec<(Micros, Micros)>,
    /// Intervals from a session's first write to its end.
    pub(super) sessions: Vec<(Micros, Micros)>,
    pub(super) marks: Vec<Mark>,
}

/// A period of leadership, as the leader itself sees it.
#[derive(Debug)]
pub(super) struct Term {
    /// The election, or the resource if that is not known.
    pub(super) over: String,
    /// The resource, for a client that is not a candidate.
    pub(super) resource: Option<String>,
    pub(super) token: i64,
    pub(super) from: Micros,
    /// Interval without a sign of life of a leader that was overtaken, or whose lease expired.
    pub(super) stalled: Option<(Micros, Micros)>,
    /// Time at which another leader took over.
    pub(super) overtaken: Option<Micros>,
    /// End of the term; None: it has not ended.
    pub(super) to: Option<Micros>,
    pub(super) reason: Option<String>,
}

impl Term {
    fn new(over: String, token: i64, from: Micros) -> Self {
        Term { over, resource: None, token, from, stalled: None, overtaken: None, to: None, reason: None }
    }
}

/// An event of a write.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) at: Micros,
    pub(super) kind: MarkKind,
    /// A short text, shown if it fits.
    pub(super) label: String,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MarkKind {
    Written,
    Rejected,
    CutOff,
}

/// The highest tokens of a resource.
#[derive(Debug)]
pub(super) struct Fence {
    key: (String, String),
    /// Each token, with the time from which it was the highest.
    pub(super) tokens: Vec<(Micros, i64)>,
}

impl History {
    /// The resource, with its database if another database has a resource of that name.
    pub(super) fn name_of(&self, fence: &Fence) -> String {
        let (database, resource) = &fence.key;
        let is_unique = self.fences.iter().filter(|it| it.key.1 == *resource).count() < 2;
        if is_unique { resource.clone() } else { format!("{resource} ({database})") }
    }
}

/// Token holders, and writers' lanes.
#[derive(Default)]
struct Known {
    /// Holders of a token, each with its election.
    holders: HashMap<i64, BTreeSet<(String, String)>>,
    /// Election of a resource.
    elections: HashMap<String, String>,
    /// Lane and time of a session's first write.
    writers: HashMap<(u64, String), (usize, Micros)>,
    /// Signs of life of a node under a token.
    lives: HashMap<(usize, i64), Life>,
    /// Tokens under which a session has written.
    tokens: HashMap<(u64, String), BTreeSet<i64>>,
    waiting: HashMap<usize, Micros>,
}

impl History {
    /// None if there is no event to show. Without a window, the history is as long as the events.
    pub(super) fn new(events: &[Event], window: Option<(Micros, Micros)>) -> Option<Self> {
        let (first, last) = (events.first()?, events.last()?);
        let (from, to) = window.unwrap_or((first.at, last.at));
        // The lanes of a window are selected at the end. Its events come from a bounded record.
        let most = if window.is_some() { usize::MAX } else { MOST_LANES };
        let mut history = History { from, to, most, started: date_and_time(&first.timestamp), ..History::default() };
        let mut known = Known::default();
        for event in events {
            // The leader's log may be later than the proxy's events about it.
            if let (Kind::LeaseAcquired, Some(token)) = (event.event, event.token) {
                let holder = (text(&event.election), text(&event.holder));
                known.holders.entry(token).or_default().insert(holder);
            }
            if let (Some(resource), Some(election)) = (&event.resource, &event.election) {
                known.elections.insert(resource.clone(), election.clone());
            }
        }
        for event in events {
            if history.add(event, &mut known).is_none() {
                history.without_lane += 1;
            }
        }
        for (node, from) in known.waiting {
            history.nodes[node].waits.push((from, history.to));
        }
        let none = Life::default();
        for (place, node) in history.nodes.iter_mut().enumerate() {
            for term in &mut node.terms {
                known.lives.get(&(place, term.token)).unwrap_or(&none).settle(term, to);
            }
        }
        if window.is_some() {
            history.keep_window();
        }
        (!history.nodes.is_empty() || !history.fences.is_empty()).then_some(history)
    }

    /// Removes terms that ended before the window, and then the lanes that changed first if there are too many.
    fn keep_window(&mut self) {
        for node in &mut self.nodes {
            node.terms.retain(|it| it.to.is_none_or(|to| to > self.from));
        }
        self.nodes.retain(|it| !it.terms.is_empty() || !it.marks.is_empty());
        if self.nodes.len() > MOST_LANES {
            let marks = |it: &Node| it.marks.iter().map(|it| it.at).max();
            self.nodes.sort_by_key(|it| Reverse(marks(it).max(it.terms.last().map(|it| it.from))));
            let dropped = self.nodes.drain(MOST_LANES..);
            self.without_lane += dropped.map(|it| it.marks.len().max(1)).sum::<usize>();
        }
        if self.fences.len() > MOST_LANES {
            self.fences.sort_by_key(|it| Reverse(it.tokens.last().map(|it| it.0)));
            let dropped = self.fences.drain(MOST_LANES..);
            self.without_lane += dropped.map(|it| it.tokens.len()).sum::<usize>();
        }
    }

    /// None if the event lacks a field, or there are too many lanes.
    fn add(&mut self, event: &Event, known: &mut Known) -> Option<()> {
        match event.event {
            Kind::LeaseAwaited | Kind::LeaseAcquired | Kind::LeaseLost => self.lease(event, known),
            Kind::FenceAdvanced => self.highest(event, event.token?),
            // The reset may not have taken effect.
            Kind::FenceReset if event.outcome.is_some() => Some(()),
            Kind::FenceReset => self.reset(event, event.token?),
            Kind::SessionAdmitted => {
                let token = event.token?;
                let node = self.node(writer(event, token, known))?;
                if known.holder(event, token).is_none() {
                    let over = event.resource.as_ref().and_then(|it| known.elections.get(it));
                    self.presented(node, event, token, over.or(event.resource.as_ref()).map_or("", String::as_str));
                }
                known.writers.entry(event.session()).or_insert((node, event.at));
                known.tokens.entry(event.session()).or_default().insert(token);
                known.lives.entry((node, token)).or_default().write(event.at, event.session());
                self.highest(event, token);
                self.mark(node, event, MarkKind::Written)
            }
            Kind::SessionEnded => {
                // A session that has not written is not shown.
                let Some((node, from)) = known.writers.remove(&event.session()) else { return Some(()) };
                self.nodes[node].sessions.push((from, event.at));
                for token in known.tokens.remove(&event.session()).unwrap_or_default() {
                    known.lives.entry((node, token)).or_default().end(event.at, &event.session());
                }
                Some(())
            }
            Kind::StaleWriteBlocked | Kind::WriteRejected | Kind::SessionCutOff => {
                let node = event.presented.map_or_else(|| client(event), |token| writer(event, token, known));
                let node = self.node(node)?;
                // If the guard raised the fence, no proxy reports it.
                event.highest.filter(|_| event.event != Kind::WriteRejected).map(|token| self.highest(event, token));
                let kind = if event.event == Kind::SessionCutOff { MarkKind::CutOff } else { MarkKind::Rejected };
                if let (MarkKind::Rejected, Some(token)) = (kind, event.presented) {
                    known.lives.entry((node, token)).or_default().sign(event.at);
                }
                self.mark(node, event, kind)
            }
        }
    }

    fn lease(&mut self, event: &Event, known: &mut Known) -> Option<()> {
        let (at, over, node) = (event.at, event.election.clone()?, self.node(event.holder.clone()?)?);
        if event.event == Kind::LeaseAwaited {
            known.waiting.entry(node).or_insert(at);
            return Some(());
        }
        let token = event.token?;
        if event.event == Kind::LeaseLost {
            let ended = self.nodes[node].terms.iter_mut().rev().find(|it| it.over == over && it.token == token)?;
            (ended.to, ended.reason) = (Some(at), event.reason.clone());
            return Some(());
        }
        if self.nodes[node].terms.iter().any(|it| it.over == over && it.token == token) {
            // Another log has the same line.
            return Some(());
        }
        if let Some(from) = known.waiting.remove(&node) {
            self.nodes[node].waits.push((from, at));
        }
        for (place, other) in self.nodes.iter_mut().enumerate() {
            for term in other.terms.iter_mut().filter(|it| it.over == over && it.to.is_none() && it.token < token) {
                term.overtaken.get_or_insert(at);
                if place == node {
                    term.to = Some(at);
                }
            }
        }
        self.nodes[node].terms.push(Term::new(over, token, at));
        Some(())
    }

    /// A client that is not a candidate leads as long as its token is the highest, and no client has a higher one from
    /// the same election.
    fn presented(&mut self, node: usize, event: &Event, token: i64, over: &str) {
        let terms = &mut self.nodes[node].terms;
        if !terms.iter().any(|it| it.resource == event.resource && it.token == token) {
            terms.push(Term { resource: event.resource.clone(), ..Term::new(over.to_owned(), token, event.at) });
        }
    }

    /// Ends the terms with higher tokens.
    fn reset(&mut self, event: &Event, token: i64) -> Option<()> {
        for term in self.nodes.iter_mut().flat_map(|it| &mut it.terms) {
            if term.resource.is_some() && term.resource == event.resource && term.to.is_none() && term.token > token {
                term.to = Some(event.at);
            }
        }
        self.fence(event)?.tokens.push((event.at, token));
        Some(())
    }

    /// Records that the resource's highest token is at least this.
    fn highest(&mut self, event: &Event, token: i64) -> Option<()> {
        let fence = self.fence(event)?;
        if fence.tokens.last().is_none_or(|(_, before)| *before < token) {
            fence.tokens.push((event.at, token));
        }
        for term in self.nodes.iter_mut().flat_map(|it| &mut it.terms) {
            if term.resource.is_some() && term.resource == event.resource && term.token < token {
                term.overtaken.get_or_insert(event.at);
            }
        }
        Some(())
    }

    /// Lane of the event's resource; None: there are too many.
    fn fence(&mut self, event: &Event) -> Option<&mut Fence> {
        let key = (text(&event.database), event.resource.clone()?);
        match self.fences.iter().position(|it| it.key == key) {
            Some(place) => self.fences.get_mut(place),
            None if self.fences.len() >= self.most => None,
            None => {
                self.fences.push(Fence { key, tokens: Vec::new() });
                self.fences.last_mut()
            }
        }
    }

    fn mark(&mut self, node: usize, event: &Event, kind: MarkKind) -> Option<()> {
        if event.at < self.from {
            return Some(());
        }
        let resource = event.resource.as_deref().unwrap_or("a resource");
        let statement = event.statement.as_deref().unwrap_or("statement");
        let token = event.token.or(event.presented).map_or("no token".to_owned(), |token| format!("token {token}"));
        let highest = event.highest.map_or(String::new(), |highest| format!(": the highest is {highest}"));
        let compared = match (event.presented, event.highest) {
            (Some(presented), Some(highest)) if presented < highest => format!(": {presented} < {highest}"),
            _ => String::new(),
        };
        let code = event.code.as_deref().unwrap_or("LF001");
        let (label, text) = match kind {
            MarkKind::Written => (String::new(), format!("{statement}, {resource}, {token}: admitted")),
            MarkKind::Rejected => {
                (format!("{code}{compared}"), format!("{code}: {statement}, {resource}, {token}{highest}"))
            }
            MarkKind::CutOff => {
                let outcome = event.outcome.as_deref().unwrap_or("unknown");
                (format!("cut off{compared}"), format!("cut off, {resource}, {token}{highest}; outcome={outcome}"))
            }
        };
        self.nodes[node].marks.push(Mark { at: event.at, kind, label, text });
        Some(())
    }

    /// Lane of that name; None: there are too many.
    fn node(&mut self, name: String) -> Option<usize> {
        if let Some(place) = self.nodes.iter().position(|it| it.name == name) {
            return Some(place);
        }
        if self.nodes.len() >= self.most {
            return None;
        }
        self.nodes.push(Node { name, ..Node::default() });
        Some(self.nodes.len() - 1)
    }
}

impl Known {
    /// Holder of the token: in the resource's election if that is known, otherwise only if the holder is unique.
    fn holder(&self, event: &Event, token: i64) -> Option<&str> {
        let election = event.resource.as_ref().and_then(|it| self.elections.get(it));
        let is_meant = |it: &&(String, String)| election.is_none_or(|election| it.0 == *election);
        let mut holders = self.holders.get(&token)?.iter().filter(is_meant);
        let (_, holder) = holders.next()?;
        holders.next().is_none().then_some(holder)
    }
}

fn writer(event: &Event, token: i64, known: &Known) -> String {
    known.holder(event, token).map_or_else(|| client(event), str::to_owned)
}

/// Name of a client, and its address unless it is on the proxy's machine.
fn client(event: &Event) -> String {
    let address = text(&event.address);
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let names = [&event.application_name, &event.user];
    let name = names.into_iter().flatten().find(|it| !it.is_empty()).map_or("a client", String::as_str);
    let is_here = host.is_empty() || host.starts_with("127.") || host == "[::1]";
    if is_here { name.to_owned() } else { format!("{name} {host}") }
}

fn text(field: &Option<String>) -> String {
    field.clone().unwrap_or_default()
}
