//! Binary encoding of a reader process's response.
//!
//! Must never decode a different response than the encoded one: an unknown name makes the response invalid.

use crate::{Script, Unreadable};
use std::io;

/// Encodes a response.
///
/// # Errors
/// The response has no JSON form.
pub fn encode(read: &Result<Script, Unreadable>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(read).map_err(io::Error::other)
}

/// Decodes a response; `None` if the bytes are no response.
pub fn decode(answer: &[u8]) -> Option<Result<Script, Unreadable>> {
    serde_json::from_slice(answer).ok()
}
