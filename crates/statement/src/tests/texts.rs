use super::*;

#[test]
fn empty_texts_have_no_statements() {
    check_each(&[
        ("", ""),
        ("   \n", ""),
        (";", ""),
        (" ; ;; ", ""),
        ("-- only this", ""),
        ("/* a /* b */ c */ ;", ""),
    ]);
}

#[test]
fn text_outside_the_grammar_is_a_syntax_error() {
    check_each(&[
        ("SELEC 1", "Syntax"),
        ("SELECT 'a", "Syntax"),
        ("SELECT 1 /* a", "Syntax"),
        ("SELECT 1; nonsense", "Syntax"),
        ("SELECT 1\0; DROP TABLE t", "Syntax"),
        ("\0", "Syntax"),
    ]);
}

#[test]
fn several_statements_are_separated() {
    check_each(&[
        ("SELECT 1; DELETE FROM t", "- | delete:t"),
        ("INSERT INTO a VALUES (1); UPDATE b SET c = 1; DELETE FROM d;", "insert:a | update:b | delete:d"),
        ("BEGIN; SET LOCAL lease.fence = 5; UPDATE t SET a = ';'; COMMIT", "begin | set-local(5) | update:t | commit"),
        ("SELECT $$;$$; SELECT 2", "- | -"),
    ]);
}

