use super::analyze::{options, read_plain, read_tree};
use super::*;
use crate::rows::Rows;
use fencegate_testing::dice::Dice;

/// Statements of every kind, as input for mutations.
const CORPUS: &[&str] = &[
    "SELECT a, f(b) FROM s.t JOIN u USING (c) WHERE d = $1 AND e IN (1, 2) ORDER BY g LIMIT 5 FOR UPDATE OF t",
    "INSERT INTO s.t (a, b) VALUES (1, 'x'), (2, E'\\n') ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *",
    "UPDATE pgbench_accounts SET abalance = abalance + 5 WHERE aid = 7;",
    "DELETE FROM ONLY \"Odd \"\"Name\" USING u WHERE t.a = u.a;",
    "WITH RECURSIVE d AS (DELETE FROM t RETURNING *) SELECT * FROM d, LATERAL f(d.a) WITH ORDINALITY x",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET b = 1 WHEN NOT MATCHED THEN INSERT VALUES (1)",
    "COPY t (a, b) FROM STDIN WITH (FORMAT csv) WHERE a > 1",
    "EXPLAIN (ANALYZE false, COSTS) EXECUTE p(1, 2)",
    "PREPARE p (int) AS UPDATE t SET a = $1; EXECUTE p(1); DEALLOCATE ALL",
    "ALTER TABLE t ATTACH PARTITION u FOR VALUES FROM (1) TO (MAXVALUE), DROP COLUMN a CASCADE",
    "CREATE TABLE n (a int PRIMARY KEY REFERENCES t, b text DEFAULT 'x') PARTITION BY RANGE (a)",
    "CREATE TRIGGER x BEFORE INSERT OR UPDATE ON t FOR EACH ROW WHEN (new.a > 1) EXECUTE FUNCTION f()",
    "CREATE RULE r AS ON INSERT TO t DO (DELETE FROM u; SELECT 1)",
    "DROP TRIGGER x ON s.t CASCADE; DROP TABLE a, b.c; DROP FUNCTION f(int); DROP SCHEMA s",
    "CREATE FUNCTION f(a int) RETURNS int LANGUAGE plpgsql AS $body$ BEGIN RETURN 1; END $body$",
    "DO $$ BEGIN DELETE FROM t; END $$",
    "SET LOCAL lease.fence = 'scheduler=47, shard/3=55'; RESET ALL; SET \"lease.fence\" TO -5",
    "BEGIN; SAVEPOINT a; ROLLBACK TO a; RELEASE a; COMMIT AND CHAIN",
    "SELECT * FROM JSON_TABLE('[]', '$[*]' COLUMNS (a int PATH '$.a')), XMLTABLE('/a' PASSING x COLUMNS b int)",
    "SELECT sum(a) FILTER (WHERE b) OVER (PARTITION BY c ROWS 1 PRECEDING), CASE WHEN d THEN e END, U&'\\0041'",
    "CREATE DATABASE n TEMPLATE d; ALTER DATABASE d RENAME TO e; DROP DATABASE d WITH (FORCE)",
    "TRUNCATE t, ONLY u CASCADE; LOCK TABLE t IN SHARE MODE; VACUUM (ANALYZE) t; REFRESH MATERIALIZED VIEW v",
    "GRANT SELECT ON t TO r; COMMENT ON TABLE t IS 'x'; ALTER TYPE y RENAME ATTRIBUTE a TO b; CALL p(1)",
    "/* c */ SELECT 'ä', \"ö\", $tag$ü$tag$ -- é\n FROM t; /* end */",
];

const ODD_BYTES: &[u8] = b"();,'\"\\$-/* \n\0\x80\xc3\xff.:=?ae19";

const LEXINGS: [Lexing; 4] = [
    Lexing::USUAL,
    Lexing { standard_conforming_strings: false, ..Lexing::USUAL },
    Lexing { encoding: Encoding::AsciiSafe, ..Lexing::USUAL },
    Lexing { encoding: Encoding::AsciiUnsafe, ..Lexing::USUAL },
];

