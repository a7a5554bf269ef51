//! Bodies of the server messages that the proxy reads: rows, parameters, errors.

use bytes::BytesMut;
use fencegate_wire::error::{ErrorText, Severity, field, fields};
use fencegate_wire::frame::{HEADER, Header};
use fencegate_wire::message::{self, Status};

pub fn check(input: &[u8]) -> bool {
    assert_eq!(Status::read(input).is_some(), [&b"I"[..], b"T", b"E"].contains(&input));
    error_of_our_own(input);
    row(input) | parameter(input) | error(input)
}

fn row(body: &[u8]) -> bool {
    let Some(columns) = message::columns(body) else { return false };
    let mut written = (columns.len() as u16).to_be_bytes().to_vec();
    for column in &columns {
        let length = column.as_ref().map_or(-1, |text| text.len() as i32);
        written.extend([&length.to_be_bytes()[..], column.as_deref().unwrap_or_default().as_bytes()].concat());
    }
    assert_eq!(written, body);
    true
}

fn parameter(body: &[u8]) -> bool {
    let Some((name, value)) = message::parameter_status(body) else { return false };
    assert!(body.starts_with(&[name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat()));
    true
}

fn error(body: &[u8]) -> bool {
    let mut written = Vec::new();
    for (tag, value) in fields(body) {
        written.extend([&[tag], value, b"\0"].concat());
    }
    assert!(body.starts_with(&written));
    for tag in 0..=u8::MAX {
        let first = fields(body).find(|(found, _)| *found == tag).map(|(_, value)| value);
        assert_eq!(field(body, tag), first);
    }
    // The fields end at the terminator, not at damage.
    !written.is_empty() && body.get(written.len()) == Some(&0)
}

/// An error of the proxy is one frame with exactly the expected fields, whatever its text.
fn error_of_our_own(input: &[u8]) {
    let words = String::from_utf8_lossy(input).into_owned();
    let text = ErrorText::new("LF004", words.clone()).detail(words.clone()).hint(words.clone());
    let mut output = BytesMut::new();
    text.put(&mut output, Severity::Fatal);
    let header = Header::from_server(&output).unwrap().unwrap();
    assert_eq!((header.tag, header.frame()), (b'E', output.len()));
    let words = words.replace('\0', "");
    let mut expected = vec![(b'S', "FATAL"), (b'V', "FATAL"), (b'C', "LF004"), (b'M', &words)];
    if !input.is_empty() {
        expected.extend([(b'D', words.as_str()), (b'H', &words)]);
    }
    let found: Vec<_> =
        fields(&output[HEADER..]).map(|(tag, value)| (tag, std::str::from_utf8(value).unwrap())).collect();
    assert_eq!(found, expected);
}
