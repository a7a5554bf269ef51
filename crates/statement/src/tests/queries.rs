use super::*;

#[test]
fn reads_report_no_write() {
    check(
        r#"
        SELECT 1; SELECT * FROM t; SELECT * FROM t WHERE a = 1 AND b < '2' OR c IS NULL;
        SELECT a || b, a + 1, -a, a[1], a[1:2], (r).f, ARRAY[1, 2], ROW(1, 2), a::int, CAST(a AS text) FROM t;
        SELECT CASE WHEN a THEN 1 ELSE 2 END, COALESCE(a, b), NULLIF(a, b), GREATEST(a, b) FROM t;
        SELECT a FROM t WHERE b IN (1, 2) AND c BETWEEN 1 AND 2 AND d LIKE 'x' AND e = ANY($1);
        SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a);
        SELECT * FROM t JOIN u USING (a) LEFT JOIN LATERAL (SELECT 1) x ON true;
        SELECT * FROM t TABLESAMPLE system (10) REPEATABLE (1);
        SELECT DISTINCT ON (a) a FROM t GROUP BY GROUPING SETS ((a), ()) HAVING a > 1 ORDER BY a DESC LIMIT 1 OFFSET 2;
        SELECT 1 UNION ALL SELECT 2 EXCEPT SELECT 3 INTERSECT SELECT 4; VALUES (1, 2), (3, 4); TABLE t; (SELECT 1);
        WITH x AS (SELECT 1) SELECT * FROM x;
        WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT * FROM x;
        WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 2) CYCLE a SET c TO true DEFAULT false USING p SELECT 1;
        SELECT current_user, CURRENT_TIMESTAMP, session_user, current_date;
        SELECT XMLELEMENT(NAME a, XMLATTRIBUTES(b AS c)), XMLSERIALIZE(CONTENT x AS text) FROM t;
        SELECT JSON_OBJECT('a': 1), JSON_ARRAY(1, 2), JSON_ARRAYAGG(a), JSON_OBJECTAGG(a: b), a IS JSON FROM t;
        SELECT JSON_ARRAY(SELECT 1), JSON('{}'), JSON_SCALAR(1), JSON_SERIALIZE('{}');
        SELECT JSON_VALUE(a, '$.b' PASSING 1 AS x DEFAULT 2 ON EMPTY), JSON_EXISTS(a, '$.b'), JSON_QUERY(a, '$') FROM t;
        SELECT * FROM JSON_TABLE('[]', '$[*]' COLUMNS (a int PATH '$.a', NESTED PATH '$.b' COLUMNS (c int))) x;
        SELECT * FROM XMLTABLE('/a' PASSING x COLUMNS b int PATH 'b' DEFAULT 1, n FOR ORDINALITY); SHOW lease.fence;
        SELECT * FROM only_words."for"; COPY t TO STDOUT; COPY t (a, b) TO STDOUT WITH (FORMAT csv);
        COPY (SELECT * FROM t) TO STDOUT; COPY t TO PROGRAM 'cat' => -
        SELECT sum(a) OVER (PARTITION BY b ORDER BY c ROWS 1 PRECEDING) FROM t WINDOW w AS (ORDER BY a) => calls:sum
        "#,
    );
}

