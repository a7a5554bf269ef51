//! Key words of the parser's grammar that an older server reads as names.
//!
//! Owns the list. Must never leave such a word as it is in a text of an older server: the parser would take a call of the
//! function `json_query`, say, for syntax that calls nothing.

use super::Lexing;
use super::tokens::{Lexeme, Lexemes};

/// Words that are more than unreserved in the parser's grammar, with the first release whose grammar has them; and
/// FORMAT, which its lexer treats specially before JSON. All other new words can be names wherever a name is allowed.
const WORDS: [(&str, u8); 14] = [
    ("format", 16),
    ("json", JSON_CALLED),
    ("json_array", 16),
    ("json_arrayagg", 16),
    ("json_exists", 17),
    ("json_object", 16),
    ("json_objectagg", 16),
    ("json_query", 17),
    ("json_scalar", 17),
    ("json_serialize", 17),
    ("json_table", 17),
    ("json_value", 17),
    ("merge_action", 17),
    ("system_user", 16),
];

/// The first release in which `json(…)` calls no function. Before it `json` is the name of a type, and in 16 a word of
/// IS JSON and FORMAT JSON too.
const JSON_CALLED: u8 = 17;

/// The text with these words in quotes, as names, and where the quotes are. None for a text that has none of them.
///
/// # Errors
/// When it may have some that cannot be found.
pub(super) fn quoted(text: &str, lexing: Lexing) -> Result<Option<(String, Vec<usize>)>, HiddenWord> {
    let newer = |word: &[u8]| {
        let known = WORDS.iter().find(|(newer, _)| newer.as_bytes().eq_ignore_ascii_case(word));
        known.filter(|(_, release)| lexing.release < *release).map(|(word, _)| *word)
    };
    if !words(text).any(|word| newer(word).is_some()) {
        return Ok(None);
    }
    let (mut quoted, mut quotes, mut copied) = (String::new(), Vec::new(), 0);
    let mut tokens = Lexemes::new(text.as_bytes(), lexing.standard_conforming_strings);
    let mut last = Lexeme::Symbol(b';');
    while let Some(token) = tokens.next() {
        let (start, end) = (tokens.start(), tokens.end());
        // A string that continues after a line break follows the rules of its first part.
        let is_unsure = token == Lexeme::Unsure || token == Lexeme::Literal && last == Lexeme::Literal;
        if is_unsure && words(&text[start..]).any(|word| newer(word).is_some()) {
            return Err(HiddenWord);
        }
        last = token;
        let Lexeme::Word(word) = token else { continue };
        let Some(word) = newer(word) else { continue };
        if word == "json" && !text[end..].trim_start().starts_with('(') {
            continue;
        }
        quoted.push_str(&text[copied..start]);
        quotes.extend([quoted.len(), quoted.len() + 1 + word.len()]);
        quoted.extend(["\"", word, "\""]);
        copied = end;
    }
    quoted.push_str(&text[copied..]);
    Ok((!quotes.is_empty()).then_some((quoted, quotes)))
}

/// A newer word may stand where the tokens of the text cannot be told.
pub(super) struct HiddenWord;

/// Everything that may be a word, also within literals and comments.
fn words(text: &str) -> impl Iterator<Item = &[u8]> {
    text.as_bytes().split(|byte| !byte.is_ascii_alphabetic() && *byte != b'_').filter(|word| !word.is_empty())
}
