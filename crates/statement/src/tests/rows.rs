//! Rows that statements affect: `text; text => known rows` in the notation of [`show_rows`].

use super::check_outline;
use crate::rows::{Argument, Beside, Column, ColumnValue, Declared, MOST_VALUES, Purpose, ValueType};
use crate::{Encoding, Lexing, PreparedEffect, Statement, analyze, analyze_rows};
use std::sync::Arc;

pub(super) fn read(text: &str) -> Arc<Statement> {
    analyze_rows(text.as_bytes(), Lexing::USUAL).unwrap().statements.remove(0)
}

/// Shows the known columns of each write, as in `insert k=1,2 v='x' | update -`. A question mark follows a parameter
/// whose type is uncertain.
pub(super) fn show_rows(statement: &Statement) -> String {
    let writes = statement.writes.iter().map(|write| {
        let column = |(column, values): &(Column, Vec<ColumnValue>)| {
            let name = match column {
                Column::Named(name) => name.clone(),
                Column::Placed(place) => format!("#{place}"),
            };
            format!("{name}={}", values.iter().map(show_value).collect::<Vec<_>>().join(","))
        };
        let columns: Vec<_> = write.rows.columns().iter().map(column).collect();
        let known = if columns.is_empty() { "-".to_owned() } else { columns.join(" ") };
        format!("{} {known}", format!("{:?}", write.operation).to_lowercase())
    });
    writes.collect::<Vec<_>>().join(" | ")
}

fn show_value(value: &ColumnValue) -> String {
    let kind = |kind: &Option<ValueType>| kind.map(|kind| format!("::{kind:?}").to_lowercase()).unwrap_or_default();
    match value {
        ColumnValue::Literal { text, kind: Some(ValueType::Integer) } => text.clone(),
        ColumnValue::Literal { text, kind: of } => format!("'{text}'{}", kind(of)),
        ColumnValue::Binary(bytes) => format!("x'{}'", bytes.escape_ascii()),
        ColumnValue::Parameter { number, cast, is_alone } => {
            format!("${number}{}{}", kind(cast), sure(*is_alone))
        }
        ColumnValue::Elements(array) => {
            let beside = match &array.purpose {
                Purpose::Compare => Vec::new(),
                Purpose::Store(beside) => beside.iter().map(show_beside).collect(),
            };
            format!("${}[]{}{}{}", array.number, kind(&array.cast), sure(array.is_alone), beside.concat())
        }
        ColumnValue::NullWord => "NULL".to_owned(),
        ColumnValue::TooMany => "too many".to_owned(),
    }
}

fn show_beside(beside: &Beside) -> String {
    match beside {
        Beside::Count(count) => format!("|{count}"),
        Beside::Parameter { number, is_alone } => format!("|${number}{}", sure(*is_alone)),
    }
}

fn sure(is_alone: bool) -> &'static str {
    if is_alone { "" } else { "?" }
}

pub(super) fn check(outline: &str) {
    check_outline(outline, |text| show_rows(&read(text)));
}

#[test]
fn values() {
    check("DELETE FROM t WHERE 007 = k => delete k=7");
    check_outline(
        r#"
        3; '3'::int; pg_catalog.int8 '3'; 3::smallint => delete k=3
        -3 => delete k=-3
        9223372036854775807 => delete k=9223372036854775807
        9223372036854775808; 3.0; 'abc'::varchar(2); 'x'::char; '3'::my.int4; '{3}'::int[]; 3::numeric;
        '3'::int::text; 'x' COLLATE "C"; 1 + 2; NULL; true; b'1'; (SELECT 3); j => delete -
        'x' => delete k='x'
        E'\x41' => delete k='A'
        'ä' => delete k='ä'
        -- In another server encoding, these bytes are other characters.
        E'\303\244' => delete -
        CAST('x' AS text); varchar 'x' => delete k='x'::text
        uuid 'a' => delete k='a'::uuid
        "#,
        |value| show_rows(&read(&format!("DELETE FROM t WHERE k = {value}"))),
    );
    let [short, long] = [256, 257].map(|length| "x".repeat(length));
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k = '{short}'"))), format!("delete k='{short}'"));
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k = '{long}'"))), "delete -");
}

