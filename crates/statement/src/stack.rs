//! Room on the stack for the parser's trees.
//!
//! Must never let a tree overflow the stack of the thread that reads it, which would end the process.

use super::tokens::{Lexeme, Lexemes};
use std::thread;

/// The tree of a text with at most this many tokens takes less than half a megabyte.
const SHALLOW: usize = 60;

/// Sufficient for every tree that the parser creates: it refuses trees that need more than 2 MiB of its stack, about
/// 4,500 levels. Each stack is used once, so its memory is returned.
pub(crate) const SIZE: usize = if cfg!(debug_assertions) { 256 << 20 } else { 64 << 20 };

/// Runs a recursion as deep as the text's tree. None if the system cannot provide the stack.
pub(super) fn with_room<R: Send>(
    text: &[u8],
    standard_conforming_strings: bool,
    work: impl FnOnce() -> R + Send,
) -> Option<R> {
    let mut tokens = Lexemes::new(text, standard_conforming_strings);
    let is_shallow = tokens.by_ref().take(SHALLOW).all(|token| token != Lexeme::Unsure) && tokens.next().is_none();
    if is_shallow {
        return Some(work());
    }
    thread::scope(|scope| {
        let reader = thread::Builder::new().stack_size(SIZE).spawn_scoped(scope, work).ok()?;
        reader.join().ok()
    })
}
