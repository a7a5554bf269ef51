//! Texts that are, or once were, far more expensive for the parsers or the judge than their length suggests.

/// Returns texts with their names. The longest have about a megabyte.
pub fn bombs() -> Vec<(&'static str, String)> {
    let list = |item: &str, times: usize| vec![item; times].join(", ");
    let numbered = |times: usize, item: fn(usize) -> String| (0..times).map(item).collect::<Vec<_>>().join(", ");
    let nest = |depth: usize, inner: &str, around: fn(usize, String) -> String| {
        (0..depth).fold(inner.to_owned(), |inner, level| around(level, inner))
    };
    let executed = |prepared: &str, times: usize| format!("PREPARE p AS {prepared}; {}", "EXECUTE p; ".repeat(times));
    let calls = numbered(2_000, |n| format!("f{n}()"));
    let assign_many = |columns: usize| format!("({}) = (SELECT {})", list("a", columns), list("1", columns));
    vec![
        // Left recursion: deep trees from short texts without nesting.
        ("joins", format!("select 1 from a{}", " cross join a".repeat(64_000))),
        ("natural joins", format!("select 1 from a{}", " natural join a".repeat(60_000))),
        ("joins in an update", format!("update t set a = 1 from a{}", " cross join a".repeat(64_000))),
        ("joins in parentheses", format!("select 1 from {}a{}", "(".repeat(4_000), " cross join a)".repeat(4_000))),
        ("joins in a view", format!("create view v as select 1 from a{}", " cross join a".repeat(64_000))),
        ("joins of 2,500", format!("select 1 from a{} for update", " cross join a".repeat(2_500))),
        ("unions", format!("select 1{}", " union select 1".repeat(60_000))),
        ("intersections that lock", format!("(select 1 for update){}", " intersect select 1".repeat(50_000))),
        ("attributes", format!("select (a){} for update", ".a".repeat(100_000))),
        ("parts of a name", format!("drop table a{}", ".a".repeat(100_000))),
        ("casts", format!("select 1{} for update", "::int".repeat(100_000))),
        ("subscripts", format!("select a{} for update", "[1]".repeat(100_000))),
        ("slices", format!("select a{} for update", "[1:2]".repeat(80_000))),
        ("collations", format!("select a{} for update", " collate c".repeat(50_000))),
        ("times", format!("select a{} for update", " at time zone 'x'".repeat(30_000))),
        ("null tests", format!("select a{} for update", " is null".repeat(60_000))),
        ("minuses", format!("select {}1 for update", "- ".repeat(100_000))),
        ("sums", format!("select 1{} for update", " + 1".repeat(100_000))),
        ("operators", format!("select 1{} for update", " operator(pg_catalog.+) 1".repeat(20_000))),
        ("and", format!("delete from t where k = 1{}", " and k = 1".repeat(50_000))),
        ("or", format!("delete from t where k = 1{}", " or k = 2".repeat(50_000))),
        ("and or", format!("delete from t where k = 1{}", " and k = 1 or k = 2".repeat(25_000))),
        // Nesting.
        (
            "case",
            nest(8_000, "1", |_, inner| format!("CASE WHEN {inner} THEN 1 END")).replacen("CASE", "select CASE", 1),
        ),
        ("arrays", format!("select {}1{} for update", "array[".repeat(40_000), "]".repeat(40_000))),
        ("rows", format!("select {}1{} for update", "row(".repeat(40_000), ")".repeat(40_000))),
        ("objects", format!("select {}1{} for update", "json_object('a':".repeat(5_000), ")".repeat(5_000))),
        ("grouping sets", format!("select 1 group by {}a{}", "grouping sets (".repeat(4_000), ")".repeat(4_000))),
        ("subqueries", format!("select {}1{} for update", "(select ".repeat(20_000), ")".repeat(20_000))),
        ("explain", format!("{}select 1", "explain ".repeat(50_000))),
        ("comments", format!("select 1 {}{}", "/*".repeat(15_000), "*/".repeat(15_000))),
        ("schemas", format!("create schema s{}", " create table t (a int) create view v as select 1".repeat(8_000))),
        // Constructs that the parse tree repeats.
        ("many columns", format!("update t set {}", assign_many(1_000))),
        ("few columns, often", format!("update t set {}", list(&assign_many(40), 100))),
        (
            "columns of an upsert",
            format!("insert into t values (1) on conflict (k) do update set {}", assign_many(1_000)),
        ),
        (
            "columns of a merge",
            format!("merge into t using u on a = b when matched then update set {}", assign_many(1_000)),
        ),
        (
            "columns in columns",
            nest(20, "select 1, 2", |level, inner| {
                format!("with w{level} as (update t set (a, b) = ({inner}) returning 1) select 1, 2")
            }),
        ),
        (
            "columns in columns, spelt otherwise",
            nest(20, "select 1, 2", |_, inner| {
                format!(
                    "with w as (insert into t values (1) on conflict (k) do update SeT/**/( \"a\" ,b[1])=({inner})) select 1, 2"
                )
            }),
        ),
        (
            "columns in columns, behind a number that releases read differently",
            nest(24, "select 1, 2", |_, inner| {
                format!("with w as (update t set (a, b) = ({inner}) returning 1) select 1, 2")
            })
            .replacen("with", "select 0x1; with", 1),
        ),
        // Statements that the server executes repeatedly.
        ("executions", executed(&format!("select {calls}"), 8_000)),
        (
            "executions of writes",
            executed(&format!("with {} select 1", numbered(500, |n| format!("w{n} as (delete from t{n})"))), 8_000),
        ),
        ("executions of definitions", executed("select 1", 30_000)),
        // Long lists.
        ("statements", "select 1;".repeat(50_000)),
        ("semicolons", "select 1;;;;".repeat(40_000)),
        ("ends", "end;".repeat(100_000)),
        ("common tables", format!("with {} select 1", numbered(15_000, |n| format!("w{n} as (select 1 from w{n})")))),
        ("writes", format!("with {} select 1", numbered(10_000, |n| format!("w{n} as (delete from t{n})")))),
        (
            "locks",
            format!(
                "select 1 from {} for update of {}",
                numbered(15_000, |n| format!("t{n}")),
                numbered(15_000, |n| format!("t{n}"))
            ),
        ),
        ("assignments", format!("update t set {} where k = 1", numbered(20_000, |n| format!("a{n} = {n}")))),
        ("keys", format!("insert into t (k) values {}", numbered(60_000, |n| format!("({n})")))),
        ("columns", format!("create table t ({})", numbered(20_000, |n| format!("c{n} int references t{n}")))),
        ("partitions", format!("create table p partition of t for values in ({})", list("1", 100_000))),
        ("dropped", format!("drop table {}", numbered(40_000, |n| format!("t{n}")))),
        ("intervals", format!("select {} for update", list("interval '1' day to second(3)", 12_000))),
        ("parameters", format!("update t set a = 1 where k in ({})", numbered(50_000, |n| format!("${}", n + 1)))),
        ("functions", format!("select {}", numbered(60_000, |n| format!("f{n}()")))),
        (
            "views",
            numbered(8_000, |n| format!("1; create view v{n} as select 1 from t{n}"))
                .replace(", 1;", ";")
                .replacen("1; ", "", 1),
        ),
    ]
}
