//! The session's search path: the schemas in which an unqualified name may be looked up.
//!
//! Owns the path that the server reported last, updated by later statements. It is a guess, used only to decide whether
//! querying the server is worthwhile: any code may have set the path (`Pipeline::path_in_doubt`). Must never omit a
//! schema of the setting: a value that is not a plain list of schemas stands for every schema.

use fencegate_statement::{OWN_SCHEMAS, ParameterEffect, PathEffect, Statement, TransactionEffect};
use fencegate_wire::message::Status;
use std::sync::Arc;

/// The server keeps this many bytes of a name (NAMEDATALEN - 1).
const LONGEST_NAME: usize = 63;

/// Maximum number of schemas in a path that is followed: a name would stand for as many tables.
const MOST_SCHEMAS: usize = 16;

/// Number of statements for which the proxy queries the path ahead, after one that was judged by the path. A session
/// that writes less often waits for the reply.
const AHEAD: u8 = 16;

/// The value of the setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SearchPath {
    /// Only the server knows it.
    #[default]
    Unasked,
    /// Any schema may be in the path; fencegate's own schemas only as stated here.
    Any(OwnSchemas),
    /// Only these schemas, with their names in the server. Some may not exist, or be inaccessible to the session.
    Schemas(Arc<[String]>),
}

/// Whether a path has fencegate's own schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnSchemas {
    /// The path has none of them.
    Absent,
    /// The path has one if the current role has its name.
    AsRole,
    /// The path may have one.
    Possible,
}

impl OwnSchemas {
    fn read(text: &str) -> Self {
        let holds = |names: &[String], wanted: &str| names.iter().any(|name| name == wanted);
        let (own, role) = match names(text) {
            Some(names) => (OWN_SCHEMAS.iter().any(|own| holds(&names, own)), holds(&names, "$user")),
            // However the server parses the text, the path has only names that occur in it.
            None => (OWN_SCHEMAS.iter().any(|own| text.to_ascii_lowercase().contains(own)), text.contains("$user")),
        };
        match (own, role) {
            (true, _) => OwnSchemas::Possible,
            (_, true) => OwnSchemas::AsRole,
            _ => OwnSchemas::Absent,
        }
    }
}

impl SearchPath {
    /// Reads the server's text; `None` if there is no value.
    pub fn read(text: Option<&str>) -> Self {
        // `$user` stands for the current role, or nothing. Other sessions can rename roles.
        let is_plain = |names: &Vec<String>| names.len() <= MOST_SCHEMAS && !names.iter().any(|name| name == "$user");
        let own = || text.map_or(OwnSchemas::Possible, OwnSchemas::read);
        let listed = text.and_then(names).filter(is_plain);
        listed.map_or_else(|| SearchPath::Any(own()), |names| SearchPath::Schemas(names.into()))
    }

    /// Whether the path has fencegate's own schemas; `None` if the server must be queried.
    pub(super) fn own_schemas(&self) -> Option<OwnSchemas> {
        match self {
            SearchPath::Unasked => None,
            SearchPath::Any(own) => Some(*own),
            SearchPath::Schemas(schemas) if OWN_SCHEMAS.iter().any(|own| schemas.iter().any(|it| it == own)) => {
                Some(OwnSchemas::Possible)
            }
            SearchPath::Schemas(_) => Some(OwnSchemas::Absent),
        }
    }
}

/// The names in a list, as the server parses it; None if the server would refuse it, or the names depend on an
/// encoding.
fn names(text: &str) -> Option<Vec<String>> {
    const SPACE: [char; 6] = [' ', '\t', '\n', '\r', '\u{b}', '\u{c}'];
    let (mut names, mut rest) = (Vec::new(), text.trim_start_matches(SPACE));
    if !text.is_ascii() || rest.is_empty() {
        return text.is_ascii().then_some(names);
    }
    loop {
        let (mut name, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_name(quoted)?,
            None => {
                let end = rest.find(|c| c == ',' || SPACE.contains(&c)).unwrap_or(rest.len());
                (Some(rest[..end].to_ascii_lowercase()).filter(|name| !name.is_empty())?, &rest[end..])
            }
        };
        name.truncate(LONGEST_NAME);
        names.push(name);
        rest = match after.trim_start_matches(SPACE) {
            "" => return Some(names),
            more => more.strip_prefix(',')?.trim_start_matches(SPACE),
        };
    }
}

