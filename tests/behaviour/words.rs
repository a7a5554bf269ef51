//! Words that the parser's grammar reserves and the server's does not. The proxy reads them as names.

use crate::support::Wire;
use crate::support::fenced::{Fenced, code};
use crate::support::server::SUPERUSER;
use crate::support::wire::error_in;
use pg_query::protobuf::{KeywordKind, Token};
use std::collections::HashSet;

const SCHEMA: &str = "CREATE TABLE ledger (id int);
    CREATE TABLE read (format int, \"system_user\" int, \"json_table\" int);
    CREATE FUNCTION \"json_query\"(jsonb, text) RETURNS int LANGUAGE sql AS 'INSERT INTO ledger VALUES (1) RETURNING id';
    CREATE FUNCTION \"json_query\"(jsonb) RETURNS int LANGUAGE sql AS 'INSERT INTO ledger VALUES (1) RETURNING id'";
const POLICIES: &str = "version: 1
resources:
  - {name: ledger, tables: [public.ledger], functions: [public.json_query]}
";

/// The keywords of the parser's grammar that are not unreserved.
fn reserved() -> impl Iterator<Item = String> {
    (0..2_000).filter_map(|number| Token::try_from(number).ok()).filter_map(|token| {
        let word = token.as_str_name().to_ascii_lowercase();
        let word = word.strip_suffix("_p").unwrap_or(&word);
        let tokens = pg_query::scan(word).ok()?.tokens;
        let [token] = tokens.as_slice() else { return None };
        let is_reserved = ![KeywordKind::NoKeyword, KeywordKind::UnreservedKeyword].contains(&token.keyword_kind());
        is_reserved.then(|| word.to_owned())
    })
}

fn major(world: &Fenced) -> u32 {
    world.postgres.value("SELECT current_setting('server_version_num')::int / 10000").parse().unwrap()
}

#[test]
fn words_that_are_newer_than_the_server_are_names() {
    let world = Fenced::start(SCHEMA, &POLICIES.replace(", functions: [public.json_query]", ""));
    let mut proxied = world.login();
    let mut direct = Wire::login(&world.postgres.address(), SUPERUSER, "postgres");
    let mut compare = |sql: &str| {
        let [direct, proxied] = [&mut direct, &mut proxied].map(|wire| {
            let answer = wire.query(&format!("BEGIN; {sql}"));
            wire.query("ROLLBACK");
            error_in(&answer).map(|error| (error.code().to_owned(), error.message().to_owned()))
        });
        assert_eq!(proxied, direct, "{sql}");
    };
    let known = world.postgres.sql("SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'");
    let known: HashSet<String> = known.into_iter().filter_map(|row| row.into_iter().next()?).collect();
    let words: Vec<String> = reserved().collect();
    assert!(words.len() > 100 && words.contains(&"system_user".to_owned()), "{words:?}");
    for word in words.iter().filter(|word| !known.contains(*word)) {
        for sql in [
            format!("CREATE TEMP TABLE of_{word} (id int, {word} text)"),
            format!("CREATE TEMP TABLE {word} (id int)"),
            format!("SELECT {word}('a'::tsvector)"),
            format!("SELECT {word}.{word}, {word} {word} FROM (SELECT 1) {word} ({word})"),
            format!("SELECT pg_typeof({word}) FROM (VALUES (1)) t ({word}); SELECT {word}(1, 2, 3)"),
        ] {
            compare(&sql);
        }
    }
    if major(&world) < 16 {
        compare("SELECT format json FROM read");
        compare("SELECT system_user, json_table, pg_sleep(0) FROM read WHERE json_query(1)");
    }
}

/// In the parser's grammar this is syntax that calls nothing.
#[test]
fn a_call_that_is_syntax_in_a_newer_grammar_counts_as_a_write() {
    let world = Fenced::start(SCHEMA, POLICIES);
    if major(&world) >= 17 {
        return;
    }
    let mut session = world.login();
    for call in ["SELECT json_query('{}')", "SELECT json_query('{}', '$')", "SELECT public.json_query('{}', '$')"] {
        assert_eq!(code(&mut session, call), "LF002", "{call}");
    }
    let mut holder = world.holder(47);
    assert_eq!(code(&mut holder, "SELECT json_query('{}', '$')"), "");
    assert_eq!(world.postgres.value("SELECT count(*) FROM ledger"), "1");
    world.holder(48).rows("INSERT INTO ledger VALUES (2)").unwrap();
    assert_eq!(code(&mut holder, "SELECT json_query('{}', '$')"), "LF001");
}

/// The proxy parses a longer text than it forwards, and errors depend on the position of the statements in the string.
#[test]
fn statements_after_newer_words_are_found_at_their_position() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut session = world.login();
    let string = "SELECT \"system_user\", format FROM read; INSERT INTO ledger VALUES (1); SELECT 1 FROM read";
    let plain = session.query(&format!("BEGIN; {string}"));
    session.query("ROLLBACK");
    if major(&world) < 16 {
        let newer = session.query(&format!("BEGIN; {}", string.replace("\"system_user\"", "system_user")));
        let [plain, newer] = [plain, newer].map(|answer| {
            let error = error_in(&answer).expect("an error");
            (answer.len(), error.code().to_owned(), error.message().to_owned())
        });
        assert_eq!(newer, plain);
        assert_eq!(newer.1, "LF002");
    }
}
