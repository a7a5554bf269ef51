//! The names of prepared statements or portals, and their meaning at the server.
//!
//! A name changes its meaning when the server confirms the definition. Messages are forwarded before that, so until the reply
//! arrives a name has several candidates, and may be unsettled.

use super::pipeline::Request;
use fencegate_statement::{PreparedEffect, Statement};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum size of all names of one kind in a session, including their definitions. Further names are unknown, hence
/// opaque.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Memory of an entry besides its name, in bytes, roughly.
const ENTRY: usize = 128;

/// The server uses only the first 63 bytes of a name (`NAMEDATALEN`).
const SIGNIFICANT: usize = 63;

/// The names of one session.
#[derive(Debug, Default)]
pub struct Names {
    pub statements: NameTable,
    pub portals: NameTable,
}

impl Names {
    /// Records that the proxy may have missed definitions of names.
    pub fn forget(&mut self) {
        self.statements.forget();
        self.portals.forget();
    }

    /// Records the names that PREPARE defines in these statements: index of the statement, name, number to confirm.
    pub fn define_prepared(&mut self, statements: &[Arc<Statement>], batch: u64) -> Vec<(usize, String, u64)> {
        let mut defines = Vec::new();
        for (index, statement) in statements.iter().enumerate() {
            if let PreparedEffect::Prepare { name, statement: inner } = &statement.prepared {
                let sequence = self.statements.define(name.as_bytes(), inner.clone(), batch);
                defines.push((index, name.clone(), sequence));
            }
        }
        defines
    }

    /// Records that a statement has completed. `defined`: the name that a PREPARE in it defines, and the number to
    /// confirm.
    pub fn completed(&mut self, statement: &Statement, defined: Option<(String, u64)>) {
        match &statement.prepared {
            PreparedEffect::Deallocate { name } => self.statements.close(name.as_bytes()),
            PreparedEffect::DeallocateAll => self.statements.close_all(),
            _ => (),
        }
        if let Some((name, sequence)) = defined {
            self.statements.confirm(name.as_bytes(), sequence);
        }
    }

    /// Removes the effects of a message that the server will not execute.
    pub fn cancel(&mut self, request: Request) {
        match request {
            Request::Parse { defines: Some(it) } => self.statements.cancel(&it.name, it.sequence),
            Request::Bind { defines: Some(it), .. } => self.portals.cancel(&it.name, it.sequence),
            Request::Execute { defines: Some((name, sequence)), .. } => {
                self.statements.cancel(name.as_bytes(), sequence)
            }
            Request::Query { defines, .. } => {
                for (_, name, sequence) in defines {
                    self.statements.cancel(name.as_bytes(), sequence);
                }
            }
            _ => (),
        }
    }
}

/// The names of one kind in one session.
#[derive(Debug, Default)]
pub struct NameTable {
    /// The definitions of each name, in the order of their messages and numbers. Only the first one may be confirmed.
    candidates: BTreeMap<Vec<u8>, VecDeque<Definition>>,
    /// The definitions of the empty name, which most messages use.
    unnamed: VecDeque<Definition>,
    bytes: usize,
    last: u64,
    /// True once a name did not fit.
    forgot: bool,
}

#[derive(Debug)]
struct Definition {
    sequence: u64,
    /// The batch of messages: an error in it skips the rest of it.
    batch: u64,
    confirmed: bool,
    /// An Execute of the portal was forwarded.
    begun: bool,
    statement: Arc<Statement>,
    /// Memory of the definition, in bytes.
    weight: usize,
}

/// The meaning of a name.
#[derive(Debug, PartialEq)]
pub enum Meaning {
    /// A message that uses the name runs this, if it runs at all.
    Certain(Arc<Statement>),
    /// The meaning depends on pending replies.
    Unsettled,
    /// The proxy has seen no definition of the name.
    Unknown,
}

