//! Bytes that mean something else to the server than to who reads them carelessly.

use super::support::message::{self, sync, tagged};
use super::support::{Options, ProxyOptions};
use super::world::{WRITE, World, codes};

/// Encodings of a client in which a character may end in a backslash.
const UNSAFE: [&str; 7] = ["SJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "GB18030", "UHC", "JOHAB"];

/// Characters whose second byte is a backslash, or would be a quote if the first byte stood alone.
const LEADS: [u8; 4] = [0x81, 0x83, 0xa1, 0xe0];

#[test]
fn characters_that_hide_a_quote() {
    let mut world = World::new();
    for encoding in UNSAFE {
        for conforming in ["on", "off"] {
            let mut wire = world.hostile();
            assert_eq!(codes(&wire.query(&format!("SET client_encoding = '{encoding}'"))), Vec::<String>::new());
            wire.query(&format!("SET standard_conforming_strings = {conforming}; SET backslash_quote = on"));
            for lead in LEADS {
                for hidden in [b'\\', b'\''] {
                    for text in hiding(lead, hidden) {
                        let frames = wire.query_bytes(&text);
                        assert!(is_refused(&codes(&frames)), "{encoding}, {conforming}: {frames:?}");
                        let parse = tagged(b'P', &[b"\0", &text[..], b"\0\0\0"].concat());
                        let frames = wire.exchange(
                            &[parse, message::bind_text("", "", &[]), message::execute("", 0), sync()].concat(),
                        );
                        // The server says at once what it does not know.
                        let codes = codes(&frames);
                        assert!(
                            is_refused(&codes) || codes == ["42703"],
                            "{encoding}, {conforming}, extended: {frames:?}"
                        );
                    }
                }
            }
        }
    }
    world.is_unharmed();
    world.ends_well(8 * 1024);
}

/// By the proxy, or by the server where it is no text in that encoding.
fn is_refused(codes: &[String]) -> bool {
    ["LF004", "22021", "22P05"].contains(&codes.join(" ").as_str())
}

/// A write that is a literal if the character is taken for what it is, or if it is not.
fn hiding(lead: u8, hidden: u8) -> [Vec<u8>; 4] {
    let character = [lead, hidden];
    [
        [b"SELECT '", &character[..], b"', run_tick() --'"].concat(),
        [b"SELECT '", &character[..], b" || ', run_tick() --'"].concat(),
        [b"SELECT E'", &character[..], b"', run_tick() --'"].concat(),
        [b"SELECT \"", &character[..], b"\", run_tick() --\""].concat(),
    ]
}

#[test]
fn bytes_that_are_no_utf8() {
    let world = World::new();
    let mut wire = world.hostile();
    for bytes in
        [&b"\xe4"[..], b"\xc3", b"\xc3'", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xa7", b"\xf4\x90\x80\x80", b"\xe0\x80'"]
    {
        let text = [b"SELECT '", bytes, b"'; ", WRITE.as_bytes()].concat();
        let frames = wire.query_bytes(&text);
        assert!(["LF004", "22021"].contains(&codes(&frames)[0].as_str()), "{}: {frames:?}", bytes.escape_ascii());
        assert_eq!(codes(&wire.query("SELECT 1")), Vec::<String>::new());
    }
    drop(wire);
    world.ends_well(8 * 1024);
}

#[test]
fn latin1_and_its_like() {
    let world = World::new();
    for encoding in ["LATIN1", "WIN1252", "KOI8R", "EUC_JP", "SQL_ASCII"] {
        let mut wire = world.hostile();
        wire.query(&format!("SET client_encoding = '{encoding}'"));
        let text = [b"SELECT '\xa4\xa2', 1; ", WRITE.as_bytes()].concat();
        let frames = wire.query_bytes(&text);
        // Where the server cannot convert it, it says so before it looks at any statement.
        assert!(["LF001", "22021"].contains(&codes(&frames)[0].as_str()), "{encoding}: {frames:?}");
    }
    world.ends_well(8 * 1024);
}

/// A string of the protocol ends at its first NUL, and the message has to end there too.
#[test]
fn nul_bytes_within_a_message() {
    let world = World::with(Options::default(), ProxyOptions::default());
    let mut wire = world.hostile();
    for text in [&b"SELECT 1\0"[..], b"\0", b"SELECT 1\0;", b"SELECT '\0'", b"SELECT 1 --\0\n"] {
        let text = [text, b"; ", WRITE.as_bytes()].concat();
        let frames = wire.query_bytes(&text);
        // What stands before the NUL may be wrong as well.
        assert!(["08P01", "42601"].contains(&codes(&frames).join(" ").as_str()), "{}: {frames:?}", text.escape_ascii());
        let parse = tagged(b'P', &[b"\0", &text[..], b"\0\0\0"].concat());
        let frames = wire.exchange(&[parse, message::bind_text("", "", &[]), message::execute("", 0), sync()].concat());
        assert_eq!(codes(&frames), ["08P01"], "Parse of {}", text.escape_ascii());
    }
    // Without its own NUL the text does not end.
    assert_eq!(codes(&wire.exchange(&tagged(b'Q', WRITE.as_bytes()))), ["08P01"]);
    drop(wire);
    world.ends_well(8 * 1024);
}

/// Every client encoding that the server has, with strings that conform and that do not.
#[test]
fn every_encoding_of_a_client() {
    let mut world = World::new();
    let names =
        "SELECT pg_encoding_to_char(number) FROM generate_series(0, 60) number WHERE pg_encoding_to_char(number) <> ''";
    let names: Vec<String> = world.fenced.postgres.sql(names).into_iter().flatten().flatten().collect();
    assert!(names.len() > 40, "{names:?}");
    for name in &names {
        let mut wire = world.hostile();
        if !codes(&wire.query(&format!("SET client_encoding = '{name}'"))).is_empty() {
            continue;
        }
        for conforming in ["on", "off"] {
            wire.query(&format!("SET standard_conforming_strings = {conforming}"));
            assert_eq!(codes(&wire.query("SELECT 'it''s'")), Vec::<String>::new(), "{name}, {conforming}");
            assert_eq!(codes(&wire.query(WRITE)), ["LF001"], "{name}, {conforming}");
            for bytes in [&b"\xe4"[..], b"\x81\\", b"\xc3\xa4", b"\\"] {
                let text = [b"SELECT '", bytes, b"'; ", WRITE.as_bytes(), b" --'"].concat();
                let found = codes(&wire.query_bytes(&text));
                let refused =
                    ["LF001", "LF004", "22021", "22P05", "22P06", "42601"].contains(&found.join(" ").as_str());
                // The whole may be one literal.
                assert!(refused || found.is_empty(), "{name}, {conforming}, {}: {found:?}", bytes.escape_ascii());
            }
        }
    }
    world.is_unharmed();
    world.ends_well(8 * 1024);
}
