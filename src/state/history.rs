//! The latest first writes, rejections and ended sessions, for the picture on the status page; and the latest rejections, for the
//! console.
//!
//! Owns records that are bounded in entries and bytes. Must never let a flood of one kind displace another kind, nor a flood of one
//! resource displace another resource. Must never keep a value of a statement.

use super::sessions::SessionRecord;
use crate::operate::console::Rejected;
use crate::picture::{Event, Kind, Micros, micros};
use fencegate_fence::session::Token;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque, hash_map};
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum number of entries of a kind, and of their bytes.
const MOST_ENTRIES: usize = 256;
const MOST_BYTES: usize = 128 * 1024;
/// Equal events within this time are one entry: the picture cannot show them apart.
const RESOLUTION: Micros = 1_000_000;

/// The latest events of each kind.
#[derive(Debug, Default)]
pub struct History {
    /// The first write of a resource under a token. A leader may have led for days, so these have no maximum age.
    takeovers: Mutex<Entries>,
    /// Later first writes of sessions.
    writes: Mutex<Entries>,
    cut_off: Mutex<Entries>,
    rejections: Mutex<Entries>,
}

/// An event of a session.
pub struct SessionEvent<'a> {
    /// The session.
    pub session: &'a SessionRecord,
    /// The resource, or the key's resource. Empty if it is unknown.
    pub resource: &'a str,
    /// The resource, as named in its policy.
    pub family: &'a str,
    /// The token of the session.
    pub token: Option<Token>,
    /// The token to which it was compared.
    pub highest: Option<Token>,
}

impl SessionEvent<'_> {
    fn event(&self, kind: Kind) -> Event {
        let SessionRecord { number, user, database, address, .. } = self.session;
        let is_admitted = kind == Kind::SessionAdmitted;
        Event {
            session: Some(*number),
            user: Some(user.clone()),
            database: Some(database.clone()),
            address: Some(address.clone()),
            application_name: Some(self.session.application_name()),
            resource: Some(self.resource.to_owned()).filter(|it| !it.is_empty()),
            token: self.token.filter(|_| is_admitted),
            presented: self.token.filter(|_| !is_admitted),
            highest: self.highest,
            ..Event::new(kind, micros(SystemTime::now()))
        }
    }
}

impl History {
    /// A session's first write to a resource under a token. `is_logged`: the log's limit permitted its line.
    pub fn admitted(&self, it: &SessionEvent, statement: &str, election: Option<String>, is_logged: bool) {
        let event = Event { statement: Some(statement.to_owned()), election, ..it.event(Kind::SessionAdmitted) };
        let mut takeovers = self.takeovers.lock();
        // Tokens differ most often.
        let is_same = |other: &Event| {
            (other.token, &other.resource, &other.database) == (event.token, &event.resource, &event.database)
        };
        if !takeovers.list.iter().any(|entry| is_same(&entry.event)) {
            takeovers.push(event, it.family);
        } else if is_logged {
            drop(takeovers);
            self.writes.lock().push(event, it.family);
        }
    }

    /// A newer token ended the session.
    pub fn cut_off(&self, it: &SessionEvent, outcome: &str) {
        let event = Event { outcome: Some(outcome.to_owned()), ..it.event(Kind::SessionCutOff) };
        self.cut_off.lock().push(event, it.family);
    }

    /// A write was rejected with this code, or as stale.
    pub fn rejected(&self, it: &SessionEvent, statement: &str, code: Option<&str>) {
        let kind = if code.is_none() { Kind::StaleWriteBlocked } else { Kind::WriteRejected };
        let (statement, code) = (Some(statement.to_owned()), code.map(str::to_owned));
        self.rejections.lock().push(Event { statement, code, ..it.event(kind) }, it.family);
    }

    /// All events, in no particular order.
    pub(crate) fn list(&self) -> Vec<Event> {
        let kinds = [&self.takeovers, &self.writes, &self.cut_off, &self.rejections];
        kinds.into_iter().flat_map(|it| it.lock().list.iter().map(|it| it.event.clone()).collect::<Vec<_>>()).collect()
    }
}

/// Events of a kind, in order.
#[derive(Debug, Default)]
struct Entries {
    list: VecDeque<Entry>,
    /// Number of entries of each resource in the list.
    counts: HashMap<String, usize>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    event: Event,
    family: String,
    bytes: usize,
}

impl Entries {
    fn push(&mut self, event: Event, family: &str) {
        let recent = self.list.iter().rev().take_while(|it| event.at - it.event.at < RESOLUTION);
        let texts = [
            &event.user,
            &event.database,
            &event.address,
            &event.application_name,
            &event.resource,
            &event.election,
            &event.statement,
            &event.code,
            &event.outcome,
        ];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        let bytes = size_of::<Entry>() + texts + family.len();
        // One long name must not displace everything.
        if bytes > MOST_BYTES / 8 || recent.map(|it| &it.event).any(|it| is_repeated(it, &event)) {
            return;
        }
        self.bytes += bytes;
        self.list.push_back(Entry { event, family: family.to_owned(), bytes });
        *self.counts.entry(family.to_owned()).or_default() += 1;
        while self.list.len() > MOST_ENTRIES || self.bytes > MOST_BYTES {
            self.displace();
        }
    }

