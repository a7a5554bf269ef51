//! The messages that the proxy reads or writes. PostgreSQL documentation, chapter "Message Formats".

use super::frame::{put_frame, split_string};
use super::tag::{backend, frontend};
use bytes::{Buf, BufMut, BytesMut};

/// The length that marks a NULL value.
const NULL: i32 = -1;

/// Transaction status in ReadyForQuery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// 'I': not in a transaction.
    #[default]
    Idle,
    /// 'T': in a transaction.
    Transaction,
    /// 'E': in a failed transaction.
    Failed,
}

impl Status {
    fn byte(self) -> u8 {
        match self {
            Status::Idle => b'I',
            Status::Transaction => b'T',
            Status::Failed => b'E',
        }
    }

    /// Parses the body of ReadyForQuery. Returns `None` for a status that the protocol does not define.
    pub fn read(body: &[u8]) -> Option<Status> {
        match body {
            b"I" => Some(Status::Idle),
            b"T" => Some(Status::Transaction),
            b"E" => Some(Status::Failed),
            _ => None,
        }
    }
}

/// Appends ReadyForQuery.
pub fn put_ready(output: &mut BytesMut, status: Status) {
    put_frame(output, backend::READY, |body| body.put_u8(status.byte()));
}

/// Appends Terminate.
pub fn put_terminate(output: &mut BytesMut) {
    put_frame(output, frontend::TERMINATE, |_| ());
}

/// Appends a simple Query with the concatenated parts.
pub fn put_query(output: &mut BytesMut, parts: &[&[u8]]) {
    put_frame(output, frontend::QUERY, |body| {
        parts.iter().for_each(|part| body.put_slice(part));
        body.put_u8(0);
    });
}

/// Appends Parse without parameter types.
pub fn put_parse(output: &mut BytesMut, name: &str, text: &str) {
    put_frame(output, frontend::PARSE, |body| {
        put_string(body, name);
        put_string(body, text);
        body.put_i16(0);
    });
}

/// Appends Bind without parameters and with results in text format.
pub fn put_bind(output: &mut BytesMut, portal: &str, statement: &str) {
    put_frame(output, frontend::BIND, |body| {
        put_string(body, portal);
        put_string(body, statement);
        body.put_slice(&[0; 6]);
    });
}

/// Appends Execute without a row limit.
pub fn put_execute(output: &mut BytesMut, portal: &str) {
    put_frame(output, frontend::EXECUTE, |body| {
        put_string(body, portal);
        body.put_i32(0);
    });
}

/// Appends Close of a prepared statement.
pub fn put_close_statement(output: &mut BytesMut, name: &str) {
    put_frame(output, frontend::CLOSE, |body| {
        body.put_u8(b'S');
        put_string(body, name);
    });
}

/// Appends Close of a portal.
pub fn put_close_portal(output: &mut BytesMut, name: &str) {
    put_frame(output, frontend::CLOSE, |body| {
        body.put_u8(b'P');
        put_string(body, name);
    });
}

/// Appends Sync.
pub fn put_sync(output: &mut BytesMut) {
    put_frame(output, frontend::SYNC, |_| ());
}

/// Appends Flush.
pub fn put_flush(output: &mut BytesMut) {
    put_frame(output, frontend::FLUSH, |_| ());
}

fn put_string(body: &mut BytesMut, string: &str) {
    body.put_slice(string.as_bytes());
    body.put_u8(0);
}

/// The columns of a DataRow's body in text format, with `None` for NULL. Returns `None` if the body is malformed.
pub fn columns(mut body: &[u8]) -> Option<Vec<Option<String>>> {
    let count = usize::try_from(body.try_get_i16().ok()?).ok()?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let length = body.try_get_i32().ok()?;
        if length == NULL {
            columns.push(None);
            continue;
        }
        let (value, rest) = body.split_at_checked(usize::try_from(length).ok()?)?;
        columns.push(Some(String::from_utf8(value.to_vec()).ok()?));
        body = rest;
    }
    body.is_empty().then_some(columns)
}

