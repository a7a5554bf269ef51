//! Bytes in a client encoding → the UTF-8 that the parser reads, and its positions back to bytes.
//!
//! Must never let a byte that is part of a longer character pass for syntax.

use super::{Encoding, Unreadable};
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

/// A text as the parser reads it.
pub(super) struct Sql<'t> {
    text: Cow<'t, str>,
    foreign: bool,
}

impl<'t> Sql<'t> {
    pub(super) fn read(bytes: &'t [u8], encoding: Encoding) -> Result<Self, Unreadable> {
        if bytes.contains(&0) {
            return Err(Unreadable::Syntax);
        }
        match (std::str::from_utf8(bytes), encoding) {
            (Ok(text), Encoding::Utf8) => Ok(Self { text: Cow::Borrowed(text), foreign: false }),
            (Ok(text), _) if text.is_ascii() => {
                Ok(Self { text: Cow::Borrowed(text), foreign: encoding != Encoding::Utf8 })
            }
            // One character for every byte, none of which means anything to the lexer: what remains is the structure.
            (_, Encoding::AsciiSafe) => {
                Ok(Self { text: Cow::Owned(bytes.iter().copied().map(char::from).collect()), foreign: true })
            }
            _ => Err(Unreadable::Encoding),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Names with characters outside ASCII are not what the server will read.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Turns ranges of [`Sql::text`], in order and apart, into ranges of the bytes it was read from.
    pub(super) fn restore<'r>(&self, ranges: impl Iterator<Item = &'r mut Range<usize>>) {
        if let Cow::Borrowed(_) = self.text {
            return;
        }
        let (mut position, mut bytes) = (0, 0);
        let mut byte_at = |to: usize| {
            bytes += self.text.get(position..to).map_or(0, |passed| passed.chars().count());
            position = to;
            bytes
        };
        for range in ranges {
            *range = byte_at(range.start)..byte_at(range.end);
        }
    }
}
