//! Frames: one tag byte, an i32 length that includes itself but not the tag, and a body.

use super::tag::frontend;
use bytes::{BufMut, BytesMut};

/// Length of the tag and the length field, in bytes.
pub const HEADER: usize = 5;

/// The server's limit for messages that carry data (`PQ_LARGE_MESSAGE_LIMIT`, libpq-be.h): 1 GiB less two bytes.
const LARGE_LIMIT: usize = 0x3fff_ffff - 1;
/// The server's limit for messages during authentication (`PG_MAX_AUTH_TOKEN_LENGTH`). GSSAPI tokens are long.
const AUTHENTICATION_LIMIT: usize = 65_535 - 4;
/// The server's limit for all other messages of a client (`PQ_SMALL_MESSAGE_LIMIT`), in bytes.
const SMALL_LIMIT: usize = 10_000;

/// The first five bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tag of the message.
    pub tag: u8,
    /// Length of the body, in bytes.
    pub body: usize,
}

/// A length that no valid frame has. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid message length {length} in a message of type {}", display_tag(*.tag))]
pub struct InvalidLength {
    /// The frame's tag.
    pub tag: u8,
    /// The length as sent.
    pub length: i32,
}

impl Header {
    /// Length of the whole frame, in bytes.
    pub fn frame(&self) -> usize {
        HEADER + self.body
    }

    /// Parses a client's header at the start of `input`. Returns `None` if fewer than five bytes have arrived.
    ///
    /// # Errors
    /// The length is below 4, or above the server's limit for this tag.
    pub fn from_client(input: &[u8]) -> Result<Option<Header>, InvalidLength> {
        Header::read(input, |tag| match tag {
            frontend::QUERY | frontend::PARSE | frontend::BIND | frontend::FUNCTION_CALL | frontend::COPY_DATA => {
                LARGE_LIMIT
            }
            frontend::PASSWORD => AUTHENTICATION_LIMIT,
            _ => SMALL_LIMIT,
        })
    }

    /// Parses a server's header, like [`Self::from_client`], but without an upper limit.
    ///
    /// # Errors
    /// The length is below 4.
    pub fn from_server(input: &[u8]) -> Result<Option<Header>, InvalidLength> {
        Header::read(input, |_| usize::MAX)
    }

    fn read(input: &[u8], limit: impl Fn(u8) -> usize) -> Result<Option<Header>, InvalidLength> {
        let Some((&[tag, a, b, c, d], _)) = input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = i32::from_be_bytes([a, b, c, d]);
        match usize::try_from(length) {
            Ok(bytes) if bytes >= 4 && bytes - 4 <= limit(tag) => Ok(Some(Header { tag, body: bytes - 4 })),
            _ => Err(InvalidLength { tag, length }),
        }
    }
}

/// Appends a frame with the body that `write` appends. The body must be shorter than 2 GiB.
pub fn put_frame(output: &mut BytesMut, tag: u8, write: impl FnOnce(&mut BytesMut)) {
    output.put_u8(tag);
    let start = output.len();
    output.put_i32(0);
    write(output);
    let length = (output.len() - start) as i32;
    output[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Splits off a NUL-terminated string. Returns `None` if there is no NUL.
pub fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

fn display_tag(tag: u8) -> String {
    tag.escape_ascii().to_string()
}

/// The body of a complete frame.
pub fn body(frame: &[u8]) -> &[u8] {
    frame.get(HEADER..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_five_bytes_and_a_possible_length() {
        assert_eq!(Header::from_client(b"Q\0\0\0"), Ok(None));
        assert_eq!(Header::from_client(b"S\0\0\0\x04"), Ok(Some(Header { tag: b'S', body: 0 })));
        assert_eq!(Header::from_client(b"S\0\0\0\x03"), Err(InvalidLength { tag: b'S', length: 3 }));
        assert_eq!(Header::from_client(b"S\xff\xff\xff\xff"), Err(InvalidLength { tag: b'S', length: -1 }));
    }

    #[test]
    fn only_data_may_be_long() {
        assert!(Header::from_client(b"Q\x3f\xff\xff\xff").is_ok());
        assert!(Header::from_client(b"Q\x40\0\0\x10").is_err());
        assert!(Header::from_client(b"S\0\x01\0\0").is_err());
        assert!(Header::from_server(b"D\x7f\xff\xff\xff").is_ok());
        assert!(Header::from_server(b"D\0\0\0\x03").is_err());
    }

    #[test]
    fn frames_carry_their_length() {
        let mut output = BytesMut::from(&b"before"[..]);
        put_frame(&mut output, b'C', |body| body.put_slice(b"SET\0"));
        assert_eq!(&output[..], b"beforeC\0\0\0\x08SET\0");
    }
}