#[test]
fn conditions() {
    check("DELETE FROM t => delete -");
    check_outline(
        r#"
        k IN (1, j); k IN (SELECT 1); k = ALL (ARRAY[1, 2]); k NOT IN (1, 2); k <> 1;
        k >= 1 AND k <= 1; k BETWEEN 1 AND 1; k IS NOT DISTINCT FROM 1; NOT k = 1; (k = 1) IS TRUE; (k, j) = (1, 2);
        k OPERATOR(mine.=) 1; k::text = '1'; k = 1 OR j = 2; k = 1 OR true; k = 3 ~ 'x'; CURRENT OF c;
        k[1] = 1 => delete -
        k IN (1, 2, 1); k = ANY (ARRAY[1, 2]); k = 1 OR k = 2; (k = 1 AND j = 3) OR (k = 2 AND v);
        v AND (k = 1 OR (k = 2 AND v)) => delete k=1,2
        k OPERATOR(pg_catalog.=) 1 => delete k=1
        k = 1 AND j = 'x' AND f(v) => delete j='x' k=1
        k IN (1, 2) AND k = 2 => delete k=2
        "K" = 1 AND K = 2 => delete K=1 k=2
        "#,
        |condition| show_rows(&read(&format!("DELETE FROM t WHERE {condition}"))),
    );
    let list = |count| (0..count).map(|n: usize| n.to_string()).collect::<Vec<_>>().join(",");
    let most = list(MOST_VALUES);
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k IN ({most})"))), format!("delete k={most}"));
    let more = list(MOST_VALUES + 1);
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k IN ({more})"))), "delete k=too many");
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k IN ({more}) AND k = 7"))), "delete k=7");
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k IN ({more}) OR k = 7"))), "delete k=too many");
    let chain = more.replace(',', " OR k = ");
    assert_eq!(show_rows(&read(&format!("DELETE FROM t WHERE k = {chain}"))), "delete k=too many");
}

#[test]
fn names_of_the_relation() {
    check(
        "
        DELETE FROM t WHERE t.k = 1; DELETE FROM s.t WHERE s.t.k = 1; DELETE FROM s.t WHERE t.k = 1;
        DELETE FROM t AS x WHERE x.k = 1; DELETE FROM t USING u WHERE k = 1;
        WITH t AS (SELECT 1 AS k) DELETE FROM t WHERE k = 1 => delete k=1
        -- The column may be that of the table in FROM, if the written table is in another schema.
        DELETE FROM t USING s.t WHERE s.t.k = 1 => delete -
        DELETE FROM s.t WHERE r.t.k = 1; DELETE FROM t AS x WHERE t.k = 1; DELETE FROM s.t AS x WHERE s.t.k = 1;
        DELETE FROM t AS x USING u AS t WHERE t.k = 1; DELETE FROM t USING u WHERE u.k = 1;
        DELETE FROM t USING u WHERE t.k = u.k AND u.k = 1 => delete -
        SELECT * FROM t WHERE k = 1 FOR UPDATE; SELECT * FROM t JOIN u USING (k) WHERE t.k = 1 FOR SHARE OF t;
        SELECT * FROM (SELECT * FROM t WHERE k = 1 FOR UPDATE) AS x WHERE x.k = 2 => lock k=1
        SELECT * FROM t WHERE k = 1 =>
        SELECT * FROM t AS x (j, k) WHERE k = 1 FOR UPDATE;
        SELECT * FROM (SELECT * FROM t) AS t WHERE t.k = 1 FOR UPDATE => lock -
        SELECT * FROM t, u WHERE k = 1 FOR UPDATE => lock - | lock -
        SELECT * FROM t, u WHERE t.k = 1 FOR UPDATE => lock k=1 | lock -
        ",
    );
}

