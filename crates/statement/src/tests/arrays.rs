//! Rows that arrays identify, in conditions and in `unnest`.

use super::check_outline;
use super::rows::{check, read, show_rows};
use crate::Statement;
use crate::rows::{Argument, Declared, ElementType, MOST_VALUES, ValueType};
use std::sync::Arc;

#[test]
fn arrays_in_conditions() {
    check_outline(
        r#"
        k = ANY ('{1,2}'); k = SOME ('{1, "2"}') => delete k='1','2'
        k = ANY ('{1,2,NULL}'::int8[]); k = ANY (CAST('{1,2}' AS bigint[])); k IN (1, NULL, 2);
        k = ANY (ARRAY[1, NULL, 2]); k = ANY (ARRAY['1', '2']::int[]) => delete k=1,2
        -- With array_nulls = off, NULL is a string.
        k = ANY ('{NULL,a}') => delete k=NULL,'a'
        k = ANY ('{NULL,a}'::text[]) => delete k=NULL,'a'::text
        k = ANY ('{}'); k = ANY ('{NULL}'::int[]); k IN (NULL) => delete k=
        k = ANY ('{{1},{2}}'); k = ANY ('[0:0]={1}'); k = ANY ('{1,x}'::int[]); k = ANY ('{1'); k = ANY (NULL);
        k = ANY ('{1}'::int[]::text[]); k = ANY ('{a}'::varchar(1)[]); k = ANY ('{1}'::numeric[]);
        k = ANY ('{1}'::my.int8[]); k = ANY ('{1}'::int8); k = ANY (ARRAY[ARRAY[1]]); k = ANY (ARRAY[j]);
        k <> ALL ('{1}'); k = ALL ('{1}'); k <> ANY ('{1}'); NOT k = ANY ('{1}'); k OPERATOR(my.=) ANY ('{1}');
        k < ANY ('{1}'); 1 = ANY (k); k = ANY (f()); k = ANY (SELECT 1); k NOT IN (SELECT unnest('{1}'::int[])) => delete -
        k = ANY ($1) => delete k=$1[]
        k = ANY ($1::int8[]) => delete k=$1[]::integer
        k = ANY ($1::int8[]) OR k = 7 => delete k=$1[]::integer,7
        k = ANY ($1) AND k = 7 => delete k=7
        k = ANY ($1) AND j = ANY ($1) => delete j=$1[]? k=$1[]?
        k = ANY ($1) AND k = $1 => delete k=$1?
        k IN (SELECT unnest('{1,2}'::int8[])); k IN (SELECT * FROM unnest(ARRAY[1, 2]));
        k = ANY (SELECT x FROM unnest('{1,2}'::int[]) AS x);
        k IN (SELECT t.x FROM pg_catalog.unnest('{1,2}'::int[]) AS t(x)) => delete k=1,2
        k IN (SELECT unnest($1::int8[])) => delete k=$1[]::integer
        k IN (SELECT unnest($1)) => delete k=$1[]?
        k IN (SELECT unnest('{1}')); k IN (SELECT unnest('{1}'::int[]) LIMIT 1); k IN (SELECT my.unnest('{1}'::int[]));
        k IN (SELECT unnest('{1}'::int[]) UNION SELECT 2); k IN (SELECT unnest('{1}'::int[]) WHERE true);
        k IN (SELECT j FROM unnest('{1}'::int[]) AS t(x)); k IN (SELECT x FROM unnest('{1}'::int[]) AS t(x), u);
        k IN (SELECT x FROM unnest('{1}'::int[]) WITH ORDINALITY AS t(x)); k IN (SELECT unnest('{1}'::int[]) + 1);
        k > ANY (SELECT unnest('{1}'::int[])); (SELECT unnest('{1}'::int[])) = k;
        k IN (WITH unnest AS (SELECT 1) SELECT unnest('{1}'::int[])) => delete -
        "#,
        |condition| show_rows(&read(&format!("DELETE FROM t WHERE {condition}"))),
    );
    for text in ["k IN (SELECT pg_catalog.unnest($1))", "k IN (SELECT unnest($1))"] {
        assert!(read(&format!("DELETE FROM t WHERE {text}")).keys_by_path, "{text}");
    }
    assert!(read("INSERT INTO t (k) SELECT * FROM unnest($1)").keys_by_path);
    assert!(!read("INSERT INTO t (k) SELECT * FROM pg_catalog.unnest($1)").keys_by_path);
}

