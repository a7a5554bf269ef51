//! The session's search path: the schemas that a name without a schema may be looked up in.
//!
//! Owns what the server said of it last, and what its statements since show. That is a guess, which only says whether it is worth asking
//! the server: any code may have set the path (`Replies::path_in_doubt`). Must never leave out a schema of the setting: what is
//! not plainly a list of schemas stands for every schema.

use super::parameter::ParameterValue;
use super::pending::Wait;
use super::question::ROLE;
use super::replies::Audience;
use super::verdict::Verdict;
use super::{Asked, Host, Life, Session};
use crate::catalogue::Catalogue;
use crate::fence::Role;
use crate::policy::Opaque;
use crate::statement::{
    OWN_SCHEMAS, ParameterEffect, PathEffect, RelationName, Statement, StatementKind, TransactionEffect,
};
use crate::wire::message::Status;
use std::sync::Arc;

/// The server keeps this many bytes of a name (NAMEDATALEN - 1).
const LONGEST_NAME: usize = 63;

/// A path of more schemas is not followed: a name would stand for as many tables.
const MOST_SCHEMAS: usize = 16;

/// What the client sends after a statement that was judged by the path is so often followed by a question for it, until another
/// one is: who writes less often waits for an answer then.
const AHEAD: u8 = 16;

/// In which a session looks first, whatever its path, if it has one; unless the path names it.
const TEMPORARY: &str = "pg_temp";

/// When the server looks up the names of the statements at hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// One statement after the other: a simple query.
    InString,
    /// As the portal is bound.
    AtBind,
    /// As it is executed.
    AtExecute,
}

impl Lookup {
    fn concerns(self, statement: &Statement) -> bool {
        // A query's names are analyzed as a whole before any of it runs: when its portal is bound.
        let is_planned = statement.kind.is_query();
        let is_executed = is_resolved_at_execution(statement);
        match self {
            Lookup::InString => is_planned || is_executed,
            Lookup::AtBind => is_planned,
            Lookup::AtExecute => is_executed,
        }
    }

    /// The server may resolve the names of a definition, or of a statement within another, at Bind or at Execute: both count.
    fn concerns_own(self, statement: &Statement) -> bool {
        self != Lookup::AtBind || !is_resolved_at_execution(statement)
    }
}

/// The server resolves its names first of all when it is executed.
fn is_resolved_at_execution(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::CopyFrom | StatementKind::Truncate | StatementKind::LockTable)
}

/// What the setting says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SearchPath {
    /// The server has to be asked.
    #[default]
    Unasked,
    /// Any schema may be in it, but fencegate's own only as this tells.
    Any(OwnSchemas),
    /// No other than these, each as the server knows it; some may not exist, or be closed to the session.
    Schemas(Arc<[String]>),
}

/// Whether a path has fencegate's own schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnSchemas {
    /// It has none of them.
    Absent,
    /// It has one if the current role is called so.
    AsRole,
    /// It may have one.
    Possible,
}

