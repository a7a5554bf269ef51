//! Keywords newer than the server.

use super::*;

const OLD: Lexing = Lexing { release: 15, ..Lexing::USUAL };

#[test]
fn keywords_newer_than_the_server_are_names() {
    let check = |release: u8, outline: &str| {
        check_outline(outline, |text| show_result(&analyze(text.as_bytes(), Lexing { release, ..Lexing::USUAL })));
    };
    check(
        15,
        "CREATE TABLE audit (id int, system_user text) => catalog
        SELECT json_query('{}'::jsonb); SELECT a.b, Json_Query ('{}', '$') FROM a => calls:json_query unknown
        SELECT json('{}') => calls:json unknown
        SELECT system_user, format json FROM t, json_table => -
        EXPLAIN (FORMAT JSON) SELECT '{}'::json; SELECT json '{}' => -
        UPDATE system_user SET merge_action = json_value(1) => update:system_user calls:json_value unknown
        DELETE FROM json_table WHERE system_user = 'json_query(1)' -- json_query(1) => delete:json_table
        INSERT INTO merge_action (json_scalar) VALUES (E'a' || json_scalar(1)) => insert:merge_action calls:json_scalar unknown
        SELECT json_array(1, 2), json_object('a', 1), json_serialize(1) => calls:json_array calls:json_object calls:json_serialize unknown
        SELECT JSON_TABLE('[]', '$[*]' COLUMNS (a int)) => Syntax",
    );
    check(
        16,
        "SELECT json_query('{}') => calls:json_query unknown
        SELECT json('{}') => calls:json unknown
        SELECT json_array(1, 2), a IS JSON, json_object('a': b FORMAT JSON) => -
        SELECT system_user => calls:pg_catalog.system_user unknown
        CREATE TABLE audit (id int, system_user text) => Syntax",
    );
    for release in [17, 18, Lexing::NEWEST] {
        check(
            release,
            "SELECT json_query('{}', '$'), json('{}') => -
            SELECT system_user => calls:pg_catalog.system_user unknown
            SELECT json_query('{}'::jsonb) => Syntax",
        );
    }
}

/// The parser reads a longer text than the client has sent.
#[test]
fn statements_with_newer_keywords_keep_their_ranges() {
    let statements = [
        "SELECT json_value(a)",
        "UPDATE t SET system_user = 'é' WHERE json_query(b)",
        "DELETE FROM system_user",
        "SELECT format JSON",
        "VALUES (merge_action())",
    ];
    let text = format!(" {} ;\n{};", statements[0], statements[1..].join("; "));
    let latin: Vec<u8> = text.chars().map(|c| c as u8).collect();
    for (bytes, encoding) in [(text.as_bytes(), Encoding::Utf8), (&latin, Encoding::AsciiSafe)] {
        let script = analyze(bytes, Lexing { encoding, ..OLD }).unwrap();
        assert_eq!(script.statements.len(), statements.len());
        for (read, sent) in script.statements.iter().zip(statements) {
            let found = &bytes[read.range.clone()];
            let sent: Vec<u8> = match encoding {
                Encoding::Utf8 => sent.into(),
                _ => sent.chars().map(|c| c as u8).collect(),
            };
            assert_eq!(found.escape_ascii().to_string(), sent.escape_ascii().to_string());
        }
    }
}

#[test]
fn newer_keywords_after_unreadable_tokens_are_refused() {
    for (text, expected) in [
        ("SELECT 0x1, json_query(1)", "Syntax"),
        ("SELECT E'a'\n'\\', json_query(1), \\''", "Syntax"),
        ("SELECT 0x1, a.json_queries, \"json\"", "Syntax"),
        ("SELECT 0x1, jsonb_agg(a)", "calls:jsonb_agg"),
        ("SELECT json_query(1), 0x1", "calls:json_query unknown"),
    ] {
        assert_eq!(show_result(&analyze(text.as_bytes(), OLD)), expected, "{text}");
    }
}

#[test]
fn the_release_is_read_from_server_version() {
    for (version, release) in [
        ("15.18 (Debian 15.18-0+deb12u1)", 15),
        ("18beta1", 18),
        ("9.6.24", 9),
        ("", Lexing::NEWEST),
        ("EnterpriseDB", Lexing::NEWEST),
        ("2025.1", Lexing::NEWEST),
    ] {
        let mut lexing = OLD;
        lexing.note("server_version", version);
        assert_eq!(lexing.release, release, "{version}");
    }
}