#[test]
fn plain_writes_report_their_target() {
    check(
        r#"
        INSERT INTO t VALUES (1); INSERT INTO t AS x SELECT * FROM u; INSERT INTO t SELECT * FROM t;
        INSERT INTO t VALUES (1) RETURNING a; INSERT INTO t VALUES (1) RETURNING t.a, "B", *;
        INSERT INTO t OVERRIDING SYSTEM VALUE TABLE u; INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING => insert:t
        INSERT INTO d.s.t DEFAULT VALUES => insert:s.t
        INSERT INTO t VALUES (1) RETURNING f(), a; INSERT INTO t VALUES (1) RETURNING f();
        INSERT INTO t VALUES (1) RETURNING (SELECT f()), a => insert:t calls:f unknown
        INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1 WHERE t.c;
        INSERT INTO t VALUES (1) ON CONFLICT ON CONSTRAINT k DO UPDATE SET b = excluded.b => insert:t update:t
        UPDATE t SET a = 1; UPDATE ONLY t SET a = 1; UPDATE t * SET a = 1;
        UPDATE t AS x SET a = u.a FROM u JOIN v USING (b) WHERE x.c = u.c;
        UPDATE t SET (a, b) = (SELECT 1, 2), c[1] = 3, d.e = 4;
        UPDATE t SET a = 1 WHERE CURRENT OF c RETURNING old.a, new.a => update:t
        UPDATE s.t SET a = a + 1 WHERE b = $1 => update:s.t
        DELETE FROM t; DELETE FROM t WHERE a IN (SELECT a FROM u) RETURNING * => delete:t
        DELETE FROM ONLY s.t USING u WHERE t.a = u.a => delete:s.t
        "#,
    );
    check_each(&[
        ("INSERT INTO s.t (a, b) VALUES (1, DEFAULT), (2, 3);", "insert:s.t"),
        ("delete from t where x = 'for update; with returning'", "delete:t"),
    ]);
}

#[test]
fn names_are_folded_as_postgres_does() {
    let long = "a".repeat(70);
    let cut = "a".repeat(63);
    check(
        r#"
        UPDATE Public.Ticks SET a = 1 => update:public.ticks
        UPDATE "Public"."Odd Name" SET a = 1 => update:Public.Odd Name
        UPDATE "a.b"."c""d" SET a = 1 => update:a.b.c"d
        UPDATE U&"t\0069cks" SET a = 1; UPDATE U&"t!0069cks" UESCAPE '!' SET a = 1 => update:ticks
        UPDATE "für" SET a = 1; UPDATE Für SET a = 1 => update:für
        UPDATE ÄTE SET a = 1 => update:Äte
        SELECT "F"(), f."G"(), d.f.h() => calls:F calls:f.G calls:f.h unknown
        "#,
    );
    check_each(&[
        (&format!("UPDATE {long} SET a = 1"), &format!("update:{cut}")),
        (&format!("UPDATE \"{long}\".\"{long}\" SET a = 1"), &format!("update:{cut}.{cut}")),
        // 63 bytes would end within the last character.
        (&format!("UPDATE {}ü SET a = 1", "a".repeat(62)), &format!("update:{}", "a".repeat(62))),
    ]);
}

/// The server may keep characters that the parser truncates, because they are shorter in its encoding.
#[test]
fn names_that_another_encoding_truncates_elsewhere_are_unknown() {
    let long = "a".repeat(62);
    for server in [ServerEncoding::SingleByte, ServerEncoding::Other] {
        for name in [format!("\"{long}é\""), format!("U&\"{long}\\00e9\""), format!("U&\"{long}!00e9\" UESCAPE '!'")] {
            let lexing = Lexing { server, ..Lexing::USUAL };
            for text in [format!("UPDATE {name} SET a = 1"), format!("PREPARE {name} AS SELECT 1")] {
                assert_eq!(analyze(text.as_bytes(), lexing), Err(Unreadable::Encoding), "{text}");
                assert!(analyze(text.as_bytes(), Lexing::USUAL).is_ok(), "{text}");
            }
            let text = format!("EXECUTE {name}");
            assert_eq!(analyze(text.as_bytes(), lexing), Err(Unreadable::Encoding), "{text}");
        }
    }
}

