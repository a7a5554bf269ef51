//! ErrorResponse and NoticeResponse: fields of the server's messages, and messages of the proxy.
//! PostgreSQL documentation, chapter "Error and Notice Message Fields".

use super::frame::{put_frame, split_string};
use bytes::{BufMut, BytesMut};

/// Severity of an error or notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The statement ends. The session continues.
    Error,
    /// The session ends.
    Fatal,
    /// Nothing ends. The message accompanies the reply.
    Warning,
    /// Information. There is no problem.
    Notice,
}

impl Severity {
    /// The value of the fields S and V.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Warning => "WARNING",
            Severity::Notice => "NOTICE",
        }
    }

    /// The kind of message: ErrorResponse or NoticeResponse.
    fn tag(self) -> u8 {
        match self {
            Severity::Error | Severity::Fatal => b'E',
            Severity::Warning | Severity::Notice => b'N',
        }
    }
}

/// Maximum length of each part of an error, in bytes. A part may quote untrusted input.
const LONGEST: usize = 2048;

/// The longest prefix of a text that has at most `most` bytes and ends at a character boundary.
pub fn start_of(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    &text[..end]
}

fn bounded(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() > LONGEST {
        text.truncate(start_of(&text, LONGEST).len());
        text.push_str("...");
    }
    text
}

/// The text of an error that the proxy sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorText {
    /// SQLSTATE.
    pub code: &'static str,
    /// The message.
    pub message: String,
    /// The DETAIL; omitted if empty.
    pub detail: String,
    /// The HINT; omitted if empty.
    pub hint: String,
}

impl ErrorText {
    /// An error without DETAIL and HINT.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        ErrorText { code, message: bounded(message), detail: String::new(), hint: String::new() }
    }

    /// Adds a HINT.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = bounded(hint);
        self
    }

    /// Adds a DETAIL.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = bounded(detail);
        self
    }

    /// Appends an ErrorResponse, or a NoticeResponse for a warning or notice.
    pub fn put(&self, output: &mut BytesMut, severity: Severity) {
        put_frame(output, severity.tag(), |body| {
            let mut field = |tag: u8, value: &str| {
                body.put_u8(tag);
                // A NUL would end the field, and its rest would be read as other fields.
                body.extend(value.bytes().filter(|&byte| byte != 0));
                body.put_u8(0);
            };
            field(b'S', severity.name());
            field(b'V', severity.name());
            field(b'C', self.code);
            field(b'M', &self.message);
            if !self.detail.is_empty() {
                field(b'D', &self.detail);
            }
            if !self.hint.is_empty() {
                field(b'H', &self.hint);
            }
            body.put_u8(0);
        });
    }
}

/// The field with this tag in the body of an ErrorResponse or NoticeResponse.
pub fn field(body: &[u8], wanted: u8) -> Option<&[u8]> {
    fields(body).find(|(tag, _)| *tag == wanted).map(|(_, value)| value)
}

/// The fields of the body of an ErrorResponse or NoticeResponse, in order, up to the first malformed one.
pub fn fields(mut body: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&tag, rest) = body.split_first().filter(|(tag, _)| **tag != 0)?;
        let (value, rest) = split_string(rest)?;
        body = rest;
        Some((tag, value))
    })
}

/// Appends the error with this body and another hint.
pub fn put_with_hint(output: &mut BytesMut, body: &[u8], hint: &str) {
    put_frame(output, Severity::Error.tag(), |out| {
        for (tag, value) in fields(body).filter(|(tag, _)| *tag != b'H').chain([(b'H', hint.as_bytes())]) {
            out.put_u8(tag);
            out.put_slice(value);
            out.put_u8(0);
        }
        out.put_u8(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_error_can_be_read() {
        let mut output = BytesMut::new();
        ErrorText::new("LF001", "stale\0Hforged").detail("highest=2").put(&mut output, Severity::Fatal);
        let body = &output[5..];
        assert_eq!(field(body, b'S'), Some(&b"FATAL"[..]));
        assert_eq!(field(body, b'C'), Some(&b"LF001"[..]));
        assert_eq!(field(body, b'M'), Some(&b"staleHforged"[..]));
        assert_eq!(field(body, b'D'), Some(&b"highest=2"[..]));
        assert_eq!(field(body, b'H'), None);
    }

    #[test]
    fn a_body_cut_short_ends_the_fields() {
        assert_eq!(fields(b"SERROR\0C42").count(), 1);
        assert_eq!(fields(b"").count(), 0);
    }
}
