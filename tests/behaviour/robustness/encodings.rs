//! Bytes that the server reads differently than a careless parser.

use super::world::{WRITE, World, codes};
use crate::support::fenced::{Fenced, init};
use crate::support::message::{self, sync, tagged};
use crate::support::{Options, ProxyOptions, Wire};

/// Client encodings in which a character may end in a backslash.
const UNSAFE: [&str; 7] = ["SJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "GB18030", "UHC", "JOHAB"];

/// Lead bytes. The second byte is a backslash, or a quote if the lead byte stands alone.
const LEADS: [u8; 4] = [0x81, 0x83, 0xa1, 0xe0];

#[test]
fn multibyte_characters_that_hide_a_quote() {
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
                        // In the extended protocol, the server immediately reports unknown names.
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

/// True if the proxy rejected the text, or the server because the text is invalid in its encoding.
fn is_refused(codes: &[String]) -> bool {
    ["LF004", "22021", "22P05"].contains(&codes.join(" ").as_str())
}

/// A write that is part of a literal only if the bytes are read as one character, or only if they are not.
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
fn bytes_that_are_not_utf8() {
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
fn latin1_and_similar_encodings() {
    let world = World::new();
    for encoding in ["LATIN1", "WIN1252", "KOI8R", "EUC_JP", "SQL_ASCII"] {
        let mut wire = world.hostile();
        wire.query(&format!("SET client_encoding = '{encoding}'"));
        let text = [b"SELECT '\xa4\xa2', 1; ", WRITE.as_bytes()].concat();
        let frames = wire.query_bytes(&text);
        // If the server cannot convert the text, it reports that before it parses any statement.
        assert!(["LF001", "22021"].contains(&codes(&frames)[0].as_str()), "{encoding}: {frames:?}");
    }
    world.ends_well(8 * 1024);
}

/// A string in the protocol ends at its first NUL, and the message must end there too.
#[test]
fn nul_bytes_within_a_message() {
    let world = World::with(Options::default(), ProxyOptions::default());
    let mut wire = world.hostile();
    for text in [&b"SELECT 1\0"[..], b"\0", b"SELECT 1\0;", b"SELECT '\0'", b"SELECT 1 --\0\n"] {
        let text = [text, b"; ", WRITE.as_bytes()].concat();
        let frames = wire.query_bytes(&text);
        // The text before the NUL may be invalid as well.
        assert!(["08P01", "42601"].contains(&codes(&frames).join(" ").as_str()), "{}: {frames:?}", text.escape_ascii());
        let parse = tagged(b'P', &[b"\0", &text[..], b"\0\0\0"].concat());
        let frames = wire.exchange(&[parse, message::bind_text("", "", &[]), message::execute("", 0), sync()].concat());
        assert_eq!(codes(&frames), ["08P01"], "Parse of {}", text.escape_ascii());
    }
    // Without its own NUL, the text does not end.
    assert_eq!(codes(&wire.exchange(&tagged(b'Q', WRITE.as_bytes()))), ["08P01"]);
    drop(wire);
    world.ends_well(8 * 1024);
}

/// Every client encoding of the server, with standard-conforming strings and without.
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
                // The whole text may be one literal.
                assert!(refused || found.is_empty(), "{name}, {conforming}, {}: {found:?}", bytes.escape_ascii());
            }
        }
    }
    world.is_unharmed();
    world.ends_well(8 * 1024);
}

/// Objects that set a parameter that the executed text does not name.
const UNSEEN: &str = "
    CREATE FUNCTION set_it() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        RETURN set_config(split_part(current_setting('my.change'), '=', 1), split_part(current_setting('my.change'), '=', 2), false);
    END $$;
    CREATE VIEW sets AS SELECT set_it();
    CREATE FUNCTION set_by_operator(int, int) RETURNS text LANGUAGE sql AS 'SELECT set_it()';
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = set_by_operator);
    CREATE TYPE shape AS (n int);
    CREATE FUNCTION set_by_cast(shape) RETURNS text LANGUAGE sql AS 'SELECT set_it()';
    CREATE CAST (shape AS text) WITH FUNCTION set_by_cast(shape);
    CREATE DOMAIN picky AS text CHECK (set_it() IS NOT NULL);
    CREATE TABLE with_default (n int, v text DEFAULT set_it());
    CREATE FUNCTION set_by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_it(); RETURN NULL; END $$;
    CREATE TABLE deferred (n int);
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION set_by_trigger()";

