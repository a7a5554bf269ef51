//! A client's frames → pgwire's messages.
//!
//! Owns the check of their layout: pgwire's decoders panic if a body is shorter than its lengths claim, read on into
//! the next frame, and accept any bytes as UTF-8. Must never pass on a number that pgwire would use as the size of an
//! allocation.

use bytes::Bytes;
use fencegate_wire::error::ErrorText;
use fencegate_wire::frame::split_string;
use fencegate_wire::message::{bind, parameter_types};
use fencegate_wire::tag::frontend;
use pgwire::messages::PgWireFrontendMessage as Message;
use pgwire::messages::extendedquery::{Bind, Close, Describe, Execute, Flush, Parse, Sync};
use pgwire::messages::simplequery::Query;

/// Maximum number of rows that a client may fetch from a portal in one piece. For larger numbers, it fetches all.
const LARGEST_PIECE: i32 = 10_000;

/// Parses a message.
/// 08P01 for a malformed one, 22021 for invalid UTF-8, 0A000 for an unsupported one.
pub fn message(tag: u8, body: &[u8]) -> Result<Message, ErrorText> {
    let malformed = || ErrorText::new("08P01", "invalid message format");
    let read = || {
        Some(match tag {
            frontend::QUERY => {
                let (query, _) = split_string(body).filter(|(_, rest)| rest.is_empty())?;
                text(query).map(|query| Message::Query(Query::new(query)))
            }
            frontend::PARSE => {
                let [name, query, rest] = two_strings(body)?;
                let types = parameter_types(rest)?;
                text(query).and_then(|query| Ok(Message::Parse(Parse::new(name_of(name)?, query, types))))
            }
            frontend::BIND => {
                let [portal, statement, rest] = two_strings(body)?;
                let (values, results) = bind(rest)?;
                // Only the number of values matters.
                let values = values.iter().map(|_| Some(Bytes::new())).collect();
                let results = results.into_iter().map(i16::from).collect();
                name_of(portal).and_then(|portal| {
                    Ok(Message::Bind(Bind::new(portal, name_of(statement)?, Vec::new(), values, results)))
                })
            }
            frontend::DESCRIBE => {
                let (kind, name) = target(body)?;
                name.map(|name| Message::Describe(Describe::new(kind, name)))
            }
            frontend::CLOSE => {
                let (kind, name) = target(body)?;
                name.map(|name| Message::Close(Close::new(kind, name)))
            }
            frontend::EXECUTE => {
                let (portal, rest) = split_string(body)?;
                let rows = i32::from_be_bytes(rest.try_into().ok()?);
                let rows = if (1..=LARGEST_PIECE).contains(&rows) { rows } else { 0 };
                name_of(portal).map(|portal| Message::Execute(Execute::new(portal, rows)))
            }
            frontend::FLUSH if body.is_empty() => Ok(Message::Flush(Flush::new())),
            frontend::SYNC if body.is_empty() => Ok(Message::Sync(Sync::new())),
            frontend::FUNCTION_CALL => {
                Err(ErrorText::new("0A000", "the console of fencegate has no functions to call"))
            }
            _ => return None,
        })
    };
    read().unwrap_or_else(|| Err(malformed()))
}

/// True if an error in this message makes the client wait for the response to its Sync.
pub fn is_extended(tag: u8) -> bool {
    matches!(
        tag,
        frontend::PARSE | frontend::BIND | frontend::DESCRIBE | frontend::EXECUTE | frontend::CLOSE | frontend::FLUSH
    )
}

/// Two strings and the remaining bytes.
fn two_strings(body: &[u8]) -> Option<[&[u8]; 3]> {
    let (one, rest) = split_string(body)?;
    let (other, rest) = split_string(rest)?;
    Some([one, other, rest])
}

/// The target of Describe and Close: a statement or a portal, and its name.
fn target(body: &[u8]) -> Option<(u8, Result<Option<String>, ErrorText>)> {
    let (&kind, rest) = body.split_first().filter(|(kind, _)| matches!(kind, b'S' | b'P'))?;
    let (name, rest) = split_string(rest)?;
    rest.is_empty().then(|| (kind, name_of(name)))
}

/// None: the unnamed one.
fn name_of(name: &[u8]) -> Result<Option<String>, ErrorText> {
    text(name).map(|name| Some(name).filter(|name| !name.is_empty()))
}

fn text(bytes: &[u8]) -> Result<String, ErrorText> {
    let invalid = |_| ErrorText::new("22021", "invalid byte sequence for encoding \"UTF8\"");
    String::from_utf8(bytes.to_vec()).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_messages_are_parsed() {
        for (tag, body, expected) in [
            (b'Q', &b"SHOW FENCES\0"[..], "Query"),
            (b'P', b"\0SHOW FENCES\0\0\0", "Parse"),
            (b'B', b"\0\0\0\0\0\0\0\x01\0\x01", "Bind"),
            (b'D', b"Sname\0", "Describe"),
            (b'C', b"P\0", "Close"),
            (b'E', b"\0\0\0\0\0", "Execute"),
            (b'S', b"", "Sync"),
        ] {
            let read = format!("{:?}", message(tag, body).unwrap());
            assert!(read.starts_with(expected), "{read}");
        }
        let rows = |count: i32| match message(b'E', &[b"\0", &count.to_be_bytes()[..]].concat()) {
            Ok(Message::Execute(execute)) => execute.max_rows,
            other => panic!("{other:?}"),
        };
        assert_eq!([rows(-1), rows(7), rows(i32::MAX)], [0, 7, 0]);
    }

    #[test]
    fn messages_cut_short_are_errors() {
        let whole: [(u8, &[u8]); 6] = [
            (b'Q', b"SHOW FENCES\0"),
            (b'P', b"\0SHOW FENCES\0\0\x01\0\0\0\x17"),
            (b'B', b"\0\0\0\x01\0\x01\0\x01\0\0\0\x02ab\0\x01\0\x01"),
            (b'D', b"Sname\0"),
            (b'C', b"P\0"),
            (b'E', b"\0\0\0\0\0"),
        ];
        for (tag, body) in whole {
            assert!(message(tag, body).is_ok());
            for length in 0..body.len() {
                assert_eq!(message(tag, &body[..length]).unwrap_err().code, "08P01", "{}", tag as char);
            }
            assert_eq!(message(tag, &[body, b"x"].concat()).unwrap_err().code, "08P01");
        }
        assert_eq!(message(b'D', b"X\0").unwrap_err().code, "08P01");
        assert_eq!(message(b'Q', b"\xff\0").unwrap_err().code, "22021");
        assert_eq!(message(b'F', b"").unwrap_err().code, "0A000");
    }
}