#[test]
fn ranges_cover_the_statements_without_their_semicolons() {
    for (text, expected) in [
        ("SELECT 1", vec!["SELECT 1"]),
        ("  SELECT 1 ; ", vec!["SELECT 1"]),
        ("\n\tSHOW x ;;", vec!["SHOW x"]),
        ("SELECT 1;SELECT 2", vec!["SELECT 1", "SELECT 2"]),
        (" SELECT 'ä;ö' ; \n DELETE FROM \"ü\" ; ", vec!["SELECT 'ä;ö'", "DELETE FROM \"ü\""]),
        (";;SELECT 1;;SHOW x;;", vec!["SELECT 1", "SHOW x"]),
        (
            "BEGIN; CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); END",
            vec!["BEGIN", "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "END"],
        ),
    ] {
        let script = analyze(text.as_bytes(), Lexing::USUAL).unwrap();
        let found: Vec<&str> = script.statements.iter().map(|statement| &text[statement.range.clone()]).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn a_statement_can_be_replaced_within_its_text() {
    for text in [
        "SELECT 1 -- a; b",
        "SELECT 1; SELECT 2 -- c",
        "SELECT 1 -- a\n; SELECT 2 /* b */; -- c",
        "-- a\nSELECT 1; /* b */ SELECT 2; SELECT 3",
        "/* a; */ SHOW x",
        "SELECT 1 -- x;",
        "SELECT 1;-- x",
        "UPDATE t SET a = 'ä' /* é */; -- ü\n DELETE FROM t -- ö",
    ] {
        for lexing in [Lexing::USUAL, Lexing { encoding: Encoding::AsciiSafe, ..Lexing::USUAL }] {
            let script = analyze(text.as_bytes(), lexing).unwrap();
            for (index, statement) in script.statements.iter().enumerate() {
                let mut replaced = text.to_owned();
                replaced.replace_range(statement.range.clone(), "TRUNCATE x");
                let shown: Vec<String> = analyze(replaced.as_bytes(), lexing)
                    .unwrap()
                    .statements
                    .iter()
                    .map(|statement| show(statement))
                    .collect();
                let mut expected: Vec<String> = script.statements.iter().map(|statement| show(statement)).collect();
                expected[index] = "truncate:x".into();
                assert_eq!(shown, expected, "{text} → {replaced}");
            }
        }
    }
}

#[test]
fn statement_kinds_have_their_usual_names() {
    for (text, kind) in [
        ("select 1", "SELECT"),
        ("with x as (select 1) select 1", "SELECT"),
        ("select 1 into n", "SELECT INTO"),
        ("insert into t values (1)", "INSERT"),
        ("with x as (select 1) insert into t values (1)", "INSERT"),
        ("alter table t add a int", "ALTER TABLE"),
        ("alter table t rename to u", "ALTER TABLE"),
        ("drop table t", "DROP TABLE"),
        ("drop schema s", "DROP SCHEMA"),
        ("drop materialized view v", "DROP MATERIALIZED VIEW"),
        ("reset all", "RESET"),
        ("set a.b = 1", "SET"),
        ("explain analyze select 1", "EXPLAIN ANALYZE"),
        ("do 'x'", "DO"),
        ("revoke all on t from r", "REVOKE"),
        ("copy t from stdin", "COPY FROM"),
        ("create table n as select 1", "CREATE TABLE AS"),
    ] {
        assert_eq!(analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].kind.text(), kind, "{text}");
    }
}

#[test]
fn backslashes_escape_if_strings_do_not_conform() {
    let old = Lexing { standard_conforming_strings: false, ..Lexing::USUAL };
    let text = br"SELECT 'a\'; DELETE FROM t; --'";
    assert_eq!(show_result(&analyze(text, old)), "-");
    assert_eq!(show_result(&analyze(text, Lexing::USUAL)), "- | delete:t");
    assert_eq!(show_result(&analyze(br"SET lease.fence = '\x34\x37'", old)), "set(47)");
    assert_eq!(show_result(&analyze(br"SET lease.fence = '\x34\x37'", Lexing::USUAL)), r"set(\x34\x37)");
}

#[test]
fn encodings_determine_the_meaning_of_high_bytes() {
    let read = |text: &[u8], encoding| show_result(&analyze(text, Lexing { encoding, ..Lexing::USUAL }));
    for encoding in [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe] {
        assert_eq!(read(b"DELETE FROM t WHERE a = 'x'", encoding), "delete:t");
    }
    let latin = b"DELETE FROM t WHERE a = '\xe9' -- \xff\x80";
    assert_eq!(read(latin, Encoding::Utf8), "Encoding");
    assert_eq!(read(latin, Encoding::AsciiSafe), "delete:t");
    assert_eq!(read(latin, Encoding::AsciiUnsafe), "Encoding");
    assert_eq!(read("DELETE FROM t WHERE a = 'é'".as_bytes(), Encoding::AsciiSafe), "delete:t");
    assert_eq!(read("DELETE FROM t WHERE a = 'é'".as_bytes(), Encoding::AsciiUnsafe), "Encoding");
    for text in [
        &b"DELETE FROM t\xe9"[..],
        b"DELETE FROM \"\xe9\".t",
        b"DELETE FROM U&\"\\00e9\"",
        b"SELECT f\xe9()",
        b"SELECT \xe9.f()",
        b"SET lease.fence = '\xe9'",
        b"SAVEPOINT \xe9",
        b"DEALLOCATE \xe9",
        b"PREPARE p AS DELETE FROM t\xe9",
        b"DROP DATABASE \xe9",
    ] {
        assert_eq!(read(text, Encoding::AsciiSafe), "Encoding", "{text:?}");
    }
    assert_eq!(read(b"DELETE FROM U&\"\\00e9\"", Encoding::Utf8), "delete:é");
    let text = b"SELECT '\xe9\xe9'; DELETE FROM t WHERE a = '\xe9'; SHOW x";
    let script = analyze(text, Lexing { encoding: Encoding::AsciiSafe, ..Lexing::USUAL }).unwrap();
    let found: Vec<&[u8]> = script.statements.iter().map(|statement| &text[statement.range.clone()]).collect();
    assert_eq!(found, [&b"SELECT '\xe9\xe9'"[..], b"DELETE FROM t WHERE a = '\xe9'", b"SHOW x"]);
}

#[test]
fn encodings_are_recognized_by_their_postgresql_names() {
    for (name, expected) in [
        ("UTF8", Encoding::Utf8),
        ("utf-8", Encoding::Utf8),
        ("UNICODE", Encoding::Utf8),
        ("SQL_ASCII", Encoding::AsciiSafe),
        ("LATIN1", Encoding::AsciiSafe),
        ("LATIN10", Encoding::AsciiSafe),
        ("ISO_8859_8", Encoding::AsciiSafe),
        ("WIN1252", Encoding::AsciiSafe),
        ("KOI8R", Encoding::AsciiSafe),
        ("EUC_JIS_2004", Encoding::AsciiSafe),
        ("MULE_INTERNAL", Encoding::AsciiSafe),
        ("SJIS", Encoding::AsciiUnsafe),
        ("SHIFT_JIS_2004", Encoding::AsciiUnsafe),
        ("BIG5", Encoding::AsciiUnsafe),
        ("GBK", Encoding::AsciiUnsafe),
        ("GB18030", Encoding::AsciiUnsafe),
        ("UHC", Encoding::AsciiUnsafe),
        ("JOHAB", Encoding::AsciiUnsafe),
        ("", Encoding::AsciiUnsafe),
        ("LATIN11", Encoding::AsciiUnsafe),
    ] {
        assert_eq!(Encoding::from_name(name), expected, "{name}");
    }
}

#[test]
fn the_cache_returns_the_same_as_analyze() {
    let cache = Cache::default();
    let old = Lexing { standard_conforming_strings: false, ..Lexing::USUAL };
    let text = br"SELECT 'a\'; DELETE FROM t; --'";
    for _ in 0..3 {
        assert_eq!(*cache.get(text, Lexing::USUAL, false).unwrap(), analyze(text, Lexing::USUAL));
        assert_eq!(*cache.get(text, old, false).unwrap(), analyze(text, old));
        assert_eq!(*cache.get(b"nonsense", Lexing::USUAL, false).unwrap(), Err(Unreadable::Syntax));
    }
    let first = cache.get(b"SELECT 1", Lexing::USUAL, false).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &cache.get(b"SELECT 1", Lexing::USUAL, false).unwrap()));
}

