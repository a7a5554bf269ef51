//! Frames: header, body, strings.

use bytes::{BufMut, BytesMut};
use fencegate_wire::frame::{HEADER, Header, InvalidLength, put_frame, split_string};

pub fn check(input: &[u8]) -> bool {
    strings(input);
    let from_server = Header::from_server(input);
    agrees(input, from_server, |_| i64::from(i32::MAX));
    let from_client = Header::from_client(input);
    agrees(input, from_client, |tag| match tag {
        b'Q' | b'P' | b'B' | b'F' | b'd' => 0x3fff_fffe,
        b'p' => 65_531,
        _ => 10_000,
    });
    if from_client.is_ok() {
        assert_eq!(from_client, from_server);
    }
    all_frames(input)
}

/// Reads the length as documented: an i32 that includes itself.
fn agrees(input: &[u8], header: Result<Option<Header>, InvalidLength>, limit: impl Fn(u8) -> i64) {
    let [tag, length @ ..] = match input.first_chunk::<HEADER>() {
        Some(start) => *start,
        None => return assert_eq!(header, Ok(None)),
    };
    let length = i32::from_be_bytes(length);
    let body = i64::from(length) - 4;
    if body < 0 || body > limit(tag) {
        return assert_eq!(header, Err(InvalidLength { tag, length }));
    }
    let header = header.unwrap().unwrap();
    assert_eq!((header.tag, header.body as i64, header.frame() as i64), (tag, body, i64::from(length) + 1));
    if let Some(frame) = input.get(..header.frame()) {
        let mut output = BytesMut::new();
        put_frame(&mut output, tag, |body| body.put_slice(&frame[HEADER..]));
        assert_eq!(output, frame);
    }
}

/// Returns true if the input begins with a complete frame.
fn all_frames(input: &[u8]) -> bool {
    let (mut rest, mut count) = (input, 0);
    while let Ok(Some(header)) = Header::from_server(rest) {
        let Some((_, after)) = rest.split_at_checked(header.frame()) else { break };
        (rest, count) = (after, count + 1);
    }
    count > 0
}

fn strings(input: &[u8]) {
    match split_string(input) {
        None => assert!(!input.contains(&0)),
        Some((string, rest)) => {
            assert!(!string.contains(&0));
            assert_eq!([string, b"\0", rest].concat(), input);
        }
    }
}