#[test]
fn inserts() {
    check(
        "
        INSERT INTO t (k, v) VALUES (1, 'x') => insert k=1 v='x'
        INSERT INTO t (k, v) VALUES (1, 'x'), (2, f()) => insert k=1,2
        INSERT INTO t VALUES (1, now(), 'x') => insert #0=1 #2='x'
        INSERT INTO t (k) VALUES (DEFAULT); INSERT INTO t VALUES ((ROW(1, 2)).*, 3);
        INSERT INTO t (k) VALUES (1) LIMIT 1; INSERT INTO t (k) VALUES (1), ('007') ORDER BY 1;
        INSERT INTO t (k) WITH x AS (SELECT 1) VALUES (1); INSERT INTO t (k) SELECT 1; INSERT INTO t DEFAULT VALUES;
        INSERT INTO t (k) OVERRIDING USER VALUE VALUES (1); COPY t FROM STDIN WHERE k = 1 => insert -
        INSERT INTO t (a[1], b.c, k) VALUES (1, 2, 3) => insert k=3
        WITH x AS (SELECT 1) INSERT INTO t (k) VALUES (1);
        INSERT INTO t (k) OVERRIDING SYSTEM VALUE VALUES (1) => insert k=1
        TRUNCATE t => truncate -
        ",
    );
}

#[test]
fn upserts() {
    check(
        r#"
        INSERT INTO t (k, v) VALUES (1, 2) ON CONFLICT DO NOTHING => insert k=1 v=2
        INSERT INTO t (k, v) VALUES (1, 2) ON CONFLICT (k) DO UPDATE SET v = 3 => insert k=1 v=2 | update k=1
        INSERT INTO t (k, v) VALUES (1, 2) ON CONFLICT (v) DO UPDATE SET n = 3 => insert k=1 v=2 | update v=2
        INSERT INTO t (k) VALUES (1) ON CONFLICT (lower(k)) DO UPDATE SET v = 3;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (k COLLATE "C") DO UPDATE SET v = 3;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (k ops) DO UPDATE SET v = 3;
        INSERT INTO t (k) VALUES (1) ON CONFLICT ON CONSTRAINT c DO UPDATE SET v = 3;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 3 WHERE k = 2;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 3 WHERE excluded.k = 2;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (k) DO UPDATE SET k = t.k + 1 => insert k=1 | update -
        INSERT INTO t (k) VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 3 WHERE t.k = 2;
        INSERT INTO t AS x (k) VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 3 WHERE x.k = 2 => insert k=1 | update k=2
        INSERT INTO t (k) VALUES (1) ON CONFLICT (id) DO UPDATE SET k = excluded.k WHERE t.k = 2
            => insert k=1 | update k=2,1
        INSERT INTO t (k, v) VALUES (1, 5) ON CONFLICT (k) DO UPDATE SET k = excluded.v => insert k=1 v=5 | update -
        INSERT INTO t (k) VALUES (1) ON CONFLICT (k) DO UPDATE SET k = excluded.k;
        INSERT INTO t (k) VALUES (1) ON CONFLICT (k) DO UPDATE SET k = t.k => insert k=1 | update k=1
        INSERT INTO t (k) SELECT 1 ON CONFLICT (k) DO UPDATE SET v = 3 => insert - | update -
        INSERT INTO t VALUES (1) ON CONFLICT (k) DO UPDATE SET v = 3 => insert #0=1 | update -
        "#,
    );
}