    /// Removes the oldest entry of the resource with the most entries.
    fn displace(&mut self) {
        let most = self.counts.values().max();
        let oldest = self.list.iter().position(|it| self.counts.get(&it.family) == most);
        let Some(removed) = oldest.and_then(|place| self.list.remove(place)) else { return };
        self.bytes -= removed.bytes;
        if let hash_map::Entry::Occupied(mut count) = self.counts.entry(removed.family) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// True if only the session's number and port, or the statement, distinguish the events.
fn is_repeated(one: &Event, other: &Event) -> bool {
    let host =
        |event: &Event| event.address.as_ref().and_then(|it| it.rsplit_once(':')).map(|(host, _)| host.to_owned());
    let tokens = |event: &Event| (event.token, event.presented, event.highest);
    tokens(one) == tokens(other)
        && one.resource == other.resource
        && one.database == other.database
        && one.code == other.code
        && one.user == other.user
        && one.application_name == other.application_name
        && host(one) == host(other)
}

/// Maximum number of stored rejections.
const MOST: usize = 1000;

/// The latest rejections.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Arc<Rejected>>>);

impl Recent {
    /// Adds a rejection. Removes the oldest if there are too many.
    pub fn push(&self, rejected: Rejected) {
        let mut kept = self.0.lock();
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Arc::new(rejected));
    }

    /// All rejections, latest first.
    pub fn list(&self) -> Vec<Arc<Rejected>> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(session: &'a SessionRecord, resource: &'a str, family: &'a str, token: Token) -> SessionEvent<'a> {
        SessionEvent { session, resource, family, token: Some(token), highest: None }
    }

    fn tokens(history: &History, kind: Kind) -> Vec<(String, Token)> {
        let events = history.list().into_iter().filter(|it| it.event == kind);
        events.filter_map(|it| Some((it.resource?, it.token.or(it.presented)?))).collect()
    }

    #[test]
    fn many_rejections_displace_no_takeover() {
        let (history, session) = (History::default(), SessionRecord::of_test(1));
        history.admitted(&event(&session, "r", "r", 7), "UPDATE", None, false);
        history.cut_off(&event(&session, "r", "r", 6), "rolled_back");
        for token in 0..10_000 {
            history.rejected(&event(&session, "r", "r", token), "UPDATE", Some("LF001"));
        }
        assert_eq!(tokens(&history, Kind::SessionAdmitted), [("r".to_owned(), 7)]);
        assert_eq!(tokens(&history, Kind::SessionCutOff), [("r".to_owned(), 6)]);
        assert_eq!(tokens(&history, Kind::WriteRejected).last(), Some(&("r".to_owned(), 9_999)));
        assert!(history.list().len() <= MOST_ENTRIES + 2, "{}", history.list().len());
    }

    #[test]
    fn takeovers_of_many_keys_displace_no_other_resource() {
        let (history, session) = (History::default(), SessionRecord::of_test(1));
        history.admitted(&event(&session, "scheduler", "scheduler", 7), "UPDATE", None, true);
        for key in 0..2_000 {
            history.admitted(&event(&session, &format!("job/{key}"), "job/{id}", key), "UPDATE", None, true);
        }
        let kept = tokens(&history, Kind::SessionAdmitted);
        assert_eq!((&kept[0], kept.last()), (&("scheduler".to_owned(), 7), Some(&("job/1999".to_owned(), 1_999))));
        assert!(kept.len() <= MOST_ENTRIES, "{}", kept.len());
    }

    #[test]
    fn the_record_has_a_memory_limit() {
        let (history, session) = (History::default(), SessionRecord::of_test(1));
        for token in 0..1_000 {
            let name = format!("{token}{}", "x".repeat(4_000));
            history.rejected(&event(&session, &name, "r", token), "UPDATE", None);
            assert!(history.rejections.lock().bytes <= MOST_BYTES);
        }
        let kept = tokens(&history, Kind::StaleWriteBlocked).len();
        assert!((10..50).contains(&kept), "{kept}");
        history.rejected(&event(&session, &"x".repeat(MOST_BYTES), "r", 1), "UPDATE", None);
        assert_eq!(tokens(&history, Kind::StaleWriteBlocked).len(), kept);
    }

    #[test]
    fn repeated_events_are_merged() {
        let history = History::default();
        for number in 0..100 {
            let session = SessionRecord::of_test(number);
            history.admitted(&event(&session, "r", "r", 7), "UPDATE", None, true);
            history.rejected(&event(&session, "r", "r", 6), "UPDATE", None);
        }
        // The first one is the takeover. A slow machine may need more than a second.
        let [admitted, rejected] =
            [Kind::SessionAdmitted, Kind::StaleWriteBlocked].map(|it| tokens(&history, it).len());
        assert!((2..50).contains(&admitted) && (1..50).contains(&rejected), "{admitted} {rejected}");
    }
}