#[test]
fn merge_has_the_writes_of_its_actions() {
    check(
        "
        MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE;
        MERGE INTO t USING u ON true WHEN NOT MATCHED BY SOURCE THEN DELETE;
        MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE RETURNING merge_action(), t.* => delete:t
        MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET b = 1 => update:t
        MERGE INTO s.t USING u ON t.a = u.a WHEN NOT MATCHED THEN INSERT VALUES (1) => insert:s.t
        MERGE INTO t USING u ON t.a = u.a WHEN NOT MATCHED THEN INSERT DEFAULT VALUES => insert:t
        MERGE INTO t USING u ON true WHEN MATCHED THEN DO NOTHING => -
        MERGE INTO t USING (SELECT 1) u ON true WHEN MATCHED AND t.a > 1 THEN UPDATE SET b = 1 WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (2) WHEN NOT MATCHED THEN DO NOTHING
            => update:t delete:t insert:t
        MERGE INTO t USING f() u ON true WHEN MATCHED THEN DELETE => delete:t calls:f unknown
        WITH d AS (DELETE FROM v RETURNING *) MERGE INTO t USING d ON true WHEN MATCHED THEN DELETE => delete:v delete:t
        ",
    );
}

#[test]
fn writes_in_with_queries_are_found() {
    check(
        "
        WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d; WITH t AS (SELECT 1) DELETE FROM t;
        WITH a AS (MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE RETURNING 1) SELECT 1;
        SELECT * FROM (WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d) x;
        SELECT (WITH d AS (DELETE FROM t RETURNING 1) SELECT 1);
        COPY (WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d) TO STDOUT;
        EXPLAIN ANALYZE WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d => delete:t
        WITH d AS (DELETE FROM t RETURNING *) INSERT INTO u SELECT * FROM d => delete:t insert:u
        WITH t AS (SELECT 1) INSERT INTO t SELECT * FROM t => insert:t
        WITH t AS (SELECT 1) UPDATE t SET a = 1 => update:t
        WITH t AS (INSERT INTO t VALUES (1)) INSERT INTO t VALUES (2) => insert:t insert:t
        WITH a AS (UPDATE t SET x = 1 RETURNING *), b AS (DELETE FROM u) SELECT 1 => update:t delete:u
        CREATE TABLE n AS WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d;
        WITH d AS (DELETE FROM t RETURNING *) SELECT * INTO n FROM d => delete:t catalog
        PREPARE p AS WITH d AS (DELETE FROM t RETURNING *) SELECT 1 => prepare(p: delete:t)
        ",
    );
}

#[test]
fn copy_from_inserts() {
    check(
        "
        COPY t FROM STDIN; COPY t FROM STDIN WHERE a > 1; COPY t FROM '/tmp/x'; COPY t FROM PROGRAM 'cat x';
        COPY BINARY t FROM STDIN; copy t from stdin csv;
        COPY (INSERT INTO t VALUES (1) RETURNING *) TO STDOUT => insert:t
        COPY s.t (a, b) FROM STDIN WITH (FORMAT csv, HEADER) => insert:s.t
        COPY t FROM STDIN WHERE f(a) => insert:t calls:f unknown
        COPY (UPDATE t SET a = 1 RETURNING *) TO STDOUT => update:t
        COPY (DELETE FROM t RETURNING f(a)) TO STDOUT => delete:t calls:f unknown
        ",
    );
}

#[test]
fn truncate_and_lock_report_every_table() {
    check(
        "
        TRUNCATE t => truncate:t
        TRUNCATE TABLE ONLY t, s.u *, v RESTART IDENTITY => truncate:t truncate:s.u truncate:v
        TRUNCATE t CASCADE => truncate:t truncatecascade:t
        LOCK t => lock:t
        LOCK TABLE ONLY t, s.u IN ROW SHARE MODE NOWAIT => lock:t lock:s.u
        LOCK TABLE fencegate_state.epoch IN ROW SHARE MODE => lock:fencegate_state.epoch opaque catalog
        ",
    );
}

/// Every SELECT takes a lock in this mode.
#[test]
fn access_share_locks_are_not_reported() {
    check(
        "
        LOCK TABLE ONLY t, s.u IN ACCESS SHARE MODE NOWAIT; LOCK TABLE t, fencegate_state.epoch IN ACCESS SHARE MODE => -
        ",
    );
}

