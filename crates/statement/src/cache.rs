//! Analyses of texts, computed within bounds and cached by shape: the text without the content of its literals. Texts with the
//! same shape are parsed once.
//!
//! Must never
//! - return the analysis of a text that the server reads differently, or assign one shape to two texts that the server's lexer
//!   splits differently;
//! - let a shape stand for values that the analysis depends on;
//! - exceed its bounds for any client input, neither in stored entries nor in the cost of a parse.

use super::analyze::{LONGEST_TREE, read_text, read_tokens};
use super::functions::is_harmless;
use super::rows::{ColumnValue, Declared, Rows};
use super::tokens::{Lexeme, Lexemes};
use super::{
    Encoding, Lexing, PreparedEffect, RelationName, Script, ServerEncoding, Statement, StatementKind, Unreadable, cost,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

const BYTES: usize = 32 << 20;
const LONGEST_TEXT: usize = 64 << 10;
const SHARDS: usize = 16;

/// Even to find out whether a longer text is cheap is left to a thread of its own.
const SHORT: usize = 16 << 10;

/// The bound of one generation of one shard.
const GENERATION: usize = BYTES / SHARDS / 2;

/// Memory that the maps, the reference counts and the allocator add to an entry, in bytes, roughly.
const OVERHEAD: usize = 256;

/// The analysis of a text.
pub type Analysis = Arc<Result<Script, Unreadable>>;

/// Analyses of texts, shared by all sessions and bounded in bytes.
///
/// Each shard holds two generations. When the younger is full, the older is dropped and the younger takes its place. An
/// entry that is used meanwhile moves to the younger generation. Texts in use therefore stay, without bookkeeping per
/// hit.
#[derive(Debug, Default)]
pub struct Cache {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

impl Cache {
    /// The result of [`super::analyze()`] or [`super::analyze_rows`], if it is cached or cheap to compute: a few
    /// milliseconds and a few MiB. Otherwise None: see [`Cache::prove`].
    pub fn get(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        // Shapes begin with this byte.
        if text.first() == Some(&0) {
            return Some(Arc::new(Err(Unreadable::Syntax)));
        }
        if let Some(remembered) = self.find(text, lexing, with_rows) {
            return Some(remembered);
        }
        // Rows are told by literals, where there are any.
        let is_enough = |script: &Script| !with_rows || script.statements.iter().all(|it| it.writes.is_empty());
        let shape = of(text, lexing);
        if let Some(remembered) = shape.as_deref().and_then(|shape| self.find(shape, lexing, false))
            && remembered.as_ref().as_ref().is_ok_and(is_enough)
        {
            return Some(remembered);
        }
        if text.len() > SHORT || !cost::is_cheap(text, lexing) {
            return None;
        }
        let read = read_text(text, lexing, with_rows);
        let common = if read.as_ref().is_ok_and(is_enough) { common(&read) } else { None };
        Some(match shape.zip(common) {
            Some((shape, common)) => self.keep(&shape, lexing, false, Ok(common)),
            None => self.keep(text, lexing, with_rows, read),
        })
    }

    /// As [`Cache::get`], for a text of any length, in time that grows with it. None where its tokens do not tell enough:
    /// then [`Cache::read_apart`] is left.
    pub fn prove(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        let remembered = self.find(text, lexing, with_rows);
        remembered.or_else(|| Some(self.keep(text, lexing, with_rows, proved(text, lexing, with_rows)?)))
    }

    /// Like [`Cache::get`], for texts that need full parsing: `read` parses in another process, within limits, or
    /// reports that it did not finish.
    pub fn read_apart(
        &self,
        text: &[u8],
        lexing: Lexing,
        with_rows: bool,
        read: impl FnOnce() -> Option<Result<Script, Unreadable>>,
    ) -> Analysis {
        if let Some(remembered) = self.find(text, lexing, with_rows) {
            return remembered;
        }
        match read() {
            Some(read) => self.keep(text, lexing, with_rows, read),
            // A later attempt may succeed.
            None => Arc::new(read_tokens(text, lexing, with_rows).ok_or(Unreadable::TooComplex)),
        }
    }

    fn shard(&self, text: &[u8]) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[self.hasher.hash_one(text) as usize % SHARDS];
        shard.lock()
    }

    fn find(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        if text.len() > LONGEST_TEXT { None } else { self.shard(text).find(text, lexing, with_rows) }
    }

    fn keep(&self, text: &[u8], lexing: Lexing, with_rows: bool, read: Result<Script, Unreadable>) -> Analysis {
        let answer = Arc::new(read);
        if text.len() <= LONGEST_TEXT {
            let entry = Entry::new(text, lexing, with_rows, &answer);
            self.shard(text).insert(text.into(), entry);
        }
        answer
    }

    #[cfg(test)]
    pub(super) fn get_slowly(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Analysis {
        self.prove(text, lexing, with_rows).unwrap_or_else(|| self.read_apart(text, lexing, with_rows, || None))
    }

    #[cfg(test)]
    pub(super) fn weight(&self) -> usize {
        let weight = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.values().chain(shard.old.values()).map(|entry| entry.weight).sum::<usize>()
        };
        self.shards.iter().map(weight).sum()
    }
}

/// The analysis, if it is possible without another process.
fn proved(text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Result<Script, Unreadable>> {
    if cost::is_cheap(text, lexing) {
        return Some(read_text(text, lexing, with_rows));
    }
    let proved = read_tokens(text, lexing, with_rows);
    let lacks = |statement: &Arc<Statement>| with_rows && statement.writes.iter().any(|write| write.rows.are_unread());
    let is_enough = proved.as_ref().is_some_and(|script| !script.statements.iter().any(lacks));
    (is_enough || text.len() > LONGEST_TREE).then(|| proved.ok_or(Unreadable::TooComplex))
}

#[derive(Debug, Default)]
struct Shard {
    young: HashMap<Box<[u8]>, Entry>,
    old: HashMap<Box<[u8]>, Entry>,
    young_weight: usize,
}

impl Shard {
    fn find(&mut self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        if let Some(entry) = self.young.get(text) {
            return entry.answer(lexing, with_rows);
        }
        let (text, entry) = self.old.remove_entry(text)?;
        let answer = entry.answer(lexing, with_rows);
        self.insert(text, entry);
        answer
    }

    fn insert(&mut self, text: Box<[u8]>, entry: Entry) {
        if entry.weight > GENERATION {
            return;
        }
        if self.young_weight + entry.weight > GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += entry.weight;
        if let Some(replaced) = self.young.insert(text, entry) {
            self.young_weight -= replaced.weight;
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// Not part of the key: that two sessions read one text differently is too rare to keep both answers.
    lexing: Lexing,
    /// It was read with its rows, and serves requests without them too.
    has_rows: bool,
    weight: usize,
    answer: Analysis,
}

impl Entry {
    fn new(text: &[u8], lexing: Lexing, has_rows: bool, answer: &Analysis) -> Self {
        let script = answer
            .as_ref()
            .as_ref()
            .map_or(0, |script| script.statements.iter().map(|statement| statement.weight()).sum());
        Self { lexing, has_rows, weight: OVERHEAD + text.len() + script, answer: Arc::clone(answer) }
    }

    fn answer(&self, lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        (self.lexing == lexing && self.has_rows >= with_rows).then(|| Arc::clone(&self.answer))
    }
}

impl Statement {
    /// The bytes that it keeps in memory, about.
    pub fn weight(&self) -> usize {
        const STRING: usize = 24;
        let inner = match &self.prepared {
            PreparedEffect::Prepare { statement, .. } => statement.weight(),
            PreparedEffect::Execute { arguments, .. } => arguments
                .iter()
                .map(|argument| size_of::<ColumnValue>() + argument.as_ref().map_or(0, ColumnValue::weight))
                .sum(),
            _ => 0,
        };
        size_of::<Statement>()
            + self.names().map(|name| STRING + 2 * size_of::<String>() + name.len()).sum::<usize>()
            + self
                .reads
                .iter()
                .map(|it| size_of::<RelationName>() + STRING + it.names().map(str::len).sum::<usize>())
                .sum::<usize>()
            + self.writes.iter().map(|write| write.rows.weight()).sum::<usize>()
            + size_of::<Declared>() * self.declared.len()
            + inner
    }
}

/// The longest text that has a shape, in bytes.
const LONGEST: usize = 16 << 10;

/// A number of so many digits is an integer of 32 bits, whichever digits they are.
const MOST_DIGITS: usize = 9;

/// The shape of a text. It begins with a NUL, so it never equals a text. None if the tokens are uncertain, or without
/// literals. Texts with the same shape have the same length, so their parts have the same positions.
pub(super) fn of(text: &[u8], lexing: Lexing) -> Option<Vec<u8>> {
    if !lexing.standard_conforming_strings || text.len() > LONGEST || !is_sure(text, lexing) {
        return None;
    }
    let mut shape = Vec::with_capacity(text.len() + 8);
    shape.extend([0, u8::from(text.is_ascii())]);
    shape.extend(u16::try_from(text.len()).ok()?.to_be_bytes());
    let head = shape.len();
    let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
    let mut copied = 0;
    while let Some(token) = tokens.next() {
        let literal = match token {
            Lexeme::Unsure => return None,
            Lexeme::Literal => &text[tokens.start()..tokens.end()],
            _ => continue,
        };
        let kind = match literal {
            [b'\'', ..] => b's',
            [b'$', ..] => continue,
            number => kind_of_number(number)?,
        };
        shape.extend_from_slice(&text[copied..tokens.start()]);
        shape.extend([0, kind]);
        copied = tokens.end();
    }
    shape.extend_from_slice(&text[copied..]);
    (copied > 0 && shape.len() > head).then_some(shape)
}

/// Returns true if the meaning of names and escapes does not depend on the contents of literals.
fn is_sure(text: &[u8], lexing: Lexing) -> bool {
    let is_utf8 = lexing.encoding == Encoding::Utf8 && lexing.server == ServerEncoding::Utf8;
    let is_plain = || is_utf8 && !text.contains(&b'\\') && std::str::from_utf8(text).is_ok();
    !text.contains(&0) && (text.is_ascii() || is_plain())
}

/// The grammar tells integers of 32 bits from other numbers. Letters, as in `1e5` or `0x1f`, have no kind.
fn kind_of_number(number: &[u8]) -> Option<u8> {
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    match number.iter().position(|byte| *byte == b'.') {
        None => (number.len() <= MOST_DIGITS && are_digits(number)).then_some(b'i'),
        Some(point) => (are_digits(&number[..point]) && are_digits(&number[point + 1..])).then_some(b'f'),
    }
}

/// The analysis of a text, if every text of its shape has the same: one query or plain write that shows only names. The rows that
/// it writes are left out.
pub(super) fn common(read: &Result<Script, Unreadable>) -> Option<Script> {
    let [statement] = read.as_ref().ok()?.statements.as_slice() else { return None };
    let Statement { range, kind, writes, keys_by_path, functions, reads, reads_more, .. } = Statement::clone(statement);
    let mut names =
        Statement { range, kind, writes, keys_by_path, functions, reads, reads_more, ..Statement::default() };
    let is_plain = kind.is_query() && kind != StatementKind::Merge && names == **statement;
    if !is_plain || !names.functions.iter().all(is_harmless) {
        return None;
    }
    names.writes.iter_mut().for_each(|write| write.rows = Rows::left_out());
    names.keys_by_path = false;
    names.settle();
    Some(Script { statements: vec![Arc::new(names)] })
}
