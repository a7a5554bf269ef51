//! The encoding in bytes of what a reader process answers.
//!
//! Must never decode another answer than the one that was encoded: an unknown name makes it invalid.

use crate::statement::{Script, Statement, Unreadable, Word};
use parking_lot::Mutex;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// As bytes.
///
/// # Errors
/// When it cannot be said in bytes.
pub fn encode(read: &Result<Script, Unreadable>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(read).map_err(io::Error::other)
}

/// What bytes say; None where they say nothing.
pub fn decode(answer: &[u8]) -> Option<Result<Script, Unreadable>> {
    serde_json::from_slice(answer).ok()
}

/// Kinds of statements and reasons that were met. There are few, all of them in the source.
static WORDS: Mutex<Option<HashSet<Word>>> = Mutex::new(None);

/// More are not the source's.
const MOST_WORDS: usize = 1_000;

/// A text that the source has as a constant.
pub(super) fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    let text = String::deserialize(from)?;
    let mut words = WORDS.lock();
    let words = words.get_or_insert_default();
    if let Some(known) = words.get(text.as_str()) {
        return Ok(known);
    }
    if words.len() == MOST_WORDS {
        return Err(D::Error::custom("too many words"));
    }
    let word: Word = Box::leak(text.into_boxed_str());
    words.insert(word);
    Ok(word)
}

/// As [`word`], where there may be none.
pub(super) fn maybe_word<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Word>, D::Error> {
    #[derive(Deserialize)]
    struct Known(#[serde(deserialize_with = "word")] Word);
    Ok(Option::<Known>::deserialize(from)?.map(|Known(word)| word))
}

pub(super) fn put_shared<S: Serializer>(statement: &Arc<Statement>, to: S) -> Result<S::Ok, S::Error> {
    Statement::serialize(statement, to)
}

pub(super) fn shared<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Statement>, D::Error> {
    Statement::deserialize(from).map(Arc::new)
}

pub(super) fn put_list<S: Serializer>(list: &[Arc<Statement>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(list.iter().map(|statement| &**statement))
}

pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Arc<Statement>>, D::Error> {
    Ok(Vec::<Statement>::deserialize(from)?.into_iter().map(Arc::new).collect())
}