#[test]
fn updates() {
    check(
        "
        UPDATE t SET v = 1 WHERE k = 2; UPDATE t SET k = k WHERE k = 2;
        UPDATE t SET v = u.v FROM u WHERE t.k = 2 AND t.id = u.id;
        EXPLAIN ANALYZE UPDATE t SET v = 1 WHERE k = 2 => update k=2
        UPDATE t SET k = 1; UPDATE t SET k = v WHERE k = 2; UPDATE t SET k = k + 1 WHERE k = 2;
        UPDATE t SET k = DEFAULT WHERE k = 2; UPDATE t SET (k, v) = (1, 2) WHERE k = 2;
        UPDATE t SET (k, v) = (SELECT 1, 2) WHERE k = 2; UPDATE t SET k[1] = 3 WHERE k = 2;
        UPDATE t SET k = u.k FROM u WHERE t.k = 2 => update -
        UPDATE t SET k = 1 WHERE k = 2 => update k=2,1
        WITH x AS (UPDATE t SET v = 1 WHERE k = 1) DELETE FROM t WHERE k = 2 => update k=1 | delete k=2
        ",
    );
}

#[test]
fn merges() {
    let merge = |on: &str, when: &str| {
        let text = format!("MERGE INTO t USING s ON {on} WHEN {when}");
        show_rows(&read(&text))
    };
    for (on, when, expected) in [
        ("t.id = s.id AND t.k = 1", "MATCHED THEN UPDATE SET v = 1", "update k=1"),
        ("t.id = s.id AND t.k = 1", "MATCHED THEN DELETE", "delete k=1"),
        ("t.id = s.id AND t.k = 1", "MATCHED THEN UPDATE SET k = 2", "update k=1,2"),
        ("t.id = s.id AND t.k = 1", "MATCHED THEN UPDATE SET k = s.k", "update -"),
        ("t.id = s.id", "MATCHED AND t.k = 1 THEN DELETE", "delete k=1"),
        ("t.id = s.id AND s.k = 1", "MATCHED THEN DELETE", "delete -"),
        ("t.k = 1", "NOT MATCHED BY SOURCE THEN DELETE", "delete -"),
        ("t.k = 1", "NOT MATCHED BY SOURCE AND t.k = 2 THEN DELETE", "delete k=2"),
        ("t.k = 1", "NOT MATCHED THEN INSERT (k, v) VALUES (3, s.v)", "insert k=3"),
        ("t.k = 1", "NOT MATCHED THEN INSERT (k) VALUES (s.k)", "insert -"),
        ("t.k = 1", "NOT MATCHED THEN INSERT VALUES (s.*, 3)", "insert -"),
        ("t.k = 1", "NOT MATCHED THEN INSERT DEFAULT VALUES", "insert -"),
        ("t.k = 1", "NOT MATCHED THEN INSERT (k) OVERRIDING USER VALUE VALUES (3)", "insert -"),
        ("t.k = 1", "MATCHED THEN DO NOTHING", ""),
        ("t.k = 1 OR s.v", "MATCHED THEN DELETE", "delete -"),
    ] {
        assert_eq!(merge(on, when), expected, "{on} {when}");
    }
}

#[test]
fn parameters() {
    check(
        "
        UPDATE t SET v = $1 WHERE k = $2 => update k=$2
        INSERT INTO t (k, v) VALUES ($1, $2) => insert k=$1 v=$2
        INSERT INTO t (k, v) VALUES ($1, $1) => insert k=$1? v=$1?
        INSERT INTO t (k, v) VALUES ($1, $1 || 'x') => insert k=$1?
        DELETE FROM t WHERE k = $1 AND id = $1 => delete id=$1? k=$1?
        DELETE FROM t WHERE k = $1 OR k = $1; MERGE INTO t USING s ON t.k = $1 WHEN MATCHED THEN DELETE => delete k=$1
        DELETE FROM t WHERE k = $1 RETURNING $1;
        DELETE FROM t WHERE k = $1 AND EXISTS (SELECT FROM u WHERE a = $1) => delete k=$1?
        DELETE FROM t WHERE k IN ($1, $2) AND f($1) => delete k=$1?,$2
        WITH x AS (DELETE FROM u WHERE k = $1) DELETE FROM t WHERE k = $1 => delete k=$1? | delete k=$1?
        DELETE FROM t WHERE k = $1::int; DELETE FROM t WHERE k = $1::int AND v > $1::bigint => delete k=$1::integer
        DELETE FROM t WHERE k = $1::int AND v = $1 => delete k=$1::integer? v=$1?
        DELETE FROM t WHERE k = $1::int AND v > $1::numeric => delete k=$1::integer?
        DELETE FROM t WHERE k = $1::char => delete -
        -- 1.5 cannot be a key, so $1 has another type.
        DELETE FROM t WHERE k IN ($1, 1.5) AND k = $1 => delete k=$1?
        ",
    );
}