#[test]
fn mutated_texts_are_read_or_refused() {
    let mut dice = Dice::new(1);
    let mut readable = 0;
    for _ in 0..20_000 {
        let text = mutate(&mut dice);
        let lexing = LEXINGS[dice.below(LEXINGS.len())];
        let Ok(script) = analyze(&text, lexing) else { continue };
        readable += 1;
        let mut end = 0;
        for statement in &script.statements {
            assert!(end <= statement.range.start && statement.range.start <= statement.range.end, "{text:?}");
            end = statement.range.end;
        }
        assert!(end <= text.len(), "{text:?}");
        agrees_with_the_tree(&text, lexing, script);
    }
    assert!(readable > 1_000, "{readable}");
}

fn mutate(dice: &mut Dice) -> Vec<u8> {
    let mut text = CORPUS[dice.below(CORPUS.len())].as_bytes().to_vec();
    for _ in 0..dice.below(3) + 1 {
        let at = dice.below(text.len());
        match dice.below(6) {
            0 => text.truncate(at),
            1 => drop(text.drain(at..(at + dice.below(12)).min(text.len()))),
            2 => text.insert(at, ODD_BYTES[dice.below(ODD_BYTES.len())]),
            3 => {
                let other = CORPUS[dice.below(CORPUS.len())].as_bytes();
                let from = dice.below(other.len());
                let to = (from + dice.below(30)).min(other.len());
                text.splice(at..at, other[from..to].iter().copied());
            }
            4 => text.splice(at..at, b" ; ".iter().copied()).for_each(drop),
            _ => text.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(dice.below(255) as u8)),
        }
        if text.is_empty() {
            break;
        }
    }
    text
}

/// Asserts that both readers agree on the text.
fn agrees_with_the_tree(text: &[u8], lexing: Lexing, script: Script) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if !text.is_ascii() && lexing.encoding != Encoding::Utf8 {
        return;
    }
    let tree = read_tree(text, options(lexing)).unwrap();
    for (plain, full) in script.statements.into_iter().zip(tree.statements) {
        let (mut plain, mut full) = (Statement::clone(&plain), Statement::clone(&full));
        // Only the tree shows rows and the types that identify them.
        for statement in [&mut plain, &mut full] {
            statement.writes.iter_mut().for_each(|write| write.rows = Rows::default());
            statement.keys_by_path = false;
            statement.settle();
        }
        plain.functions.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        full.functions.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        // The fast reader drops a semicolon at the end of a comment, but the tree keeps it.
        full.range.end = full.range.end.min(plain.range.end);
        plain.range = full.range.clone();
        assert_eq!(plain, full, "{text}");
    }
}

#[test]
fn the_fast_reader_agrees_with_the_tree() {
    for text in [
        "SELECT f(a), s.g(b) FROM t, (SELECT h(c) FROM u) x WHERE i(d) AND e IN (SELECT j(k) FROM v)",
        "SELECT CASE WHEN f() THEN g() END, ARRAY[h()], count(*) FILTER (WHERE i()) OVER (ORDER BY j()) FROM t",
        "SELECT a FROM f() JOIN g() ON h() GROUP BY ROLLUP (i()) HAVING j() ORDER BY k() LIMIT l() OFFSET m()",
        "SELECT JSON_OBJECT(f(): g()), JSON_ARRAYAGG(h() ORDER BY i()), JSON_VALUE(j(), '$' DEFAULT k() ON EMPTY)",
        "SELECT XMLFOREST(f() AS a), (g()).b, (h())[i()], j() IS NULL, k()::int, l() COLLATE \"C\", m() IS JSON",
        "SELECT * FROM ROWS FROM (f(), g() AS (a int)), t TABLESAMPLE system (h()) REPEATABLE (i())",
        "SELECT 1 WINDOW w AS (PARTITION BY f() ROWS g() PRECEDING)",
        "SELECT DISTINCT ON (f()) 1 UNION SELECT g() INTERSECT SELECT h()",
        "INSERT INTO s.t (a[f()]) VALUES (g()), (h())",
        "INSERT INTO t SELECT f() FROM t WHERE g()",
        "UPDATE t SET a = f(), (b, c) = (SELECT g(), 1), d[h()] = 1 FROM i() WHERE j()",
        "DELETE FROM s.t USING u, f() WHERE g() = ANY (SELECT h())",
    ] {
        let plain = read_plain(text, options(Lexing::USUAL)).unwrap_or_else(|| panic!("not plain: {text}"));
        agrees_with_the_tree(text.as_bytes(), Lexing::USUAL, Script { statements: vec![plain.into()] });
    }
}

/// Runs the test on a thread with a stack as small as a session may have.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(2 << 20).spawn(test).unwrap().join().unwrap();
}

