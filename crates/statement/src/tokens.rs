//! The tokens of a text, split as by PostgreSQL's lexer: in linear time, without allocating.
//!
//! Must never end a literal, name or comment elsewhere than the server does: [`Lexeme::Unsure`] marks uncertain input,
//! and nothing follows it.

/// Maximum length, in bytes, of a name that is certainly not truncated, whatever its encoding.
pub(super) const LONGEST_SURE_NAME: usize = 59;

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lexeme<'t> {
    /// A key word or a name without quotes.
    Word(&'t [u8]),
    /// The text between the quotes of a name.
    Quoted(&'t [u8]),
    /// A string, number or parameter.
    Literal,
    /// One byte of an operator or of punctuation.
    Symbol(u8),
    /// Only the lexer can determine the token.
    Unsure,
}

impl Lexeme<'_> {
    /// Returns true if the token is that key word, in any case.
    pub(super) fn is(self, wanted: &[u8]) -> bool {
        matches!(self, Lexeme::Word(word) if word.eq_ignore_ascii_case(wanted))
    }

    /// The name, if every encoding reads it in the same way and it is not truncated.
    pub(super) fn name(self) -> Option<String> {
        let (name, is_folded) = match self {
            Lexeme::Word(word) => (word, true),
            Lexeme::Quoted(name) if !name.contains(&b'"') => (name, false),
            _ => return None,
        };
        let name = std::str::from_utf8(name).ok()?;
        let is_sure = name.is_ascii() && name.len() <= LONGEST_SURE_NAME;
        is_sure.then(|| if is_folded { name.to_ascii_lowercase() } else { name.to_owned() })
    }
}

/// Splits a text in which non-ASCII characters contain no ASCII byte.
pub(super) struct Lexemes<'t> {
    text: &'t [u8],
    start: usize,
    position: usize,
    standard_conforming_strings: bool,
}

impl<'t> Lexemes<'t> {
    pub(super) fn new(text: &'t [u8], standard_conforming_strings: bool) -> Self {
        Self { text, start: 0, position: 0, standard_conforming_strings }
    }

    /// Start of the last token that was read.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// End of the last token that was read.
    pub(super) fn end(&self) -> usize {
        self.position
    }

