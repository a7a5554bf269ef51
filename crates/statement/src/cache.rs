//! Analyses of texts, computed within bounds and cached by shape: without comments and, where the analysis does not depend on them,
//! without the content of literals. Texts with the same shape are parsed once.
//!
//! Must never
//! - return the analysis of a text that the server reads differently;
//! - exceed its bounds for any client input, neither in stored entries nor in the cost of a parse.

use super::analyze::{LONGEST_TREE, read_text, read_tokens};
use super::recent::{Recent, Serves};
use super::rows::{ColumnValue, Declared};
use super::shape::{Literals, Shape};
use super::{Lexing, PreparedEffect, RelationName, Script, Statement, Unreadable, cost};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

const BYTES: usize = 32 << 20;
const LONGEST_TEXT: usize = 64 << 10;
const SHARDS: usize = 16;

/// Maximum length, in bytes, of a text whose cost this thread determines. Another thread does so for longer ones.
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
    recent: Recent,
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
        if let Some(recent) = self.recent.find(text, lexing, with_rows) {
            return Some(recent);
        }
        let whole = if with_rows { Serves::All } else { Serves::Names };
        if let Some(remembered) = self.find(text, lexing, with_rows) {
            self.recent.keep(text, &[], lexing, whole, &remembered);
            return Some(remembered);
        }
        let shape = |literals| Shape::of(text, lexing, literals);
        let names = shape(Literals::Typed);
        if let Some((shape, found)) = names.as_ref().zip(self.find_shape(&names, lexing, false))
            && let Some(completed) = shape.completed(&found)
        {
            let serves = if writes_nothing(&found) { Serves::All } else { Serves::Names };
            if serves == Serves::All || !with_rows {
                if Arc::ptr_eq(&completed, &found) {
                    self.recent.keep(text, shape.left_out(), lexing, serves, &found);
                }
                return Some(completed);
            }
        }
        let mut rows = if with_rows { shape(Literals::Numbered) } else { None };
        if let Some((shape, found)) = rows.as_ref().zip(self.find_shape(&rows, lexing, true)) {
            match &*found {
                Ok(common) => {
                    if text.is_ascii() {
                        self.recent.keep(text, shape.left_out(), lexing, Serves::Completed, &found);
                    }
                    return Some(Arc::new(Ok(shape.complete(common))));
                }
                Err(_) => rows = None,
            }
        }
        let bare = shape(Literals::Kept);
        if let Some(found) = self.find_shape(&bare, lexing, with_rows) {
            self.recent.keep(text, &[], lexing, whole, &found);
            return Some(found);
        }
        if text.len() > SHORT || !cost::is_cheap(text, lexing) {
            return None;
        }
        let read = read_text(text, lexing, with_rows);
        let (names, rows) = match !with_rows || writes_nothing(&read) {
            true => (names, None),
            false => (None, rows),
        };
        if let Some(shape) = &rows {
            // An error records that the shape has no common analysis, so that its other texts do not try again.
            let common = shape.common(&read, lexing).ok_or(Unreadable::Syntax);
            if self.keep(shape.key(), lexing, true, common).is_ok() {
                return Some(Arc::new(read));
            }
        }
        for shape in [names, bare].into_iter().flatten() {
            if let Some(common) = shape.common(&read, lexing) {
                let common = self.keep(shape.key(), lexing, with_rows, Ok(common));
                return Some(shape.completed(&common).unwrap_or_else(|| Arc::new(read)));
            }
        }
        Some(self.keep(text, lexing, with_rows, read))
    }

    /// Like [`Cache::get`], for a text of any length, in linear time. None if its tokens do not suffice: use
    /// [`Cache::read_out_of_process`].
    pub fn prove(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        let remembered = self.find(text, lexing, with_rows);
        remembered.or_else(|| Some(self.keep(text, lexing, with_rows, proved(text, lexing, with_rows)?)))
    }

    /// Like [`Cache::get`], for texts that need full parsing: `read` parses in another process, within limits, or
    /// reports that it did not finish.
    pub fn read_out_of_process(
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

    fn shard(&self, text: &[u8]) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hasher.hash_one(text);
        (hash, self.shards[hash as usize % SHARDS].lock())
    }

    fn find(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        if text.len() > LONGEST_TEXT {
            return None;
        }
        let (hash, mut shard) = self.shard(text);
        shard.find(hash, text, lexing, with_rows)
    }

    fn find_shape(&self, shape: &Option<Shape>, lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        self.find(shape.as_ref()?.key(), lexing, with_rows)
    }

    fn keep(&self, text: &[u8], lexing: Lexing, with_rows: bool, read: Result<Script, Unreadable>) -> Analysis {
        let answer = Arc::new(read);
        if text.len() <= LONGEST_TEXT {
            let entry = Entry::new(text, lexing, with_rows, &answer);
            let (hash, mut shard) = self.shard(text);
            shard.insert(hash, entry);
        }
        answer
    }

    #[cfg(test)]
    pub(super) fn get_slowly(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Analysis {
        self.prove(text, lexing, with_rows)
            .unwrap_or_else(|| self.read_out_of_process(text, lexing, with_rows, || None))
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

fn writes_nothing(read: &Result<Script, Unreadable>) -> bool {
    read.as_ref().is_ok_and(|script| script.statements.iter().all(|statement| statement.writes.is_empty()))
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

/// Entries by the hashes of their texts. If two texts have the same hash, the later one replaces the other.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<u64, Entry>,
    old: HashMap<u64, Entry>,
    young_weight: usize,
}

impl Shard {
    fn find(&mut self, hash: u64, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        if let Some(entry) = self.young.get(&hash) {
            return entry.answer(text, lexing, with_rows);
        }
        let entry = self.old.remove(&hash)?;
        let answer = entry.answer(text, lexing, with_rows);
        self.insert(hash, entry);
        answer
    }

    fn insert(&mut self, hash: u64, entry: Entry) {
        if entry.weight > GENERATION {
            return;
        }
        if self.young_weight + entry.weight > GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += entry.weight;
        if let Some(replaced) = self.young.insert(hash, entry) {
            self.young_weight -= replaced.weight;
        }
    }
}

#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    /// Not part of the key: two sessions rarely read one text differently, so only one analysis is kept.
    lexing: Lexing,
    /// The text was read with its rows. The analysis also serves requests without them.
    has_rows: bool,
    weight: usize,
    answer: Analysis,
}

impl Entry {
    fn new(text: &[u8], lexing: Lexing, has_rows: bool, answer: &Analysis) -> Self {
        Self {
            lexing,
            has_rows,
            weight: OVERHEAD + text.len() + weight(answer),
            answer: Arc::clone(answer),
            text: text.into(),
        }
    }

    fn answer(&self, text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Analysis> {
        let is_same = *self.text == *text && self.lexing == lexing && self.has_rows >= with_rows;
        is_same.then(|| Arc::clone(&self.answer))
    }
}

/// Approximate memory of the statements, in bytes.
pub(super) fn weight(analysis: &Analysis) -> usize {
    analysis.as_ref().as_ref().map_or(0, |script| script.statements.iter().map(|statement| statement.weight()).sum())
}

impl Statement {
    /// Approximate memory of the statement, in bytes.
    pub fn weight(&self) -> usize {
        const STRING: usize = 24;
        let read = |it: &RelationName| size_of::<RelationName>() + STRING + it.names().map(str::len).sum::<usize>();
        let always = size_of::<Statement>()
            + self.reads.iter().map(read).sum::<usize>()
            + size_of::<Declared>() * self.declared.len();
        // Most statements have no other names.
        if self.only_reads() && self.functions.is_empty() {
            return always;
        }
        let inner = match &self.prepared {
            PreparedEffect::Prepare { statement, .. } => statement.weight(),
            PreparedEffect::Execute { arguments, .. } => arguments
                .iter()
                .map(|argument| size_of::<ColumnValue>() + argument.as_ref().map_or(0, ColumnValue::weight))
                .sum(),
            _ => 0,
        };
        always
            + self.names().map(|name| STRING + 2 * size_of::<String>() + name.len()).sum::<usize>()
            + self.writes.iter().map(|write| write.rows.weight()).sum::<usize>()
            + inner
    }
}