#[test]
fn the_cache_stays_within_its_limit() {
    let cache = Cache::default();
    let hot = cache.get(b"SELECT 'hot'", Lexing::USUAL, false).unwrap();
    for number in 0..1_000 {
        let padding = "x".repeat(40_000);
        cache.get_slowly(format!("SELECT {number} -- {padding}").as_bytes(), Lexing::USUAL, false);
        if number % 10 == 0 {
            assert!(std::sync::Arc::ptr_eq(&hot, &cache.get(b"SELECT 'hot'", Lexing::USUAL, false).unwrap()));
        }
    }
    assert!(cache.weight() <= 32 << 20, "{}", cache.weight());
    let many = "END;".repeat(16_000);
    cache.get_slowly(many.as_bytes(), Lexing::USUAL, false);
    let long = format!("SELECT 1 -- {}", "x".repeat(70_000));
    let before = cache.weight();
    cache.get_slowly(long.as_bytes(), Lexing::USUAL, false);
    assert_eq!(cache.weight(), before);
    assert!(before <= 32 << 20);
}

/// The weight of a cache entry counts the length of lists, not their capacity.
#[test]
fn repeated_facts_are_stored_once() {
    for text in [
        format!("INSERT INTO t SELECT 1 {}", ", f()".repeat(450)),
        format!(
            "WITH {} SELECT 1",
            (0..200).map(|n| format!("w{n} AS (DELETE FROM t)")).collect::<Vec<_>>().join(", ")
        ),
        format!("SELECT 1 FROM u {}", ", u".repeat(450)),
    ] {
        let script = analyze(text.as_bytes(), Lexing::USUAL).unwrap();
        let statement = &script.statements[0];
        let rooms = [statement.writes.capacity(), statement.functions.capacity(), statement.reads.capacity()];
        assert!(rooms.iter().all(|room| *room <= 2), "{rooms:?}");
    }
}