#[test]
fn inserts_from_arrays() {
    check(
        r#"
        INSERT INTO t (k, v) SELECT * FROM unnest($1::int8[], $2::text[]);
        INSERT INTO t (k, v) SELECT a, b FROM unnest($1::int8[], $2::text[]) AS t(a, b);
        INSERT INTO t (k, v) SELECT t.a, t.b FROM unnest($1::int8[], $2::text[]) AS t(a, b);
        INSERT INTO t (k, v) SELECT unnest($1::int8[]), unnest($2::text[]) => insert k=$1[]::integer|$2 v=$2[]::text|$1
        INSERT INTO t (v, k) SELECT b, a FROM unnest($1::int8[], $2::text[]) AS t(a, b) => insert v=$2[]::text|$1 k=$1[]::integer|$2
        INSERT INTO t SELECT * FROM unnest($1::int8[]) => insert #0=$1[]::integer
        INSERT INTO t (k, v, w) SELECT x, now(), $2::text FROM unnest($1::int8[]) AS x => insert k=$1[]::integer w=$2::text
        INSERT INTO t (k, v) SELECT unnest($1::int8[]), unnest($2::jsonb[])::text => insert k=$1[]::integer|$2
        INSERT INTO t (k, v) SELECT 3, unnest($1::timestamptz[]) => insert k=3
        -- A parameter without a cast may have a declared type.
        INSERT INTO t (k) SELECT unnest($1) => insert k=$1[]?
        INSERT INTO t (k, v) SELECT * FROM unnest('{1,2}'::int[], ARRAY['a']) => insert k=1,2
        INSERT INTO t (k, v) SELECT * FROM unnest(ARRAY[1, 2], '{a,NULL}'::text[]) => insert k=1,2
        -- unnest fills the shorter array with NULL. The length of the other array may be unknown.
        INSERT INTO t (k) SELECT x FROM unnest('{1,2}'::int[], '{a,b,c}'::text[]) AS t(x, y);
        INSERT INTO t (k) SELECT x FROM unnest('{1,2}'::int[], $1::text[]) AS t(x, y);
        INSERT INTO t (k) SELECT x FROM unnest($1::int[], $2::box[]) AS t(x, y);
        INSERT INTO t (k) SELECT x FROM unnest($1::int[], f()) AS t(x, y);
        INSERT INTO t (k) SELECT x FROM unnest('{1,NULL}'::int[]) AS x; INSERT INTO t (k) SELECT unnest(ARRAY[1, NULL]);
        INSERT INTO t (k) SELECT unnest(ARRAY[1, '02']); INSERT INTO t (k) SELECT unnest(ARRAY[$1]);
        INSERT INTO t (k) SELECT unnest('{1}'); INSERT INTO t (k) SELECT x + 1 FROM unnest($1::int[]) AS x;
        INSERT INTO t (k, v) SELECT unnest($1::int[]), generate_series(1, 3);
        INSERT INTO t (k) SELECT x FROM unnest($1::int[]) AS x WHERE x > 1;
        INSERT INTO t (k) SELECT x FROM unnest($1::int[]) AS t(y); INSERT INTO t (k) SELECT x FROM u AS x;
        INSERT INTO t (k) SELECT x FROM ROWS FROM (unnest($1::int[]), unnest($2::int[])) AS t(x, y);
        INSERT INTO t (k) SELECT x FROM unnest($1::int[]) WITH ORDINALITY AS t(x, y);
        INSERT INTO t (k) OVERRIDING USER VALUE SELECT unnest($1::int[]);
        INSERT INTO t (k) SELECT unnest($1::int[]) UNION ALL SELECT 3;
        INSERT INTO t (k) SELECT DISTINCT unnest($1::int[]); INSERT INTO t (k) SELECT u.x FROM unnest($1::int[]) AS x => insert -
        INSERT INTO t (k) SELECT unnest($1::int[]) ON CONFLICT (k) DO UPDATE SET v = 1 => insert k=$1[]::integer | update k=$1[]::integer
        "#,
    );
}

