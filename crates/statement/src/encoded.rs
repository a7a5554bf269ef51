//! Binary encoding of a reader process's response.
//!
//! Must never decode a different response than the encoded one: an unknown name makes the response invalid.

use crate::{Script, Statement, Unreadable};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io;
use std::sync::Arc;

/// As bytes.
///
/// # Errors
/// When it cannot be said in bytes.
pub fn encode(read: &Result<Script, Unreadable>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(read).map_err(io::Error::other)
}

/// Decodes an answer; `None` if the bytes are no answer.
pub fn decode(answer: &[u8]) -> Option<Result<Script, Unreadable>> {
    serde_json::from_slice(answer).ok()
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