/// The OIDs of the parameter types that a Parse declares. `rest`: its body after the statement's text. Returns `None`
/// if malformed.
pub fn parameter_types(mut rest: &[u8]) -> Option<Vec<u32>> {
    let count = rest.try_get_u16().ok()?;
    let types: Option<Vec<u32>> = (0..count).map(|_| rest.try_get_u32().ok()).collect();
    types.filter(|_| rest.is_empty())
}

/// A value in a Bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound<'b> {
    /// NULL.
    Null,
    /// In text format, in the client's encoding.
    Text(&'b [u8]),
    /// In the binary format of its type.
    Binary(&'b [u8]),
}

/// The values in a Bind. `rest`: its body after the two names. Returns `None` if malformed.
pub fn bound_values(rest: &[u8]) -> Option<Vec<Bound<'_>>> {
    bind(rest).map(|(values, _)| values)
}

/// The values in a Bind, and its result formats (true for binary): none, one for all columns, or one for each column.
/// `rest`: its body after the two names. Returns `None` if malformed.
pub fn bind(mut rest: &[u8]) -> Option<(Vec<Bound<'_>>, Vec<bool>)> {
    let formats = formats(&mut rest)?;
    let count = usize::from(rest.try_get_u16().ok()?);
    if formats.len() > 1 && formats.len() != count {
        return None;
    }
    let mut values = Vec::new();
    for index in 0..count {
        let length = rest.try_get_i32().ok()?;
        if length == NULL {
            values.push(Bound::Null);
            continue;
        }
        let (value, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let is_binary = formats.get(index).or(formats.first()).is_some_and(|format| *format);
        values.push(if is_binary { Bound::Binary(value) } else { Bound::Text(value) });
        rest = after;
    }
    let results = self::formats(&mut rest)?;
    rest.is_empty().then_some((values, results))
}

/// Splits off a list of formats. True means binary.
fn formats(rest: &mut &[u8]) -> Option<Vec<bool>> {
    let count = rest.try_get_u16().ok()?;
    let format = |_| match rest.try_get_u16().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    (0..count).map(format).collect()
}

/// The name and value in the body of a ParameterStatus.
pub fn parameter_status(body: &[u8]) -> Option<(&str, &str)> {
    let (name, rest) = split_string(body)?;
    let (value, _) = split_string(rest)?;
    Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
}

/// The channel and payload in the body of a NotificationResponse.
pub fn notification(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (channel, rest) = split_string(body.get(4..)?)?;
    Some((channel, split_string(rest)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_data_row() {
        assert_eq!(columns(b"\0\x02\0\0\0\x0242\xff\xff\xff\xff"), Some(vec![Some("42".into()), None]));
        assert_eq!(columns(b"\0\x01\0\0\0\x09short"), None);
        assert_eq!(columns(b"\xff\xff"), None);
        assert_eq!(columns(b"\0\x01\xff\xff\xff\xfe"), None);
        assert_eq!(columns(b"\0\0more"), None);
    }

    #[test]
    fn values_of_a_bind() {
        let values = b"\0\x02\0\0\0\x01\0\x02\0\0\0\x017\0\0\0\x02\0\x07\0\0";
        assert_eq!(bound_values(values), Some(vec![Bound::Text(b"7"), Bound::Binary(b"\0\x07")]));
        assert_eq!(bound_values(b"\0\x01\0\x01\0\x01\xff\xff\xff\xff\0\0"), Some(vec![Bound::Null]));
        assert_eq!(bound_values(b"\0\x01\0\x02\0\0\0\0"), None);
        assert_eq!(bound_values(b"\0\0\0\x01\0\0\0\x09x\0\0"), None);
        assert_eq!(bound_values(b"\0\x02\0\0\0\0\0\x01\0\0\0\0\0\0"), None);
        assert_eq!(bound_values(b"\0\0\xff\xff"), None);
        assert_eq!(parameter_types(b"\0\x01\0\0\0\x17"), Some(vec![23]));
        assert_eq!(parameter_types(b"\0\x02\0\0\0\x17"), None);
    }

    #[test]
    fn status_is_one_known_byte() {
        assert_eq!(Status::read(b"T"), Some(Status::Transaction));
        assert_eq!(Status::read(b"X"), None);
        assert_eq!(Status::read(b""), None);
    }
}
