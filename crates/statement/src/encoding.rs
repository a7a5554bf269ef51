//! From bytes in a client encoding to the UTF-8 that the parser reads, and from its positions back to bytes.
//!
//! Must never
//! - let a byte that is part of a longer character pass for syntax, nor a name for a key word that the server does not
//!   know;
//! - keep a key word of the parser's grammar that an older server reads as a name: the parser would read a call of the
//!   function `json_query`, for example, as syntax that calls nothing.

use super::tokens::{Lexeme, Lexemes};
use super::{Encoding, Lexing, ServerEncoding, Unreadable};
use std::borrow::Cow;
use std::ops::Range;

impl Encoding {
    /// The class of a value of `client_encoding`; as Postgres does it, only letters and digits of the name count.
    pub fn from_name(name: &str) -> Self {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        match plain.to_ascii_uppercase().as_str() {
            "UTF8" | "UNICODE" => Encoding::Utf8,
            "SQLASCII" | "MULEINTERNAL" | "EUCJP" | "EUCCN" | "EUCKR" | "EUCTW" | "EUCJIS2004" => Encoding::AsciiSafe,
            "LATIN1" | "LATIN2" | "LATIN3" | "LATIN4" | "LATIN5" | "LATIN6" | "LATIN7" | "LATIN8" | "LATIN9"
            | "LATIN10" | "ISO88595" | "ISO88596" | "ISO88597" | "ISO88598" | "KOI8R" | "KOI8U" => Encoding::AsciiSafe,
            "WIN866" | "WIN874" | "WIN1250" | "WIN1251" | "WIN1252" | "WIN1253" | "WIN1254" | "WIN1255" | "WIN1256"
            | "WIN1257" | "WIN1258" => Encoding::AsciiSafe,
            _ => Encoding::AsciiUnsafe,
        }
    }
}

impl ServerEncoding {
    /// The class of a value of `server_encoding`.
    pub fn from_name(name: &str) -> Self {
        const SINGLE: [&str; 7] = ["SQL_ASCII", "LATIN", "ISO_8859_", "WIN", "KOI8R", "KOI8U", "ISO88"];
        match name {
            "UTF8" => ServerEncoding::Utf8,
            _ if SINGLE.iter().any(|start| name.starts_with(start)) => ServerEncoding::SingleByte,
            _ => ServerEncoding::Other,
        }
    }
}

impl Lexing {
    /// The lexing of most sessions.
    pub const USUAL: Lexing = Lexing {
        standard_conforming_strings: true,
        encoding: Encoding::Utf8,
        server: ServerEncoding::Utf8,
        release: Lexing::NEWEST,
    };

    /// The release of an unknown server: as new as the parser's grammar.
    pub const NEWEST: u8 = u8::MAX;

    /// Records the value of a setting that the server reports.
    pub fn note(&mut self, name: &str, value: &str) {
        match name {
            "standard_conforming_strings" => self.standard_conforming_strings = value != "off",
            "client_encoding" => self.encoding = Encoding::from_name(value),
            "server_encoding" => self.server = ServerEncoding::from_name(value),
            "server_version" => self.release = release(value),
            _ => (),
        }
    }

    /// Returns true if non-ASCII bytes are the same characters to the client, the proxy and the server.
    pub fn keeps_text(self) -> bool {
        self.encoding == Encoding::Utf8 && self.server != ServerEncoding::Other
    }
}

/// The major version that a value of `server_version` begins with.
fn release(version: &str) -> u8 {
    let digits = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(Lexing::NEWEST)
}

/// A text as the parser reads it.
pub(super) struct Sql<'t> {
    text: Cow<'t, str>,
    /// One character for every byte of the text that was sent.
    widened: bool,
    /// Positions of quotes in `text` that the sent text does not have.
    quotes: Vec<usize>,
    foreign: bool,
    folds_more: bool,
}

impl<'t> Sql<'t> {
    pub(super) fn read(bytes: &'t [u8], lexing: Lexing) -> Result<Self, Unreadable> {
        let foreign = !lexing.keeps_text();
        let folds_more = lexing.server != ServerEncoding::Utf8 && has_plain_word(bytes, lexing);
        if bytes.contains(&0) {
            return Err(Unreadable::Syntax);
        }
        let (mut text, widened) = match (std::str::from_utf8(bytes), lexing.encoding) {
            (Ok(text), Encoding::Utf8) => (Cow::Borrowed(text), false),
            (Ok(text), _) if text.is_ascii() => (Cow::Borrowed(text), false),
            // One character per byte, each without a meaning for the lexer: only the structure remains.
            (_, Encoding::AsciiSafe) => (Cow::Owned(bytes.iter().copied().map(char::from).collect()), true),
            _ => return Err(Unreadable::Encoding),
        };
        let mut quotes = Vec::new();
        if let Some((quoted, at)) = quoted(&text, lexing).map_err(|HiddenWord| Unreadable::Syntax)? {
            (text, quotes) = (Cow::Owned(quoted), at);
        }
        Ok(Self { text, widened, quotes, foreign, folds_more })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// True if the text has names with non-ASCII characters, which the server may read differently.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// True if the text has unquoted names that the server may fold to lower case in more characters than the proxy.
    pub(super) fn folds_more(&self) -> bool {
        self.folds_more
    }

    /// Turns ranges of [`Sql::text`], in order and apart, into ranges of the bytes it was read from.
    pub(super) fn restore<'r>(&self, ranges: impl Iterator<Item = &'r mut Range<usize>>) {
        if let Cow::Borrowed(_) = self.text {
            return;
        }
        let (mut position, mut bytes, mut quotes) = (0, 0, self.quotes.as_slice());
        let mut byte_at = |to: usize| {
            let passed = self.text.get(position..to).unwrap_or_default();
            let (added, left) = quotes.split_at(quotes.partition_point(|quote| *quote < to));
            bytes += if self.widened { passed.chars().count() } else { passed.len() } - added.len();
            (position, quotes) = (to, left);
            bytes
        };
        for range in ranges {
            *range = byte_at(range.start)..byte_at(range.end);
        }
    }
}

/// Returns true if the tokens permit an unquoted non-ASCII word.
fn has_plain_word(bytes: &[u8], lexing: Lexing) -> bool {
    let is_plain = |token| match token {
        Lexeme::Word(word) => !word.is_ascii(),
        Lexeme::Unsure => true,
        Lexeme::Quoted(_) | Lexeme::Literal | Lexeme::Symbol(_) => false,
    };
    !bytes.is_ascii() && Lexemes::new(bytes, lexing.standard_conforming_strings).any(is_plain)
}

/// Words that are more than unreserved in the parser's grammar, with the first release whose grammar has them, and
/// FORMAT, which the parser's lexer treats specially before JSON. All other new words can be names wherever a name is
/// allowed.
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

/// The first release in which `json(…)` calls no function. Earlier, `json` is the name of a type; in 16, it is also a
/// word of IS JSON and FORMAT JSON.
const JSON_CALLED: u8 = 17;

/// The text with these words quoted as names, and the positions of the quotes; `None` if it has no such word.
///
/// # Errors
/// The text may have such a word where its tokens are uncertain.
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

/// Part of the text with uncertain tokens may contain a newer word.
pub(super) struct HiddenWord;

/// All possible words, including those in literals and comments.
fn words(text: &str) -> impl Iterator<Item = &[u8]> {
    text.as_bytes().split(|byte| !byte.is_ascii_alphabetic() && *byte != b'_').filter(|word| !word.is_empty())
}