#[test]
fn bound_arrays_identify_rows() {
    let integers = Declared::Array(ElementType::Key(ValueType::Integer));
    let bound = |text: &str, declared: &[Declared], given: &[Argument]| {
        let statement = Statement { declared: declared.to_vec(), ..Arc::unwrap_or_clone(read(text)) };
        assert!(statement.has_parameters() && statement.uses_parameter(given.len(), |_| true));
        show_rows(&statement.bound(given))
    };
    let three = [1u32, 0, 23, 1, 1, 4, 3].map(u32::to_be_bytes).concat();
    let any = "DELETE FROM t WHERE k = ANY ($1)";
    for (declared, given, expected) in [
        (None, Argument::Text(b"{1,02,NULL,1}"), "delete k='1','02',NULL"),
        (None, Argument::Binary(&three), "delete k=3"),
        (None, Argument::Text(b"{}"), "delete k="),
        (None, Argument::Null, "delete k="),
        (None, Argument::Unknown, "delete -"),
        (None, Argument::Text(b"{1"), "delete -"),
        (Some(integers), Argument::Text(b"{1,02,NULL,1}"), "delete k=1,2"),
        (Some(integers), Argument::Binary(&three), "delete k=3"),
        (Some(Declared::Array(ElementType::Key(ValueType::Text))), Argument::Binary(&three), "delete -"),
        (Some(Declared::Array(ElementType::Counted(0))), Argument::Text(b"{1}"), "delete -"),
        (Some(Declared::As(ValueType::Text)), Argument::Text(b"{1}"), "delete -"),
        (Some(Declared::Otherwise), Argument::Text(b"{1}"), "delete -"),
    ] {
        let declared: Vec<Declared> = declared.into_iter().collect();
        assert_eq!(bound(any, &declared, &[given]), expected, "{declared:?} {given:?}");
    }
    let cast = "DELETE FROM t WHERE k = ANY ($1::text[])";
    assert_eq!(bound(cast, &[integers], &[Argument::Text(b"{07}")]), "delete k='7'::text");
    assert_eq!(bound(cast, &[], &[Argument::Text(b"{07}")]), "delete k='07'::text");
    let insert = "INSERT INTO t (k, v) SELECT * FROM unnest($1::int[], $2::text[])";
    let text = Argument::Text;
    let whole = "insert k=1,2";
    assert!(bound(insert, &[], &[text(b"{1,2}"), text(b"{a,b}")]).starts_with(whole));
    assert!(bound(insert, &[], &[text(b"{1,2}"), text(b"{a}")]).starts_with(whole));
    assert!(bound(insert, &[], &[text(b"{1,2}"), Argument::Null]).starts_with(whole));
    for (keys, beside) in [("{1,2}", "{a,b,c}"), ("{1,NULL}", "{a,b}"), ("{}", "{a}"), ("{1,2}", "{{a},{b}}")] {
        let shown = bound(insert, &[], &[text(keys.as_bytes()), text(beside.as_bytes())]);
        assert!(!shown.contains("k="), "{keys} {beside}: {shown}");
    }
    let list = |count: usize| format!("{{{}}}", (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
    let [most, more] = [MOST_VALUES, MOST_VALUES + 1].map(list);
    assert_eq!(bound(any, &[], &[text(most.as_bytes())]).matches(',').count(), MOST_VALUES - 1);
    assert_eq!(bound(any, &[], &[text(more.as_bytes())]), "delete k=too many");
}

/// `*` expands an array of a row type to several columns.
#[test]
fn columns_after_a_star_have_no_known_place() {
    for (select, expected) in [
        ("SELECT *, 3::int8 FROM unnest(ARRAY[ROW(77, 4)::c])", "insert -"),
        ("SELECT u.*, 3::int8 FROM unnest($1::c[]) u", "insert -"),
        ("SELECT 3::int8, u.* FROM unnest($1::c[]) u", "insert #0=3"),
    ] {
        assert_eq!(show_rows(&read(&format!("INSERT INTO t {select}"))), expected, "{select}");
    }
}

/// Each write reads its arrays. Together they may not exceed the limit of one statement.
#[test]
fn arrays_of_many_writes_are_read_within_limits() {
    let known = |writes: usize, array: &str| {
        let write = |number| format!("a{number} AS (DELETE FROM t WHERE k = ANY ($1::int8[]) AND v = {number})");
        let writes: Vec<String> = (0..writes).map(write).collect();
        let statement = read(&format!("WITH {} SELECT 1", writes.join(", ")));
        let declared = vec![Declared::from_oid(1016)];
        let statement = Statement { declared, ..Arc::unwrap_or_clone(statement) };
        let bound = statement.bound(&[Argument::Text(array.as_bytes())]);
        bound.writes.iter().filter(|write| write.rows.values("k", None).is_some()).count()
    };
    let array = |elements: usize| format!("{{{}}}", vec!["7"; elements].join(","));
    assert_eq!(known(50, &array(10)), 50);
    assert_eq!(known(50, &array(10_000)), 10);
    assert_eq!(known(1, &array(100_001)), 0);
    assert_eq!(known(2, &format!("{{7{}}}", " ".repeat(3_000_000))), 1);
}
