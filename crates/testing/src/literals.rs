//! Variants of texts with other literals and comments: the same statements, as PostgreSQL's own lexer splits them.

use super::dice::Dice;
use fencegate_statement::{
    Cache, Encoding, Lexing, Script, ServerEncoding, Statement, Unreadable, Write, analyze, analyze_rows, rows::Rows,
};
use pg_query::protobuf::Token;
use std::sync::Arc;

pub const LEXING: Lexing = Lexing {
    standard_conforming_strings: true,
    encoding: Encoding::Utf8,
    server: ServerEncoding::Utf8,
    release: Lexing::NEWEST,
};

/// Parts of strings that may end a literal too early or mislead a parser.
const PIECES: [&str; 16] =
    ["''", "\\", "\\''", ";", "--", "/*", "*/", "$$", "$1", "\"", " for ", " set ", " with ", "config", "U&", "\n"];

/// The text with other literals, comments and lengths of IN lists. None if the lexer rejects the text.
pub fn varied(text: &str, dice: &mut Dice) -> Option<String> {
    let tokens = pg_query::scan(text).ok()?.tokens;
    let (mut varied, mut copied) = (String::new(), 0);
    let mut last = [Token::Nul; 2];
    for token in tokens {
        let range = usize::try_from(token.start).ok()?..usize::try_from(token.end).ok()?;
        let literal = text.get(range.clone())?;
        varied.push_str(text.get(copied..range.start)?);
        copied = range.end;
        if range.start > 0 && text[..range.start].ends_with(' ') && dice.chance(10) {
            varied.push_str(&comment(dice));
        }
        let is_in_list = last == [Token::InP, Token::Ascii40];
        for _ in 0..if is_in_list && dice.chance(50) { dice.below(3) } else { 0 } {
            if let Some(other) = other(token.token(), literal, dice) {
                varied.extend([&other, ", "]);
            }
        }
        match (token.token(), other(token.token(), literal, dice)) {
            (Token::CComment | Token::SqlComment, _) => varied.push_str(&comment(dice)),
            (_, Some(other)) => varied.push_str(&other),
            (_, None) => varied.push_str(literal),
        }
        last = [last[1], token.token()];
    }
    varied.push_str(&text[copied..]);
    Some(varied)
}

/// Another literal, mostly of the same type.
fn other(token: Token, literal: &str, dice: &mut Dice) -> Option<String> {
    if matches!(token, Token::Sconst | Token::Iconst | Token::Fconst) && dice.chance(10) {
        return Some((*dice.pick(&["3", "'3'", "3.5", "3000000000"])).to_owned());
    }
    match token {
        Token::Sconst if literal.starts_with('\'') => Some(string(dice.below(20), dice)),
        Token::Iconst if literal.bytes().all(|byte| byte.is_ascii_digit()) => Some(dice.below(1_000_000).to_string()),
        Token::Iconst | Token::Fconst => Some(number(literal, dice)),
        _ => None,
    }
}

fn comment(dice: &mut Dice) -> String {
    match dice.below(3) {
        0 => " ".to_owned(),
        1 => format!("/* {} 'a' ; */", dice.below(1_000)),
        _ => format!("--{} \" for /*\n", dice.below(1_000)),
    }
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

/// Reads variants of `text` through a cache that has read `text`, and compares the results with separate analyses.
/// Returns how many variants share its analysis.
pub fn read_once(text: &str, dice: &mut Dice) -> usize {
    let cache = Cache::default();
    let with_rows = dice.chance(50);
    let Some(first) = cache.get(text.as_bytes(), LEXING, with_rows) else { return 0 };
    let mut shared = 0;
    for _ in 0..2 {
        let Some(other) = varied(text, dice).filter(|other| other != text) else { continue };
        let Some(found) = cache.get(other.as_bytes(), LEXING, with_rows) else { continue };
        shared += usize::from(Arc::ptr_eq(&found, &first));
        let read = if with_rows { analyze_rows(other.as_bytes(), LEXING) } else { analyze(other.as_bytes(), LEXING) };
        assert_eq!(comparable(&found, with_rows), comparable(&read, with_rows), "{other:?} after {text:?}");
    }
    shared
}

/// Ignores ranges, which a shared analysis does not have, and the order of names, which depends on the reader: a word
/// in a literal may select either one.
fn comparable(read: &Result<Script, Unreadable>, with_rows: bool) -> Result<Script, Unreadable> {
    let mut script = read.clone()?;
    let is_alone = script.statements.len() == 1;
    for statement in script.statements.iter_mut().map(Arc::make_mut) {
        let mut writes: Vec<Write> = Vec::new();
        for write in statement.writes.drain(..) {
            let rows = if with_rows { write.rows } else { Rows::default() };
            let write = Write { rows, ..write };
            if !writes.contains(&write) {
                writes.push(write);
            }
        }
        statement.writes = writes;
        // Without writes, nothing depends on this field.
        statement.keys_by_path &= with_rows && !statement.writes.is_empty();
        if is_alone {
            statement.range = Statement::WHOLE;
        }
        statement.writes.sort_by_cached_key(|write| format!("{write:?}"));
        statement.functions.sort_by_cached_key(|function| format!("{function:?}"));
        statement.reads.sort_by_cached_key(|relation| format!("{relation:?}"));
    }
    Ok(script)
}
