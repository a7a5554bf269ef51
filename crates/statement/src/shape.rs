//! The shape of a text: the text without the content of its literals. Texts with the same shape are parsed once.
//!
//! Must never assign one shape to two texts that the server's lexer splits differently, and must never let a shape
//! stand for a verdict that depends on a literal. docs/trust/protocol.md, "One verdict for many texts", explains why
//! neither happens.

use super::functions::is_harmless;
use super::rows::Rows;
use super::tokens::{Lexeme, Lexemes};
use super::{Encoding, Lexing, Script, ServerEncoding, Statement, StatementKind, Unreadable};
use std::sync::Arc;

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
