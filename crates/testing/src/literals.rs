//! Texts with other literals: the same statements, cut by Postgres' own lexer, with other strings and numbers.

use super::dice::Dice;
use fencegate_statement::{Cache, Encoding, Lexing, Script, ServerEncoding, Unreadable, Write, analyze, rows::Rows};
use pg_query::protobuf::Token;
use std::sync::Arc;

pub const LEXING: Lexing = Lexing {
    standard_conforming_strings: true,
    encoding: Encoding::Utf8,
    server: ServerEncoding::Utf8,
    release: Lexing::NEWEST,
};

/// Texts that may end a literal too early or mislead a parser.
const PIECES: [&str; 16] =
    ["''", "\\", "\\''", ";", "--", "/*", "*/", "$$", "$1", "\"", " for ", " set ", " with ", "config", "U&", "\n"];

/// The text with other literals of the same lengths. None where the lexer does not know the text.
pub fn varied(text: &str, dice: &mut Dice) -> Option<String> {
    let tokens = pg_query::scan(text).ok()?.tokens;
    let (mut varied, mut copied) = (String::new(), 0);
    for token in tokens {
        let range = usize::try_from(token.start).ok()?..usize::try_from(token.end).ok()?;
        let literal = text.get(range.clone())?;
        let other = match token.token() {
            Token::Sconst if literal.starts_with('\'') => string(literal.len() - 2, dice),
            Token::Iconst | Token::Fconst => number(literal, dice),
            _ => continue,
        };
        varied.push_str(text.get(copied..range.start)?);
        varied.push_str(&other);
        copied = range.end;
    }
    varied.push_str(&text[copied..]);
    Some(varied)
}

fn string(length: usize, dice: &mut Dice) -> String {
    let mut inner = String::new();
    while inner.len() < length {
        let piece = if dice.chance(50) { *dice.pick(&PIECES) } else { "x" };
        inner.push_str(if inner.len() + piece.len() <= length { piece } else { "y" });
    }
    format!("'{inner}'")
}

fn number(literal: &str, dice: &mut Dice) -> String {
    let digit = |c: char, dice: &mut Dice| if c.is_ascii_digit() { char::from(b'0' + dice.below(10) as u8) } else { c };
    literal.chars().map(|c| digit(c, dice)).collect()
}

/// Asks a cache that has read `text` for texts with other literals, and compares with what their own reading says. How many
/// of them it did not have to read.
pub fn read_once(text: &str, dice: &mut Dice) -> usize {
    let cache = Cache::default();
    let with_rows = dice.chance(25);
    let Some(first) = cache.get(text.as_bytes(), LEXING, with_rows) else { return 0 };
    let mut spared = 0;
    for _ in 0..2 {
        let Some(other) = varied(text, dice).filter(|other| other != text) else { continue };
        let Some(found) = cache.get(other.as_bytes(), LEXING, with_rows) else { continue };
        let is_spared = Arc::ptr_eq(&found, &first);
        spared += usize::from(is_spared);
        let read = analyze(other.as_bytes(), LEXING);
        let writes = read.iter().flat_map(|script| &script.statements).any(|statement| !statement.writes.is_empty());
        assert!(!(is_spared && with_rows && writes), "{other:?} has rows of its own, after {text:?}");
        assert_eq!(without_rows(&found), without_rows(&read), "{other:?} after {text:?}");
    }
    spared
}

/// Rows are told by literals, and nobody asked for them. The two readers, of which a word in a literal may choose one, name
/// things in orders of their own.
fn without_rows(read: &Result<Script, Unreadable>) -> Result<Script, Unreadable> {
    let mut script = read.clone()?;
    for statement in script.statements.iter_mut().map(Arc::make_mut) {
        let mut writes: Vec<Write> = Vec::new();
        for write in statement.writes.drain(..) {
            let write = Write { rows: Rows::default(), ..write };
            if !writes.contains(&write) {
                writes.push(write);
            }
        }
        statement.writes = writes;
        statement.keys_by_path = false;
        statement.writes.sort_by_cached_key(|write| format!("{write:?}"));
        statement.functions.sort_by_cached_key(|function| format!("{function:?}"));
        statement.reads.sort_by_cached_key(|relation| format!("{relation:?}"));
    }
    Ok(script)
}