impl NameTable {
    /// Records that a message which defines the name is forwarded in this batch. Returns the number to confirm or
    /// cancel.
    pub fn define(&mut self, name: &[u8], statement: Arc<Statement>, batch: u64) -> u64 {
        let name = known_by(name);
        self.last += 1;
        if !name.is_ascii() {
            // The server stores the name in another encoding, and may truncate it elsewhere.
            self.forgot = true;
            return self.last;
        }
        // A known name must not keep an old meaning, even if there is no room.
        if self.bytes < MAX_BYTES || self.of(name).is_some() {
            let weight = weight(name, &statement);
            self.bytes += weight;
            let candidate =
                Definition { sequence: self.last, batch, confirmed: false, begun: false, statement, weight };
            match self.of_mut(name) {
                Some(list) => list.push_back(candidate),
                None => drop(self.candidates.insert(name.to_vec(), VecDeque::from([candidate]))),
            }
        } else {
            self.forgot = true;
        }
        self.last
    }

    /// The server has executed the definition, which replaces older meanings.
    pub fn confirm(&mut self, name: &[u8], sequence: u64) {
        self.drop_first(name, |candidate| candidate.sequence < sequence);
        // The server answers in order, so this is now the oldest one.
        if let Some(candidate) = self.of_mut(name).and_then(VecDeque::front_mut)
            && candidate.sequence == sequence
        {
            candidate.confirmed = true;
        }
    }

    /// The server has refused or skipped the definition, so older meanings stay.
    pub fn cancel(&mut self, name: &[u8], sequence: u64) {
        let name = known_by(name);
        let Some(list) = self.of_mut(name) else { return };
        let Ok(index) = list.binary_search_by_key(&sequence, |candidate| candidate.sequence) else { return };
        if let Some(candidate) = list.remove(index) {
            self.bytes -= candidate.weight;
        }
        self.forget_if_empty(name);
    }

    /// The server has closed the name, which removes its earlier definitions.
    pub fn close(&mut self, name: &[u8]) {
        self.drop_first(name, |candidate| candidate.confirmed);
    }

    /// The server closed all names.
    pub fn close_all(&mut self) {
        let names: Vec<_> = self.candidates.keys().cloned().collect();
        names.iter().map(Vec::as_slice).chain([&b""[..]]).for_each(|name| self.close(name));
    }

    /// The server has closed all names.
    pub fn clear(&mut self) {
        if !self.candidates.is_empty() {
            self.candidates.clear();
        }
        self.unnamed.clear();
        self.bytes = 0;
        self.forgot = false;
    }

    /// Records that the proxy may have missed definitions of names.
    pub fn forget(&mut self) {
        self.clear();
        self.forgot = true;
    }

    /// True if no room is left until replies settle the definitions of names.
    pub fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES
    }

    /// Returns true if an unknown name cannot have been defined in this session.
    pub fn is_complete(&self) -> bool {
        !self.forgot
    }

    /// The meaning of the name in a message that is forwarded in this batch.
    pub fn meaning(&self, name: &[u8], batch: u64) -> Meaning {
        match self.of(name).and_then(VecDeque::back) {
            // If the definition had failed, the server would skip the rest of its batch.
            Some(candidate) if candidate.confirmed || candidate.batch == batch => {
                Meaning::Certain(candidate.statement.clone())
            }
            Some(_) => Meaning::Unsettled,
            None => Meaning::Unknown,
        }
    }

    /// Returns true if an Execute of the portal of that name was forwarded.
    pub fn has_begun(&self, name: &[u8]) -> bool {
        self.of(name).and_then(VecDeque::back).is_some_and(|candidate| candidate.begun)
    }

    /// Records that an Execute of the portal of that name is forwarded.
    pub fn begin(&mut self, name: &[u8]) {
        if let Some(candidate) = self.of_mut(name).and_then(VecDeque::back_mut) {
            candidate.begun = true;
        }
    }

    /// Pipelines give one name thousands of definitions. Removed ones come first, so no search is needed.
    fn drop_first(&mut self, name: &[u8], is_gone: impl Fn(&Definition) -> bool) {
        let name = known_by(name);
        let Some(list) = self.of_mut(name) else { return };
        let mut bytes = 0;
        while let Some(candidate) = list.front().filter(|candidate| is_gone(candidate)) {
            bytes += candidate.weight;
            list.pop_front();
        }
        self.bytes -= bytes;
        self.forget_if_empty(name);
    }

    fn forget_if_empty(&mut self, name: &[u8]) {
        if !name.is_empty() && self.of(name).is_some_and(VecDeque::is_empty) {
            self.candidates.remove(name);
        }
    }

    fn of(&self, name: &[u8]) -> Option<&VecDeque<Definition>> {
        if name.is_empty() { Some(&self.unnamed) } else { self.candidates.get(known_by(name)) }
    }

    fn of_mut(&mut self, name: &[u8]) -> Option<&mut VecDeque<Definition>> {
        if name.is_empty() { Some(&mut self.unnamed) } else { self.candidates.get_mut(known_by(name)) }
    }
}