impl OwnSchemas {
    fn read(text: &str) -> Self {
        let holds = |names: &[String], wanted: &str| names.iter().any(|name| name == wanted);
        let (own, role) = match names(text) {
            Some(names) => (OWN_SCHEMAS.iter().any(|own| holds(&names, own)), holds(&names, "$user")),
            // Whatever the server makes of it, none of its names is one that does not stand in it.
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
    /// From the server's text; None: it has none.
    pub fn read(text: Option<&str>) -> Self {
        // `$user` is the role of the moment, or nothing. Other sessions can rename roles.
        let is_plain = |names: &Vec<String>| names.len() <= MOST_SCHEMAS && !names.iter().any(|name| name == "$user");
        let own = || text.map_or(OwnSchemas::Possible, OwnSchemas::read);
        let listed = text.and_then(names).filter(is_plain);
        listed.map_or_else(|| SearchPath::Any(own()), |names| SearchPath::Schemas(names.into()))
    }

    /// None: the server has to be asked.
    fn own_schemas(&self) -> Option<OwnSchemas> {
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

/// The names in a list, as the server reads it; None for what it would refuse, or what depends on an encoding.
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

/// A name up to its closing quote, and what follows that.
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
    /// As the server reported it last. From PostgreSQL 18 on it does so with ReadyForQuery, if it is another than at the last one.
    reported: Option<SearchPath>,
    /// The open transaction has set it: a rollback brings another one back.
    is_set: bool,
    /// It has done so until its end.
    is_local: bool,
    /// How often it is still asked ahead, when it is in doubt: what was judged lately depends on it.
    ahead: u8,
    /// It was learned ahead.
    is_heard: bool,
}

impl Path {
    /// At the start of a session, where the server says this; it may report what becomes of it.
    pub fn new(text: Option<&str>, is_reported: bool) -> Self {
        let startup = text.map_or(SearchPath::Unasked, |text| SearchPath::read(Some(text)));
        Path { now: startup.clone(), reported: is_reported.then(|| startup.clone()), startup, ..Path::default() }
    }

    /// The server was asked.
    pub fn learn(&mut self, text: Option<&str>) {
        self.now = SearchPath::read(text);
    }

    /// The same, by a question that nothing waits for.
    pub fn learn_ahead(&mut self, text: Option<&str>) {
        self.learn(text);
        self.is_heard = true;
    }

    /// The server reports it without being asked. None: in a text that cannot be read.
    pub fn report(&mut self, text: Option<&str>) {
        if self.reported.is_some() || text.is_some() {
            self.reported = Some(SearchPath::read(text));
        }
    }

    /// It may be anything.
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

    /// The server reported an error, which takes back what the transaction has set.
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

impl<H: Host> Session<H> {
    /// Has names without a schema stand for those that they may mean, where the path makes a difference and is known. What stays as
    /// it is stands for every schema. Where the path has to be found out first: the verdict until then.
    pub(super) fn by_path(&mut self, statements: &mut [Arc<Statement>], lookup: Lookup) -> Option<Verdict> {
        if self.host.policies().exempts(self.host.user()) {
            return None;
        }
        // Nothing can be asked in a failed transaction or during COPY; replication sessions have another grammar.
        let can_ask = !self.parameter.failed() && !self.replicates && !self.replies.is_copying_in();
        if let Some(verdict) = self.own_by_path(statements, lookup, can_ask) {
            return Some(verdict);
        }
        if !can_ask || matches!(self.path.now, SearchPath::Any(_)) {
            return None;
        }
        let catalogue = self.host.catalogue(None).catalogue;
        // What an earlier one in the string runs may set the path.
        let first_alone = statements.iter().take_while(|it| it.runs_nothing()).count() + 1;
        for statement in statements.iter_mut().take(first_alone).filter(|it| lookup.concerns(it)) {
            let mut written = statement.writes.iter().map(|write| &write.relation);
            if !written.any(|relation| self.is_elsewhere(relation, &catalogue)) {
                continue;
            }
            if self.replies.path_in_doubt() || self.path.now == SearchPath::Unasked {
                return Some(self.ask_for_path());
            }
            self.path.ahead = AHEAD;
            let SearchPath::Schemas(schemas) = &self.path.now else { continue };
            let is_named = schemas.iter().any(|schema| schema == TEMPORARY);
            let temporary = (!is_named).then(|| TEMPORARY.to_owned());
            let schemas: Vec<String> = temporary.into_iter().chain(schemas.iter().cloned()).collect();
            *statement = Arc::new(statement.in_schemas(&schemas, |relation| self.is_elsewhere(relation, &catalogue)));
        }
        None
    }

    /// Has statements that may name fencegate's own objects count as touching them, unless the path has none of their schemas.
    /// An earlier statement of the string makes the path unknown only where its text shows that it may set the path or the
    /// role: code that the text does not show could touch these objects by itself.
    fn own_by_path(&mut self, statements: &mut [Arc<Statement>], lookup: Lookup, can_ask: bool) -> Option<Verdict> {
        if self.host.policies().opaque_of(self.host.user()) == Opaque::Allow {
            return None;
        }
        let mut is_known = can_ask;
        for statement in statements {
            if statement.own_by_path && statement.opaque.is_none() && lookup.concerns_own(statement) {
                let in_doubt = self.replies.path_in_doubt();
                let means_own = match (self.path.now.own_schemas().filter(|_| !in_doubt), &self.pending.role) {
                    _ if !is_known => true,
                    (None, _) | (Some(OwnSchemas::AsRole), Asked::Not | Asked::Due) => {
                        return Some(self.ask_for_path_and_role());
                    }
                    (Some(OwnSchemas::AsRole), Asked::Answered(Role::Current(role))) => {
                        OWN_SCHEMAS.contains(&role.as_str())
                    }
                    (Some(OwnSchemas::AsRole), Asked::Answered(_)) => true,
                    (Some(own), _) => own == OwnSchemas::Possible,
                };
                self.path.ahead = AHEAD;
                if means_own || lookup == Lookup::AtBind && statement.kind.is_query() {
                    *statement = Arc::new(statement.by_own_path(means_own));
                }
            }
            is_known &= !statement.shows_other_path();
        }
        None
    }

    /// A name without a schema: it may be that of a fenced table, or of a way to one, in a schema that is not in the path as it was
    /// last known.
    fn is_elsewhere(&self, relation: &RelationName, catalogue: &Catalogue) -> bool {
        let is_outside = |schema: &str| match &self.path.now {
            SearchPath::Unasked => true,
            SearchPath::Any(_) => false,
            SearchPath::Schemas(schemas) => {
                schema != "pg_catalog" && !schema.starts_with(TEMPORARY) && !schemas.iter().any(|it| it == schema)
            }
        };
        let mut fenced = self.host.policies().tables_called(relation).map(|(_, table)| table.name.schema.as_str());
        relation.schema.is_none()
            && (fenced.any(is_outside) || catalogue.schemas_that_lead_by(&relation.name).any(is_outside))
    }

    /// Asks for the path as soon as nothing is owed. Where the token is not known either, for all that is to be known.
    fn ask_for_path(&mut self) -> Verdict {
        if !self.replies.is_empty() {
            return self.settle();
        }
        match self.parameter.current() {
            ParameterValue::Unknown => self.ask(),
            _ => {
                // SHOW takes no snapshot: see `question::ROLE`.
                self.put_questions(&[SHOW]);
                self.wait = Some(Wait::Path);
            }
        }
        Verdict::Hold
    }

    /// The same, and what `"$user"` stands for in it.
    fn ask_for_path_and_role(&mut self) -> Verdict {
        if !self.replies.is_empty() {
            return self.settle();
        }
        let [role, session] = ROLE;
        self.put_questions(&[SHOW, role, session]);
        self.wait = Some(Wait::Path);
        Verdict::Hold
    }

    /// The server has become ready: it has reported the path, or answered what was asked ahead. Where the last statements were
    /// judged by the path, and what has run since may have set it, it is asked ahead, so that the next ones need not wait.
    pub(super) fn path_after(&mut self, audience: &Audience) {
        let is_heard = std::mem::take(&mut self.path.is_heard) && *audience == Audience::ProxyAhead;
        if let Some(reported) = &self.path.reported {
            // What was asked for since the last one may have been taken back.
            self.path.now = reported.clone();
            self.replies.path_said();
        } else if is_heard {
            self.replies.path_said();
        }
        let is_quiet = self.replies.is_empty()
            && self.client.rest == 0
            && self.client.input.is_empty()
            && self.wait.is_none()
            && matches!(self.life, Life::Open)
            && self.transaction.status != Status::Failed;
        let is_due = self.path.ahead > 0 && self.replies.path_in_doubt() && self.host.is_fenced();
        if audience.is_clients() && is_quiet && is_due {
            self.path.ahead -= 1;
            self.put_question_ahead(SHOW);
        }
    }
}

const SHOW: &str = "SHOW search_path";

#[cfg(test)]
mod tests;