#[test]
fn locking_reads_lock_the_named_relations() {
    check(
        "
        SELECT * FROM t FOR UPDATE; SELECT * FROM t FOR NO KEY UPDATE NOWAIT; SELECT * FROM t FOR KEY SHARE;
        SELECT * FROM ONLY t x FOR UPDATE; SELECT * FROM t x, u FOR UPDATE OF x;
        SELECT * FROM t TABLESAMPLE system (1) FOR UPDATE; SELECT * FROM (SELECT * FROM t) x FOR UPDATE;
        SELECT * FROM (SELECT * FROM t FOR UPDATE) x; SELECT * FROM u WHERE a IN (SELECT a FROM t FOR UPDATE);
        WITH x AS (SELECT * FROM t FOR UPDATE) SELECT * FROM x; WITH t AS (SELECT * FROM t FOR UPDATE) SELECT 1;
        SELECT (WITH t AS (SELECT 1) SELECT 1 FROM t), t.* FROM t FOR UPDATE;
        DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE => lock:t
        SELECT * FROM s.t FOR SHARE SKIP LOCKED; WITH t AS (SELECT 1) SELECT * FROM s.t FOR UPDATE => lock:s.t
        SELECT * FROM t, u JOIN v ON true FOR UPDATE => lock:t lock:u lock:v
        SELECT * FROM t x, u FOR UPDATE OF u; SELECT * FROM t x JOIN u y ON true FOR UPDATE OF y;
        SELECT * FROM u WHERE a IN (SELECT a FROM t) FOR UPDATE => lock:u
        SELECT * FROM t x, u FOR UPDATE OF x FOR SHARE OF u; SELECT * FROM t x, u FOR UPDATE OF t;
        SELECT * FROM (SELECT * FROM t, u) x, v FOR UPDATE OF x => lock:t lock:u
        UPDATE u SET a = 1 WHERE b = (SELECT b FROM t LIMIT 1 FOR UPDATE SKIP LOCKED) => update:u lock:t
        WITH t AS (SELECT 1) SELECT * FROM t FOR UPDATE; WITH RECURSIVE t AS (SELECT * FROM t FOR UPDATE) SELECT 1;
        WITH t AS (SELECT 1) SELECT * FROM (SELECT * FROM t FOR UPDATE) x;
        DECLARE c CURSOR WITH HOLD FOR SELECT * FROM t; EXPLAIN SELECT * FROM t FOR UPDATE => -
        WITH a AS (SELECT * FROM b FOR UPDATE), b AS (SELECT * FROM a FOR UPDATE) SELECT 1 => lock:b
        SELECT substring(a FOR 2) FROM t => calls:pg_catalog.substring
        INSERT INTO u SELECT * FROM t FOR UPDATE => insert:u lock:t
        CREATE TABLE n AS SELECT * FROM t FOR UPDATE => lock:t catalog
        ",
    );
}