    fn at(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.position + ahead).copied()
    }

    /// Skips bytes of one kind and returns them.
    fn take(&mut self, is: impl Fn(u8) -> bool) -> &'t [u8] {
        let rest = &self.text[self.position..];
        let taken = &rest[..rest.iter().position(|byte| !is(*byte)).unwrap_or(rest.len())];
        self.position += taken.len();
        taken
    }

    /// Skips white space and comments. Returns false for an unterminated comment.
    fn skip(&mut self) -> bool {
        loop {
            match (self.at(0), self.at(1)) {
                (Some(b' ' | b'\t' | b'\n' | b'\r' | b'\x0b' | b'\x0c'), _) => self.position += 1,
                (Some(b'-'), Some(b'-')) => drop(self.take(|byte| !matches!(byte, b'\n' | b'\r'))),
                (Some(b'/'), Some(b'*')) if !self.comment() => return false,
                (Some(b'/'), Some(b'*')) => {}
                _ => return true,
            }
        }
    }

    /// Skips a comment, which may contain others.
    fn comment(&mut self) -> bool {
        let mut depth = 0;
        loop {
            match (self.at(0), self.at(1)) {
                (Some(b'/'), Some(b'*')) => (self.position, depth) = (self.position + 2, depth + 1),
                (Some(b'*'), Some(b'/')) => (self.position, depth) = (self.position + 2, depth - 1),
                (Some(_), _) => self.position += 1,
                (None, _) => return false,
            }
            if depth == 0 {
                return true;
            }
        }
    }

    fn token(&mut self) -> Lexeme<'t> {
        let Some(first) = self.at(0) else { return Lexeme::Unsure };
        match first {
            b'\'' => self.string(!self.standard_conforming_strings),
            b'"' => self.quoted().map_or(Lexeme::Unsure, Lexeme::Quoted),
            b'$' => self.dollar(),
            b'0'..=b'9' => self.number(),
            _ if starts_word(first) => self.word(),
            b'(' | b')' | b'[' | b']' | b',' | b';' | b':' | b'.' | b'~' | b'!' | b'@' | b'#' | b'^' | b'&' | b'|'
            | b'`' | b'?' | b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' => {
                self.position += 1;
                Lexeme::Symbol(first)
            }
            _ => Lexeme::Unsure,
        }
    }

    fn word(&mut self) -> Lexeme<'t> {
        let word = self.take(continues_word);
        match (word, self.at(0), self.at(1)) {
            (b"e" | b"E", Some(b'\''), _) => self.string(true),
            // These strings have no escapes. Directly following text continues by the rules of a plain string.
            (b"b" | b"B" | b"x" | b"X", Some(b'\''), _) => match self.standard_conforming_strings {
                true => self.string(false),
                false => Lexeme::Unsure,
            },
            (b"u" | b"U", Some(b'&'), Some(b'\'' | b'"')) => self.unicode(),
            _ => Lexeme::Word(word),
        }
    }

    /// `U&'…'` and `U&"…"`: escapes hide no quote, but change the name.
    fn unicode(&mut self) -> Lexeme<'t> {
        self.position += 1;
        match (self.at(0), self.standard_conforming_strings) {
            (Some(b'\''), true) => self.string(false),
            _ => Lexeme::Unsure,
        }
    }

    fn string(&mut self, escapes: bool) -> Lexeme<'t> {
        self.position += 1;
        loop {
            match (self.at(0), self.at(1)) {
                (Some(b'\''), Some(b'\'')) => self.position += 2,
                (Some(b'\''), _) => break,
                (Some(b'\\'), Some(_)) if escapes => self.position += 2,
                (Some(_), _) => self.position += 1,
                (None, _) => return Lexeme::Unsure,
            }
        }
        self.position += 1;
        Lexeme::Literal
    }

    fn quoted(&mut self) -> Option<&'t [u8]> {
        self.position += 1;
        let start = self.position;
        loop {
            match (self.at(0)?, self.at(1)) {
                (b'"', Some(b'"')) => self.position += 2,
                (b'"', _) => break,
                _ => self.position += 1,
            }
        }
        self.position += 1;
        Some(&self.text[start..self.position - 1])
    }

    /// `$1`, or `$tag$…$tag$`.
    fn dollar(&mut self) -> Lexeme<'t> {
        let start = self.position;
        self.position += 1;
        if self.at(0).is_some_and(|byte| byte.is_ascii_digit()) {
            self.take(|byte| byte.is_ascii_digit());
            return self.literal_unless_word();
        }
        if self.at(0).is_some_and(starts_word) {
            self.take(|byte| continues_word(byte) && byte != b'$');
        }
        if self.at(0) != Some(b'$') {
            return Lexeme::Unsure;
        }
        self.position += 1;
        let tag = &self.text[start..self.position];
        loop {
            self.take(|byte| byte != b'$');
            let rest = &self.text[self.position..];
            if rest.starts_with(tag) {
                self.position += tag.len();
                return Lexeme::Literal;
            }
            if rest.is_empty() {
                return Lexeme::Unsure;
            }
            self.position += 1;
        }
    }

    fn number(&mut self) -> Lexeme<'t> {
        self.take(|byte| byte.is_ascii_digit() || byte == b'.');
        let sign = usize::from(matches!(self.at(1), Some(b'+' | b'-')));
        if matches!(self.at(0), Some(b'e' | b'E')) && self.at(1 + sign).is_some_and(|byte| byte.is_ascii_digit()) {
            self.position += 1 + sign;
            self.take(|byte| byte.is_ascii_digit());
        }
        self.literal_unless_word()
    }

    /// Server versions differ in how they treat letters after a number.
    fn literal_unless_word(&self) -> Lexeme<'t> {
        if self.at(0).is_some_and(continues_word) { Lexeme::Unsure } else { Lexeme::Literal }
    }
}

impl<'t> Iterator for Lexemes<'t> {
    type Item = Lexeme<'t>;

    fn next(&mut self) -> Option<Lexeme<'t>> {
        let ends_its_comments = self.skip();
        self.start = self.position;
        let token = match ends_its_comments {
            true if self.position == self.text.len() => return None,
            true => self.token(),
            false => Lexeme::Unsure,
        };
        if token == Lexeme::Unsure {
            self.position = self.text.len();
        }
        Some(token)
    }
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte > 127
}

fn continues_word(byte: u8) -> bool {
    starts_word(byte) || byte.is_ascii_digit() || byte == b'$'
}