/// Statements of each kind that runs code not shown in the text.
const RUN_UNSEEN: [&str; 11] = [
    "SELECT * FROM sets",
    "SELECT 1 === 2",
    "SELECT ROW(1)::shape::text",
    "SELECT 'x'::picky",
    "SELECT set_it()",
    "SELECT count(*) FROM free WHERE EXISTS (SELECT FROM sets)",
    "INSERT INTO with_default (n) VALUES (1)",
    "INSERT INTO deferred VALUES (1)",
    "COPY (SELECT * FROM sets) TO STDOUT",
    "COPY (SELECT 1 === 2) TO STDOUT",
    "EXPLAIN ANALYZE SELECT * FROM sets",
];

/// Changes to the lexing of texts, and a text that calls a fenced function only after the change.
fn changes() -> [(&'static str, Vec<u8>); 2] {
    [
        ("standard_conforming_strings=off", br"SELECT '\' || ', run_tick() --'".to_vec()),
        // In SJIS, the last byte of the second character and the backslash together form one character.
        ("client_encoding=SJIS", "SELECT E'\u{3083}\\', run_tick() --'".into()),
    ]
}

fn unseen_world() -> World {
    let world = World::new();
    world.fenced.postgres.sql(UNSEEN);
    world
}

/// A hostile session that is about to make this change.
fn schemer(world: &World, change: &str) -> Wire {
    let mut wire = world.hostile();
    assert_eq!(codes(&wire.query(&format!("SET my.change = '{change}'"))), Vec::<String>::new());
    wire
}

#[test]
fn a_lexing_change_that_no_text_shows() {
    let mut world = unseen_world();
    for (change, text) in changes() {
        for statement in RUN_UNSEEN {
            let mut wire = schemer(&world, change);
            let run = |text: &[u8]| {
                let parse = tagged(b'P', &[b"\0", text, b"\0\0\0"].concat());
                [parse, message::bind_text("", "", &[]), message::execute("", 0)].concat()
            };
            // In one pipeline, with or without a Sync in between.
            for between in [Vec::new(), sync()] {
                wire.send(&[run(statement.as_bytes()), between.clone(), run(&text), sync()].concat());
                let mut frames = wire.read_until_ready();
                if !between.is_empty() {
                    frames.extend(wire.read_until_ready());
                }
                let found = codes(&frames);
                assert!(found.is_empty() || is_stopped(&found), "{change}, {statement}: {found:?}");
                wire.query(&format!("SET {}", change.replace("=off", "=on").replace("=SJIS", "=UTF8")));
            }
            // Two simple queries, the second sent before the first is answered.
            wire.send(&[message::query(statement), tagged(b'Q', &[&text[..], b"\0"].concat())].concat());
            let found = codes(&[wire.read_until_ready(), wire.read_until_ready()].concat());
            assert!(found.is_empty() || is_stopped(&found), "{change}, {statement}: {found:?}");
        }
    }
    world.is_unharmed();
    world.ends_well(8 * 1024);
}

fn is_stopped(codes: &[String]) -> bool {
    codes.iter().all(|code| ["LF001", "LF002", "LF004", "22021", "22P05", "42601"].contains(&code.as_str()))
}

/// Binding a value of a domain runs its checks, and planning evaluates functions that are declared immutable.
#[test]
fn a_lexing_change_by_a_bind() {
    let world = unseen_world();
    world.fenced.postgres.sql("CREATE FUNCTION planned() RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT set_it()'; CREATE VIEW plans AS SELECT planned()");
    for (change, text) in changes() {
        for (statement, values) in [("SELECT $1::picky", &[Some("x")][..]), ("SELECT * FROM plans", &[])] {
            let mut wire = schemer(&world, change);
            let values: Vec<_> = values.iter().map(|value| value.map(str::as_bytes)).collect();
            let first = [message::parse("", statement, &[]), message::bind_text("", "", &values)].concat();
            let second = tagged(b'P', &[b"\0", &text[..], b"\0\0\0"].concat());
            let second = [second, message::bind_text("", "", &[]), message::execute("", 0), sync()].concat();
            let found = codes(&wire.exchange(&[first, second].concat()));
            assert!(found.is_empty() || is_stopped(&found), "{change}, {statement}: {found:?}");
        }
    }
    world.ends_well(8 * 1024);
}

/// A text that can be read in only one way does not wait.
#[test]
fn a_plain_text_is_pipelined_behind_a_running_statement() {
    let world = unseen_world();
    let mut wire = world.hostile();
    let parse =
        |sql: &str| [message::parse("", sql, &[]), message::bind_text("", "", &[]), message::execute("", 0)].concat();
    // The server has all messages before it reports the error in the first statement, so it skips the second.
    wire.send(&[parse("SELECT 1/0 FROM sets"), parse("SELECT 'plain'"), sync()].concat());
    assert_eq!(codes(&wire.read_until_ready()).len(), 1);
}

/// A server whose encoding is not UTF-8 may fold more than ASCII letters in an unquoted name.
#[test]
fn names_where_the_server_folds_more() {
    let policies = "version: 1\nresources:\n  - {name: scheduler, tables: ['public.\"täble\"', public.plain], functions: ['public.\"täck\"']}\n";
    let schema = "CREATE TABLE \"täble\" (n int, \"größe\" int); CREATE TABLE \"TÄBLE\" (n int); CREATE TABLE plain (n int); \
        CREATE FUNCTION \"täck\"() RETURNS int LANGUAGE sql AS 'SELECT 1'";
    let world = Fenced::start_with(Options::default(), "SELECT 1", &ProxyOptions::default().policies(policies));
    for encoding in ["LATIN1", "SQL_ASCII", "LATIN9", "WIN1252", "EUC_JP", "UTF8"] {
        let database = format!("in_{}", encoding.to_lowercase());
        world.postgres.sql(&format!(
            "CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        ));
        let mut direct = Wire::connect(&world.postgres.address()).unwrap();
        direct.start(&[("user", "postgres"), ("database", &database), ("client_encoding", "UTF8")], "");
        let has_names = codes(&direct.query(schema)).is_empty();
        init(&world.postgres, &database);
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        wire.start(&[("user", "postgres"), ("database", &database), ("client_encoding", "UTF8")], "");
        let folds = encoding != "UTF8";
        let unquoted = [
            "UPDATE TÄBLE SET n = 1",
            "UPDATE public.TÄBLE SET n = 1",
            "INSERT INTO tÄble VALUES (1)",
            "DELETE FROM TÄBLE",
            "TRUNCATE TÄBLE",
            "COPY TÄBLE FROM STDIN",
            "SELECT TÄCK()",
            "WITH w AS (DELETE FROM TÄBLE RETURNING 1) SELECT * FROM w",
            "SELECT 1 FROM TÄBLE FOR UPDATE",
            "MERGE INTO TÄBLE t USING plain p ON true WHEN MATCHED THEN DELETE",
            "PREPARE p AS DELETE FROM TÄBLE",
        ];
        for statement in unquoted {
            let code = codes(&wire.query(statement)).concat();
            assert_eq!(code == "LF004", folds, "{encoding}: {statement}: {code}");
        }
        assert_eq!(
            codes(&wire.query("SELECT 'ä', \"ä\" FROM (SELECT 1 AS \"ä\") q")),
            Vec::<String>::new(),
            "{encoding}"
        );
        // A quoted name is not folded, unless the encoding has several characters for the same bytes.
        let expected = if encoding == "EUC_JP" { "LF004" } else { "LF002" };
        if has_names {
            assert_eq!(codes(&wire.query("UPDATE \"täble\" SET n = 1")), [expected], "{encoding}");
            assert_eq!(
                codes(&wire.query("UPDATE \"TÄBLE\" SET n = 1")).concat(),
                if encoding == "EUC_JP" { "LF004" } else { "" },
                "{encoding}"
            );
        }
        assert_eq!(codes(&wire.query("UPDATE plain SET n = 1")), ["LF002"], "{encoding}");
    }
}