fn weight(name: &[u8], statement: &Statement) -> usize {
    ENTRY + name.len() + statement.weight()
}

/// The part of a name that the server distinguishes.
pub fn known_by(name: &[u8]) -> &[u8] {
    &name[..name.len().min(SIGNIFICANT)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencegate_statement::StatementKind;

    fn statement(kind: StatementKind) -> Arc<Statement> {
        Arc::new(Statement { kind, ..Statement::default() })
    }

    #[test]
    fn a_definition_is_certain_within_its_batch_and_once_confirmed() {
        let mut names = NameTable::default();
        assert_eq!(names.meaning(b"s", 1), Meaning::Unknown);
        let sequence = names.define(b"s", statement(StatementKind::Insert), 1);
        assert_eq!(names.meaning(b"s", 1), Meaning::Certain(statement(StatementKind::Insert)));
        assert_eq!(names.meaning(b"s", 2), Meaning::Unsettled);
        names.confirm(b"s", sequence);
        assert_eq!(names.meaning(b"s", 2), Meaning::Certain(statement(StatementKind::Insert)));
    }

    #[test]
    fn a_new_definition_of_a_portal_has_not_begun() {
        let mut portals = NameTable::default();
        portals.begin(b"p");
        assert!(!portals.has_begun(b"p"), "the portal was never bound");
        let first = portals.define(b"p", statement(StatementKind::Insert), 1);
        portals.confirm(b"p", first);
        portals.begin(b"p");
        assert!(portals.has_begun(b"p"));
        let second = portals.define(b"p", statement(StatementKind::Insert), 2);
        assert!(!portals.has_begun(b"p"));
        portals.cancel(b"p", second);
        assert!(portals.has_begun(b"p"));
    }

    #[test]
    fn a_canceled_definition_keeps_the_old_meaning() {
        let mut names = NameTable::default();
        let first = names.define(b"s", statement(StatementKind::Insert), 1);
        names.confirm(b"s", first);
        let second = names.define(b"s", statement(StatementKind::Select), 2);
        assert_eq!(names.meaning(b"s", 3), Meaning::Unsettled);
        names.cancel(b"s", second);
        assert_eq!(names.meaning(b"s", 3), Meaning::Certain(statement(StatementKind::Insert)));
        names.close(b"s");
        assert_eq!(names.meaning(b"s", 3), Meaning::Unknown);
        assert_eq!(names.bytes, 0);
    }

    #[test]
    fn names_are_truncated_as_in_the_server() {
        let mut names = NameTable::default();
        let [long, longer] = ["x", "y"].map(|end| "n".repeat(63) + end);
        let first = names.define(long.as_bytes(), statement(StatementKind::Select), 1);
        names.confirm(long.as_bytes(), first);
        names.close(longer.as_bytes());
        let second = names.define(longer.as_bytes(), statement(StatementKind::Insert), 2);
        names.confirm(longer.as_bytes(), second);
        assert_eq!(names.meaning(long.as_bytes(), 3), Meaning::Certain(statement(StatementKind::Insert)));
        names.close(long.as_bytes());
        assert_eq!((names.meaning(longer.as_bytes(), 3), names.bytes), (Meaning::Unknown, 0));
    }

    #[test]
    fn a_full_table_keeps_no_outdated_meaning() {
        let mut names = NameTable::default();
        let sequence = names.define(b"s", statement(StatementKind::Select), 1);
        names.confirm(b"s", sequence);
        for number in 0u32.. {
            if names.bytes >= MAX_BYTES {
                break;
            }
            names.define(&number.to_be_bytes(), statement(StatementKind::Select), 1);
        }
        names.define(b"s", statement(StatementKind::Insert), 2);
        assert_eq!(names.meaning(b"s", 2), Meaning::Certain(statement(StatementKind::Insert)));
        names.define(b"new", statement(StatementKind::Insert), 2);
        assert_eq!(names.meaning(b"new", 2), Meaning::Unknown);
    }

    #[test]
    fn close_all_keeps_unconfirmed_definitions() {
        let mut names = NameTable::default();
        let first = names.define(b"s", statement(StatementKind::Insert), 1);
        names.confirm(b"s", first);
        names.define(b"s", statement(StatementKind::Select), 1);
        names.close_all();
        assert_eq!(names.meaning(b"s", 1), Meaning::Certain(statement(StatementKind::Select)));
    }

    #[test]
    fn the_last_confirmed_definition_counts() {
        let mut names = NameTable::default();
        let [first, second] =
            [StatementKind::Insert, StatementKind::Select].map(|kind| names.define(b"s", statement(kind), 1));
        assert!(first < second);
        names.confirm(b"s", first);
        assert_eq!(names.meaning(b"s", 2), Meaning::Unsettled);
        names.confirm(b"s", second);
        assert_eq!(names.meaning(b"s", 2), Meaning::Certain(statement(StatementKind::Select)));
        assert_eq!(names.bytes, weight(b"s", &statement(StatementKind::Select)));
    }

    #[test]
    fn a_closed_or_canceled_name_uses_no_memory() {
        let mut names = NameTable::default();
        for name in [&b"s"[..], b""] {
            let sequence = names.define(name, statement(StatementKind::Insert), 1);
            names.confirm(name, sequence);
            names.close(name);
            assert!(names.candidates.is_empty() && names.bytes == 0);
            let sequence = names.define(name, statement(StatementKind::Insert), 1);
            names.cancel(name, sequence);
            assert!(names.candidates.is_empty() && names.bytes == 0);
            names.define(name, statement(StatementKind::Insert), 1);
            names.clear();
            assert_eq!((names.meaning(name, 1), names.bytes), (Meaning::Unknown, 0));
        }
        names.forget();
        names.clear();
        assert!(names.is_complete());
    }

    #[test]
    fn definitions_are_accepted_up_to_the_byte_limit() {
        let mut names = NameTable { bytes: MAX_BYTES - 1, ..NameTable::default() };
        names.define(b"last", statement(StatementKind::Insert), 1);
        assert_eq!(names.meaning(b"last", 1), Meaning::Certain(statement(StatementKind::Insert)));
        let mut names = NameTable { bytes: MAX_BYTES, ..NameTable::default() };
        assert!(names.is_full());
        names.define(b"beyond", statement(StatementKind::Insert), 1);
        assert_eq!(names.meaning(b"beyond", 1), Meaning::Unknown);
        assert!(!names.is_complete());
    }

    #[test]
    fn weight_includes_the_name_and_the_statement() {
        let statement = statement(StatementKind::Insert);
        for name in [&b""[..], b"s", b"name"] {
            assert_eq!(weight(name, &statement), statement.weight() + name.len() + ENTRY);
        }
    }
}
