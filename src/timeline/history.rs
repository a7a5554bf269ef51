//! Converts events into lanes of nodes and fences.
//!
//! Owns the assignment of events to nodes. Must never guess between two nodes: it then names the client.

use super::event::{Event, Kind, Micros};
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
    /// The election; for a client that is not a candidate, the resource.
    pub(super) over: String,
    pub(super) token: i64,
    pub(super) from: Micros,
    /// Time at which another leader took over.
    pub(super) overtaken: Option<Micros>,
    /// End of the term; None: it has not ended.
    pub(super) to: Option<Micros>,
    pub(super) reason: Option<String>,
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

impl Fence {
    pub(super) fn name(&self) -> &str {
        &self.key.1
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
    waiting: HashMap<usize, Micros>,
}

impl History {
    /// None if there is no event to show.
    pub(super) fn new(events: Vec<Event>) -> Option<Self> {
        let (first, last) = (events.first()?, events.last()?);
        let mut history = History { from: first.at, to: last.at, started: first.date_and_time(), ..History::default() };
        let mut known = Known::default();
        for event in &events {
            // The leader's log may be later than the proxy's events about it.
            if let (Kind::LeaseAcquired, Some(token)) = (event.event, event.token) {
                let holder = (text(&event.election), text(&event.holder));
                known.holders.entry(token).or_default().insert(holder);
            }
            if let (Some(resource), Some(election)) = (&event.resource, &event.election) {
                known.elections.insert(resource.clone(), election.clone());
            }
        }
        for event in &events {
            if history.add(event, &mut known).is_none() {
                history.without_lane += 1;
            }
        }
        for (node, from) in known.waiting {
            history.nodes[node].waits.push((from, history.to));
        }
        (!history.nodes.is_empty() || !history.fences.is_empty()).then_some(history)
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
                    self.presented(node, event, token);
                }
                known.writers.entry(event.session()).or_insert((node, event.at));
                self.highest(event, token);
                self.mark(node, event, MarkKind::Written)
            }
            Kind::SessionEnded => {
                // A session that has not written is not shown.
                let written = known.writers.remove(&event.session());
                written.into_iter().for_each(|(node, from)| self.nodes[node].sessions.push((from, event.at)));
                Some(())
            }
            Kind::StaleWriteBlocked | Kind::WriteRejected | Kind::SessionCutOff => {
                let node = event.presented.map_or_else(|| client(event), |token| writer(event, token, known));
                let node = self.node(node)?;
                // If the guard raised the fence, no proxy reports it.
                event.highest.filter(|_| event.event != Kind::WriteRejected).map(|token| self.highest(event, token));
                let kind = if event.event == Kind::SessionCutOff { MarkKind::CutOff } else { MarkKind::Rejected };
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
        self.nodes[node].terms.push(Term { over, token, from: at, overtaken: None, to: None, reason: None });
        Some(())
    }

    /// A client that is not a candidate leads as long as its token is the highest.
    fn presented(&mut self, node: usize, event: &Event, token: i64) {
        let over = text(&event.resource);
        let terms = &mut self.nodes[node].terms;
        if !terms.iter().any(|it| it.over == over && it.token == token) {
            terms.push(Term { over, token, from: event.at, overtaken: None, to: None, reason: None });
        }
    }

    /// Ends the terms with higher tokens.
    fn reset(&mut self, event: &Event, token: i64) -> Option<()> {
        for term in self.nodes.iter_mut().flat_map(|it| &mut it.terms) {
            if Some(&term.over) == event.resource.as_ref() && term.to.is_none() && term.token > token {
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
        let over = event.resource.as_ref();
        for term in self.nodes.iter_mut().flat_map(|it| &mut it.terms) {
            if Some(&term.over) == over && term.to.is_none() && term.token < token {
                term.to = Some(event.at);
            }
        }
        Some(())
    }

    /// Lane of the event's resource; None: there are too many.
    fn fence(&mut self, event: &Event) -> Option<&mut Fence> {
        let key = (text(&event.database), event.resource.clone()?);
        match self.fences.iter().position(|it| it.key == key) {
            Some(place) => self.fences.get_mut(place),
            None if self.fences.len() == MOST_LANES => None,
            None => {
                self.fences.push(Fence { key, tokens: Vec::new() });
                self.fences.last_mut()
            }
        }
    }

    fn mark(&mut self, node: usize, event: &Event, kind: MarkKind) -> Option<()> {
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
        if self.nodes.len() == MOST_LANES {
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