#[test]
fn explain_runs_the_statement_only_with_analyze() {
    check(
        "
        EXPLAIN DELETE FROM t; EXPLAIN VERBOSE DELETE FROM t; EXPLAIN (ANALYZE false) DELETE FROM t;
        EXPLAIN (ANALYZE OFF) DELETE FROM t; EXPLAIN (ANALYZE 'FALSE') DELETE FROM t;
        EXPLAIN (ANALYZE 0) DELETE FROM t; EXPLAIN (ANALYZE, ANALYZE false) DELETE FROM t;
        EXPLAIN (COSTS off, FORMAT json) INSERT INTO t VALUES (1); EXPLAIN CREATE TABLE n AS SELECT 1 => -
        EXPLAIN ANALYZE DELETE FROM t; EXPLAIN ANALYZE VERBOSE DELETE FROM t; EXPLAIN ANALYSE DELETE FROM t;
        EXPLAIN (ANALYZE) DELETE FROM t; EXPLAIN (ANALYSE) DELETE FROM t;
        EXPLAIN (ANALYZE true, BUFFERS) DELETE FROM t; EXPLAIN (ANALYZE 'on') DELETE FROM t;
        EXPLAIN (ANALYZE 1) DELETE FROM t; EXPLAIN (ANALYZE maybe) DELETE FROM t;
        EXPLAIN (ANALYZE false, COSTS, ANALYZE) DELETE FROM t => delete:t
        EXPLAIN SELECT f(); EXPLAIN ANALYZE SELECT f(); EXPLAIN EXECUTE p(f()) => calls:f unknown
        EXPLAIN EXECUTE p => unknown
        EXPLAIN ANALYZE EXECUTE p(1) => unknown execute(p)
        EXPLAIN ANALYZE CREATE TABLE n AS SELECT 1 => catalog
        EXPLAIN ANALYZE CREATE TABLE n AS EXECUTE p => unknown execute(p) catalog
        EXPLAIN ANALYZE DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE => lock:t
        ",
    );
}

#[test]
fn prepared_statements_write_when_they_run() {
    check(
        r#"
        PREPARE p AS SELECT 1 => prepare(p: -)
        PREPARE "P" (int) AS UPDATE t SET a = $1 => prepare(P: update:t)
        PREPARE p AS SELECT f() => prepare(p: calls:f unknown)
        EXECUTE p => unknown execute(p)
        EXECUTE p(1, f()) => calls:f unknown execute(p)
        CREATE TABLE n AS EXECUTE p(1); CREATE TEMP TABLE n AS EXECUTE p => unknown execute(p) catalog
        DEALLOCATE p; DEALLOCATE PREPARE p => deallocate(p)
        DEALLOCATE ALL => deallocate-all
        DISCARD PLANS => -
        DISCARD ALL => reset-all deallocate-all catalog
        "#,
    );
}

#[test]
fn execute_has_the_effects_of_the_prepared_statement() {
    let read = |text: &str| analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements.remove(0);
    let executing = |execute: &str, prepared: &str| show(&read(execute).executing(Some(&read(prepared))));
    assert_eq!(executing("EXECUTE p(1)", "UPDATE t SET a = 1"), "update:t execute(p)");
    assert_eq!(executing("EXECUTE p(lower('A'))", "SELECT 1"), "calls:lower execute(p)");
    assert_eq!(executing("EXECUTE p(f())", "SELECT 1"), "calls:f unknown execute(p)");
    assert_eq!(executing("EXECUTE p", "SELECT f()"), "calls:f unknown execute(p)");
    assert_eq!(executing("EXECUTE p", "SET lease.fence = 5"), "set(5) execute(p)");
    assert_eq!(executing("EXECUTE p", "DO 'x'"), "unknown execute(p) opaque catalog");
    assert_eq!(executing("EXECUTE p", "COMMIT"), "unknown execute(p) opaque catalog");
    let set = "SELECT set_config('lease.fence', '5', false)";
    assert_eq!(executing("EXECUTE p", set), "calls:set_config set(5) execute(p)");
    assert_eq!(executing("FETCH p", set), "calls:set_config unknown fetch(p)");
    assert_eq!(
        executing("CREATE TABLE n AS EXECUTE p WITH NO DATA", set),
        "calls:set_config unknown execute(p) catalog"
    );
    assert_eq!(executing("EXECUTE p", "EXECUTE q"), "unknown execute(p) opaque catalog");
    assert_eq!(executing("CREATE TABLE n AS EXECUTE p", "SELECT 1"), "execute(p) catalog");
    assert_eq!(executing("EXPLAIN ANALYZE EXECUTE p", "DELETE FROM t"), "delete:t execute(p)");
    assert_eq!(show(&read("EXECUTE p").executing(None)), "unknown execute(p) opaque catalog");
}