#[test]
fn bound_values_identify_rows() {
    let bound = |text: &str, declared: &[Declared], given: &[Argument]| {
        let statement = Statement { declared: declared.to_vec(), ..Arc::unwrap_or_clone(read(text)) };
        show_rows(&statement.bound(given))
    };
    let text = |text: &'static str| Argument::Text(text.as_bytes());
    let binary = Argument::Binary;
    let one = "DELETE FROM t WHERE k = $1";
    assert_eq!(bound(one, &[], &[text("07")]), "delete k='07'");
    assert_eq!(bound(one, &[], &[binary(b"\0\x07")]), "delete k=x'\\x00\\x07'");
    assert_eq!(bound(one, &[], &[Argument::Null]), "delete -");
    assert_eq!(bound(one, &[], &[]), "delete -");
    assert_eq!(bound(one, &[Declared::As(ValueType::Integer)], &[text("07")]), "delete k=7");
    assert_eq!(bound(one, &[Declared::As(ValueType::Integer)], &[binary(b"\0\0\0\x07")]), "delete k=7");
    assert_eq!(bound(one, &[Declared::As(ValueType::Integer)], &[binary(b"\0\0\x07")]), "delete -");
    assert_eq!(bound(one, &[Declared::As(ValueType::Text)], &[binary(b"ab\0\x07")]), "delete k='ab\0\x07'::text");
    assert_eq!(bound(one, &[Declared::As(ValueType::Text)], &[binary(b"\xff")]), "delete -");
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    let bytes = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
    assert_eq!(bound(one, &[Declared::As(ValueType::Uuid)], &[binary(&bytes)]), format!("delete k='{uuid}'::uuid"));
    assert_eq!(bound(one, &[Declared::Otherwise], &[text("7")]), "delete -");
    // Casts of declared and undeclared parameters.
    let cast = "DELETE FROM t WHERE k = $1::text";
    assert_eq!(bound(cast, &[Declared::As(ValueType::Integer)], &[text("07")]), "delete k='7'::text");
    assert_eq!(bound(cast, &[], &[text("07")]), "delete k='07'::text");
    // A parameter that is used twice has a certain type only if it was declared.
    let twice = "DELETE FROM t WHERE k = $1 RETURNING $1";
    assert_eq!(bound(twice, &[], &[text("07")]), "delete -");
    assert_eq!(bound(twice, &[Declared::As(ValueType::Integer)], &[text("07")]), "delete k=7");
    assert_eq!(bound("DELETE FROM t WHERE k IN ($1, 2)", &[], &[Argument::Null]), "delete -");
    assert_eq!(ColumnValue::from_text("x".repeat(257).as_bytes()), None);
}