/// A name up to its closing quote, and the rest.
fn quoted_name(mut rest: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(doubled) => {
                name.push('"');
                rest = doubled;
            }
            None => return Some((name, after)),
        }
    }
}

/// The path of one session.
#[derive(Debug, Default)]
pub struct Path {
    startup: SearchPath,
    now: SearchPath,
    /// The path that the server reported last. From PostgreSQL 18 on, ReadyForQuery reports it if it has changed.
    reported: Option<SearchPath>,
    /// The open transaction has set the path. A rollback restores another one.
    is_set: bool,
    /// The open transaction has set the path with SET LOCAL.
    is_local: bool,
    /// Number of queries ahead that remain, because recent statements were judged by the path.
    ahead: u8,
    /// The reply to a query that was sent ahead has arrived.
    is_answered_ahead: bool,
}

impl Path {
    /// The path at the start of a session, if the server reports it. `is_reported`: the server also reports changes.
    pub fn new(text: Option<&str>, is_reported: bool) -> Self {
        let startup = text.map_or(SearchPath::Unasked, |text| SearchPath::read(Some(text)));
        Path { now: startup.clone(), reported: is_reported.then(|| startup.clone()), startup, ..Path::default() }
    }

    /// Records the server's answer to a query for the path.
    pub fn learn(&mut self, text: Option<&str>) {
        self.now = SearchPath::read(text);
    }

    /// Records the server's reply to a query that no message waits for.
    pub fn learn_ahead(&mut self, text: Option<&str>) {
        self.learn(text);
        self.is_answered_ahead = true;
    }

    /// The path, as far as it is known.
    pub fn current(&self) -> &SearchPath {
        &self.now
    }

    /// A statement was judged by the path.
    pub fn judged_by(&mut self) {
        self.ahead = AHEAD;
    }

    /// Returns true if the path must be queried ahead, and counts that query.
    pub fn take_turn_ahead(&mut self) -> bool {
        let is_due = self.ahead > 0;
        self.ahead -= u8::from(is_due);
        is_due
    }

    /// Handles ReadyForQuery. `ends_question`: it ends a query that was sent ahead. Returns true if the path is now
    /// known.
    pub fn ready_reports(&mut self, ends_question: bool) -> bool {
        let is_answered = std::mem::take(&mut self.is_answered_ahead) && ends_question;
        if let Some(reported) = &self.reported {
            // The effect of a query since the last report may have been rolled back.
            self.now = reported.clone();
        }
        self.reported.is_some() || is_answered
    }

    /// Records a path that the server reports unasked. None: the text is unreadable.
    pub fn report(&mut self, text: Option<&str>) {
        if self.reported.is_some() || text.is_some() {
            self.reported = Some(SearchPath::read(text));
        }
    }

    /// Marks the path as unknown.
    pub fn forget(&mut self) {
        self.now = SearchPath::Unasked;
    }

    /// A statement succeeded.
    pub fn completed(&mut self, statement: &Statement) {
        if self.reported.is_some() {
            return;
        }
        let guess = match (&statement.path, &statement.parameter) {
            (PathEffect::Set { value, local }, _) => Some((SearchPath::read(Some(value)), *local)),
            (PathEffect::None, ParameterEffect::ResetAll) => Some((self.startup.clone(), false)),
            (PathEffect::Unknown, _) | (_, ParameterEffect::Unknown) => Some((SearchPath::Unasked, true)),
            _ => None,
        };
        if let Some((guess, is_local)) = guess {
            self.now = guess;
            self.is_set = true;
            self.is_local |= is_local;
        }
        let goes_back = matches!(
            statement.transaction,
            TransactionEffect::Rollback | TransactionEffect::RollbackTo(_) | TransactionEffect::PrepareTransaction
        );
        if goes_back && self.is_set {
            self.forget();
        }
    }

    /// Handles an error, which rolls back the transaction's settings.
    pub fn error(&mut self) {
        if self.is_set {
            self.forget();
        }
    }

    /// ReadyForQuery.
    pub fn ready(&mut self, status: Status) {
        if status == Status::Idle {
            self.is_set = false;
            if std::mem::take(&mut self.is_local) && self.reported.is_none() {
                self.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests;