#[test]
fn deep_and_long_texts_are_read_or_refused_on_a_small_stack() {
    on_a_small_stack(|| {
        for depth in [20, 45, 60, 100, 900, 3_000, 64_000] {
            for (open, middle, close) in [
                ("(", "1", ")"),
                ("1 + ", "1", ""),
                ("1 + (", "1", ")"),
                ("NOT ", "a", ""),
                ("- ", "1", ""),
                ("f(", "1", ")"),
                ("(SELECT ", "1", ")"),
                ("CASE WHEN a THEN 1 ELSE ", "1", " END"),
                ("ARRAY[", "1", "]"),
                ("a = 1 OR ", "b", ""),
            ] {
                let expression = open.repeat(depth) + middle + &close.repeat(depth);
                for statement in ["SELECT ?", "DELETE FROM t WHERE ?", "SELECT ? FROM t FOR UPDATE", "EXPLAIN SELECT ?"]
                {
                    drop(analyze(statement.replace('?', &expression).as_bytes(), Lexing::USUAL));
                }
            }
            for (open, middle, close) in [
                ("SELECT 1 UNION ALL ", "SELECT 1", ""),
                ("SELECT * FROM (", "SELECT 1", ") x"),
                ("WITH x AS (", "SELECT 1", ") SELECT 1"),
                ("SELECT * FROM t ", "", "JOIN u ON true "),
                ("(", "SELECT 1", ")"),
                ("EXPLAIN ", "SELECT 1", ""),
                ("SELECT 1;", "", ""),
                ("PREPARE p AS ", "SELECT 1", ""),
                ("/*", "", "*/"),
            ] {
                drop(analyze((open.repeat(depth) + middle + &close.repeat(depth)).as_bytes(), Lexing::USUAL));
            }
        }
    });
}

#[test]
fn usual_depth_is_read() {
    let sum = vec!["a"; 3_000].join(" + ");
    assert_eq!(show_result(&analyze(format!("UPDATE t SET a = {sum}").as_bytes(), Lexing::USUAL)), "update:t");
    let sum = vec!["a"; 40].join(" + ");
    assert_eq!(
        show_result(&analyze(format!("UPDATE t SET a = {sum} RETURNING *").as_bytes(), Lexing::USUAL)),
        "update:t"
    );
    let list = vec!["($1, 'x')"; 20_000].join(", ");
    assert_eq!(show_result(&analyze(format!("INSERT INTO t VALUES {list}").as_bytes(), Lexing::USUAL)), "insert:t");
    assert_eq!(
        show_result(&analyze(format!("INSERT INTO t VALUES {list} RETURNING a").as_bytes(), Lexing::USUAL)),
        "insert:t"
    );
}

#[test]
fn texts_too_slow_for_the_lexer_are_read_from_tokens_or_refused() {
    for (text, expected) in [
        ("/*".repeat(64_000) + &"*/".repeat(64_000), "TooComplex"),
        ("/*".repeat(64_000), "TooComplex"),
        (format!("SELECT 1 {} 1", "+".repeat(64_000)), "-"),
        (format!("SELECT 1 {} 1", "+-".repeat(64_000)), "-"),
        (format!("SELECT 1 {} 1; SELECT 2", "+".repeat(64_000)), "TooComplex"),
        (format!("SELECT 1 {} 1", "+ ".repeat(1_000)), "-"),
        (format!("SELECT 1 /*{}*/", "*".repeat(64_000)), "-"),
        (format!("SELECT 1 --{}", "-=".repeat(64_000)), "-"),
        (format!("SELECT 1 --{}", "-".repeat(64_000)), "-"),
        (format!("SELECT '{}'", format!("+{0}+{0}+\n|{1}|{1}|\n", "-".repeat(80), " ".repeat(80)).repeat(5_000)), "-"),
    ] {
        assert_eq!(show_result(&analyze(text.as_bytes(), Lexing::USUAL)), expected, "{}", &text[..40]);
    }
}

#[test]
fn many_locking_clauses_report_one_lock() {
    let text = format!("SELECT 1 FROM t{}{}", ", t".repeat(20_000), " FOR UPDATE".repeat(20_000));
    assert_eq!(show_result(&analyze(text.as_bytes(), Lexing::USUAL)), "lock:t");
}