#[test]
fn execute_arguments_identify_rows() {
    let executed = |execute: &str, prepare: &str| {
        let prepared = read(prepare);
        let PreparedEffect::Prepare { statement, .. } = &prepared.prepared else { panic!("{prepare}") };
        show_rows(&read(execute).executing(Some(statement)))
    };
    let delete = "PREPARE p AS DELETE FROM t WHERE k = $1";
    assert_eq!(executed("EXECUTE p (7)", delete), "delete k=7");
    assert_eq!(executed("EXECUTE p ('7')", delete), "delete k='7'");
    assert_eq!(executed("EXECUTE p (3 + 4)", delete), "delete -");
    assert_eq!(executed("EXECUTE p ($1)", delete), "delete -");
    assert_eq!(executed("EXECUTE p", delete), "delete -");
    assert_eq!(executed("EXECUTE p (7)", "PREPARE p (text) AS DELETE FROM t WHERE k = $1"), "delete k='7'::text");
    assert_eq!(executed("EXECUTE p (7)", "PREPARE p (numeric) AS DELETE FROM t WHERE k = $1"), "delete -");
    assert_eq!(executed("EXECUTE p (7)", "PREPARE p (varchar(3)) AS DELETE FROM t WHERE k = $1"), "delete -");
}

/// In an encoding that the proxy cannot decode, non-ASCII characters are unknown.
#[test]
fn non_ascii_keys_in_other_encodings_are_unknown() {
    let foreign = Lexing { encoding: Encoding::AsciiSafe, ..Lexing::USUAL };
    let shown = |text: &[u8]| {
        let script = analyze_rows(text, foreign).unwrap();
        show_rows(&script.statements[0])
    };
    assert_eq!(shown(b"DELETE FROM t WHERE k = 'a'"), "delete k='a'");
    assert_eq!(shown(b"DELETE FROM t WHERE k = '\xe4' AND j = 1"), "delete j=1");
    assert_eq!(shown(b"DELETE FROM t WHERE k\xe4 = 1 AND j = 1"), "delete j=1");
    assert_eq!(shown(b"EXECUTE p ('a')"), "");
    let script =
        analyze_rows(b"PREPARE p AS DELETE FROM t WHERE k = '\xe4'; EXECUTE p ('\xe4', 'a')", foreign).unwrap();
    let PreparedEffect::Prepare { statement, .. } = &script.statements[0].prepared else { panic!("not a PREPARE") };
    assert_eq!(show_rows(statement), "delete -");
    let PreparedEffect::Execute { arguments, .. } = &script.statements[1].prepared else { panic!("not an EXECUTE") };
    assert!(matches!(arguments.as_slice(), [None, Some(_)]));
}

/// The fast reader is used if no rows are requested, and always if the tree is too deep.
#[test]
fn the_reader_depends_on_requested_rows_and_depth() {
    let text = "UPDATE t SET v = 1 WHERE k = 2";
    assert_eq!(show_rows(&analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0]), "update -");
    let sum = vec!["1"; 2_000].join(" + ");
    assert_eq!(show_rows(&read(&format!("UPDATE t SET v = {sum} WHERE k = 2"))), "update k=2");
    let sum = vec!["1"; 64_000].join(" + ");
    assert_eq!(show_rows(&read(&format!("UPDATE t SET v = {sum} WHERE k = 2"))), "update -");
}

/// If many relations or branches share a condition, the work and the stored result remain proportional to the text.
#[test]
fn expensive_conditions_report_no_rows() {
    let conditions: Vec<String> = (0..3000).map(|n| format!("t.c{n} = {n}")).collect();
    let on = conditions.join(" AND ");
    let merge = format!("MERGE INTO t USING s ON {on}{}", " WHEN MATCHED THEN DELETE".repeat(3000));
    let relations: Vec<String> = (0..5000).map(|n| format!("t t{n}")).collect();
    let duplicates = vec!["1"; 30_000].join(",");
    let lock = format!("SELECT FROM {} WHERE t.k IN ({duplicates}) FOR UPDATE", relations.join(","));
    for text in [merge, lock] {
        let started = std::time::Instant::now();
        let statement = read(&text);
        assert!(statement.weight() < 100 * text.len(), "{} for {}", statement.weight(), text.len());
        println!("{:?} for {} bytes", started.elapsed(), text.len());
    }
}