#[test]
fn too_deep_or_too_long_texts_are_reported() {
    let sum = vec!["a"; 20_000].join(" + ");
    assert_eq!(show_result(&analyze(format!("SELECT {sum} FOR UPDATE").as_bytes(), Lexing::USUAL)), "TooComplex");
    let long = format!("SHOW x -- {}", "x".repeat(2 << 20));
    assert_eq!(show_result(&analyze(long.as_bytes(), Lexing::USUAL)), "TooComplex");
    let parentheses = "(".repeat(64_000) + "1" + &")".repeat(64_000);
    assert_eq!(
        show_result(&analyze(format!("SELECT {parentheses} FOR UPDATE").as_bytes(), Lexing::USUAL)),
        "TooComplex"
    );
}

/// This holds for any size.
#[test]
fn plain_statements_are_read_from_their_tokens() {
    let (list, deep) = (vec!["123456"; 800_000].join(","), "(".repeat(64_000) + "1" + &")".repeat(64_000));
    let calls = vec!["abs(1)"; 64_000].join("+");
    for (text, expected) in [
        (format!("SELECT * FROM t WHERE a IN ({list})"), "-"),
        (format!("SELECT {deep} -- {list}"), "-"),
        (format!("SELECT {calls};"), "calls:abs"),
        (format!("VALUES ({list})"), "-"),
        (format!("DELETE FROM s.\"T\" WHERE a IN ({list}) RETURNING *"), "delete:s.T"),
        (format!("UPDATE t SET a = {deep} WHERE b IN ({list})"), "update:t"),
        (format!("INSERT INTO t VALUES ({list}), ({calls}) RETURNING a"), "insert:t calls:abs"),
        (format!("INSERT INTO t (a) VALUES ({list}) ON CONFLICT (a) DO NOTHING"), "insert:t"),
        (format!("INSERT INTO t (a) VALUES ({list}) ON CONFLICT DO UPDATE SET b = 1"), "insert:t update:t"),
        (format!("(SELECT a FROM t) UNION ALL ((SELECT abs({deep}))) -- {list}"), "calls:abs"),
        (format!("EXPLAIN SELECT a FROM t WHERE a IN ({list})"), "-"),
        (format!("EXPLAIN ANALYZE VERBOSE (VALUES ({list}))"), "-"),
        (format!("EXPLAIN ANALYSE (VALUES ({list}))"), "-"),
        (format!("EXPLAIN (ANALYZE, BUFFERS off, FORMAT 'json') ((SELECT 1)) UNION SELECT {deep}"), "-"),
        (format!("EXPLAIN ((SELECT {deep}) UNION SELECT 2) -- {list}"), "-"),
        (format!("DECLARE c NO SCROLL CURSOR WITH HOLD FOR (SELECT {deep}) UNION ALL (SELECT 2) -- {list}"), "-"),
        (format!("DECLARE \"c\" CURSOR FOR SELECT {deep} -- {list}"), "-"),
        (format!("EXPLAIN ANALYZE DELETE FROM t WHERE a IN ({list})"), "TooComplex"),
        (format!("EXPLAIN (ANALYZE false) SELECT {list}"), "TooComplex"),
        (format!("EXPLAIN (ANALYSE false) SELECT {list}"), "TooComplex"),
        (format!("EXPLAIN SELECT f(1), {list}"), "TooComplex"),
        (format!("DECLARE c CURSOR FOR SELECT f(1), {list}"), "TooComplex"),
        (format!("(DELETE FROM t WHERE a IN ({list}))"), "TooComplex"),
        (format!("(SELECT 1); DELETE FROM t WHERE a IN ({list})"), "TooComplex"),
        (format!("SELECT f(1), {list}"), "TooComplex"),
        (format!("SELECT \"abs\"(1), {list}"), "TooComplex"),
        (format!("SELECT 1 FROM t FOR UPDATE OF t -- {list}"), "TooComplex"),
        (format!("SELECT {list} INTO t"), "TooComplex"),
        (format!("SELECT 1; DELETE FROM t WHERE a IN ({list})"), "TooComplex"),
        (format!("WITH x AS (DELETE FROM t) SELECT {list}"), "TooComplex"),
        (format!("SELECT '{list}"), "TooComplex"),
    ] {
        assert_eq!(show_result(&analyze(text.as_bytes(), Lexing::USUAL)), expected, "{}", &text[..40]);
    }
}
