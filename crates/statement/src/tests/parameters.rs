use super::*;

#[test]
fn set_reports_the_value_that_the_server_stores() {
    check(
        r#"
        SET lease.fence = 47; SET lease.fence TO 47; SET SESSION Lease.Fence TO 47; SET "lease.fence" = 47;
        SET "Lease"."FENCE" = 47; SET U&"lease\002Efence" = 47; set lease . fence = 47 => set(47)
        SET LOCAL lease.fence = 47 => set-local(47)
        SET lease.fence = a, b; SET lease.fence FROM CURRENT => unknown
        -- The parser accepts this, but the server rejects it.
        SET lease.fence = $1 => unknown
        SET lease.fence = null => Syntax
        "#,
    );
    let set = |value: &str| show_result(&analyze(format!("SET lease.fence = {value}").as_bytes(), Lexing::USUAL));
    let (most, least) = (i64::MAX.to_string(), i64::MIN.to_string());
    for as_it_stands in ["-47", "1.50", "-1.50", "1e3", ".5", "5.", "true", &most, &least] {
        assert_eq!(set(as_it_stands), format!("set({as_it_stands})"));
    }
    check_outline(
        r#"
        '47'; 047; +47 => set(47)
        - 5 => set(-5)
        ON => set(on)
        'scheduler=47, shard/3=55' => set(scheduler=47, shard/3=55)
        '' => set()
        'it''s' => set(it's)
        E'a\x41' => set(aA)
        U&'\0041' => set(A)
        $$x$$ => set(x)
        MixedCase => set(mixedcase)
        "MixedCase" => set(MixedCase)
        "#,
        set,
    );
    check_each(&[("/* a */ SET -- b\n lease.fence = 47", "set(47)")]);
}

#[test]
fn reset_restores_the_startup_value() {
    check(
        "
        RESET lease.fence; RESET LEASE.FENCE; SET lease.fence TO DEFAULT; SET SESSION lease.fence = DEFAULT => reset
        SET LOCAL lease.fence TO DEFAULT => reset-local
        RESET ALL => reset-all
        DISCARD ALL => reset-all deallocate-all catalog
        ",
    );
}

#[test]
fn other_settings_do_not_affect_the_token() {
    check(
        "
        SET work_mem = '1MB'; SET lease.other = 5; SET lease.fence.x = 5; SET fence = 5;
        RESET work_mem; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
        SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; SET TRANSACTION SNAPSHOT 'x'; SET TIME ZONE 'UTC';
        SET TIME ZONE INTERVAL '1' HOUR TO MINUTE; SET NAMES 'utf8'; SET ROLE r; RESET ROLE;
        SET SESSION AUTHORIZATION r; RESET SESSION AUTHORIZATION; SET XML OPTION DOCUMENT;
        ALTER ROLE r SET lease.fence = 5; ALTER SYSTEM SET lease.fence = 5; DISCARD SEQUENCES => -
        ",
    );
}

#[test]
fn changes_of_the_search_path_are_reported() {
    check(
        r#"
        SET search_path = a, "B c"; SET search_path TO 'a', 'B c' => path("a", "B c")
        SET LOCAL SEARCH_PATH = '$user' => path-local("$user")
        SET SCHEMA 'say "hi"' => path("say ""hi""")
        SET search_path = DEFAULT; RESET search_path; SET search_path FROM CURRENT; SET search_path = a, 1 => path
        PREPARE p AS SELECT set_config('search_path', $1, true) => prepare(p: calls:set_config path)
        WITH s AS (SELECT set_config('Search_Path', 'a', false)) INSERT INTO t TABLE s => insert:t calls:set_config path
        "#,
    );
}

#[test]
fn only_functions_that_cannot_change_the_token_are_harmless() {
    check(
        r#"
        SELECT set_config('lease.fence', '5', false) FROM t => calls:set_config unknown
        SELECT f() => calls:f unknown
        SELECT count(*), max(a), now(), lower(b) FROM t => calls:count calls:max calls:now calls:lower
        SELECT pg_catalog.lower('A'); SELECT d.pg_catalog.lower('A') => calls:pg_catalog.lower
        SELECT public.lower('A') => calls:public.lower unknown
        SELECT "Lower"('A') => calls:Lower unknown
        SELECT current_setting('lease.fence') => calls:current_setting
        SELECT nextval('s'), pg_advisory_lock(1), pg_backend_pid()
            => calls:nextval calls:pg_advisory_lock calls:pg_backend_pid
        SELECT extract(year FROM a), a AT TIME ZONE 'UTC' FROM t => calls:pg_catalog.extract calls:pg_catalog.timezone
        SELECT trim(a), position('a' IN b), overlay(a PLACING b FROM 1) FROM t
            => calls:pg_catalog.btrim calls:pg_catalog.position calls:pg_catalog.overlay
        SELECT a LIKE b ESCAPE 'c', a SIMILAR TO b, (a, b) OVERLAPS (c, d), a IS NORMALIZED FROM t
            => calls:pg_catalog.like_escape calls:pg_catalog.similar_to_escape calls:pg_catalog.overlaps calls:pg_catalog.is_normalized
        SELECT query_to_xml('SELECT f()', true, true, '') => calls:query_to_xml unknown
        SELECT dblink_exec('x', 'y') => calls:dblink_exec unknown
        SELECT lo_unlink(1) => calls:lo_unlink unknown
        "#,
    );
}

#[test]
fn set_config_with_constants_counts_as_set() {
    check(
        r#"
        SELECT set_config('lease.fence', '5', false) => calls:set_config set(5)
        SELECT set_config('lease.fence', '5', true) AS a => calls:set_config set-local(5)
        SELECT Set_Config(E'lease\x2efence', '', false) => calls:set_config set()
        SELECT U&"set\005fconfig"('lease.fence', '5', false) => calls:set_config unknown
        PREPARE p AS SELECT set_config('lease.fence', '5', false) => prepare(p: calls:set_config set(5))
        "#,
    );
    check_each(&[
        ("SELECT pg_catalog.set_config('Lease.Fence', 'x', false);", "calls:pg_catalog.set_config set(x)"),
        ("SELECT set_config('lease.fence', '5', false); SELECT 1", "calls:set_config set(5) | -"),
    ]);
}

#[test]
fn set_config_is_unknown_unless_it_runs_exactly_once() {
    let outline = "
        SELECT CALL WHERE false; SELECT CALL LIMIT 0; SELECT CALL OFFSET 1; SELECT CALL FROM t; SELECT CALL GROUP BY 1;
        SELECT CALL HAVING false; SELECT CALL ORDER BY 1; SELECT DISTINCT CALL; SELECT CALL, 1; SELECT CALL, CALL;
        SELECT CALL UNION SELECT '1'; SELECT CALL::int; VALUES (CALL); COPY (SELECT CALL) TO STDOUT;
        DECLARE c CURSOR FOR SELECT CALL; EXPLAIN ANALYZE SELECT CALL; EXPLAIN SELECT CALL;
        SELECT set_config('lease.fence', NULL, false); SELECT set_config('lease.fence', '5', NULL);
        SELECT set_config('lease.fence', $1, false); SELECT set_config('lease.fence', 5::text, false);
        SELECT set_config('lease.' || 'fence', '5', false);
        WITH a AS (SELECT 1) SELECT CALL => calls:set_config unknown
        SELECT public.set_config('lease.fence', '5', false) => calls:public.set_config unknown
        CREATE TABLE n AS SELECT CALL WITH NO DATA; SELECT CALL INTO n => calls:set_config unknown catalog
        INSERT INTO t SELECT CALL => insert:t calls:set_config unknown
        ";
    check(&outline.replace("CALL", "set_config('lease.fence', '5', false)"));
    let by_name = "SELECT set_config(setting_name => 'lease.fence', new_value => '5', is_local => false)";
    check_each(&[(by_name, "calls:set_config unknown")]);
}

#[test]
fn set_config_of_another_parameter_does_not_affect_the_token() {
    check(
        "
        SELECT set_config('TimeZone', 'UTC', false);
        SELECT 1 FROM set_config('TimeZone', 'UTC', false) => calls:set_config
        SELECT pg_catalog.set_config('search_path', $1, true) => calls:pg_catalog.set_config path
        SELECT set_config(a, 'UTC', false) FROM t; SELECT set_config('Standard_Conforming_Strings', 'off', false);
        SELECT set_config('client_encoding', 'SJIS', false) => calls:set_config unknown
        SELECT set_config('TimeZone', f(), false) => calls:set_config calls:f unknown
        SELECT public.set_config('TimeZone', 'UTC', false) => calls:public.set_config unknown
        ",
    );
}

#[test]
fn calls_are_found_in_every_position() {
    check(
        r#"
        SELECT a FROM t WHERE f(a); SELECT a FROM t GROUP BY f(a); SELECT a FROM t GROUP BY ROLLUP (f(a));
        SELECT a FROM t GROUP BY a HAVING f(a); SELECT a FROM t ORDER BY f(a); SELECT a FROM t LIMIT f();
        SELECT a FROM t OFFSET f(); SELECT DISTINCT ON (f(a)) a FROM t; SELECT * FROM f();
        SELECT * FROM f() WITH ORDINALITY; SELECT * FROM f() AS x (a int, b text); SELECT * FROM LATERAL f(1) x;
        SELECT * FROM t JOIN u ON f(t.a); SELECT * FROM t TABLESAMPLE system (f());
        SELECT * FROM t TABLESAMPLE system (1) REPEATABLE (f()); VALUES (f()); SELECT (SELECT f());
        SELECT 1 FROM t WINDOW w AS (ORDER BY f()); WITH x AS (SELECT f()) SELECT 1; SELECT 1 UNION SELECT f();
        DECLARE c CURSOR FOR SELECT f(); COPY (SELECT f()) TO STDOUT => calls:f unknown
        SELECT * FROM ROWS FROM (f() AS (a int), g()); SELECT ARRAY(SELECT f()), ARRAY[g()] => calls:f calls:g unknown
        SELECT CASE f() WHEN g() THEN h() ELSE i() END;
        SELECT 1 IN (f()), 1 = ANY (g()), h() IN (SELECT 1), (i(), 2) = (1, 2);
        SELECT JSON_OBJECT(f(): g()), JSON_ARRAY(h()), JSON_ARRAY(SELECT i());
        SELECT JSON(f()), JSON_SCALAR(g()), JSON_SERIALIZE(h()), i() IS JSON;
        SELECT JSON_VALUE(f(), '$' PASSING g() AS x DEFAULT h() ON EMPTY DEFAULT i() ON ERROR)
            => calls:f calls:g calls:h calls:i unknown
        SELECT COALESCE(f(), 1), GREATEST(g()), NULLIF(h(), 1); SELECT f()::int, CAST(g() AS int), h() COLLATE "C";
        SELECT f() IS DISTINCT FROM g(), 1 BETWEEN h() AND 2;
        SELECT XMLFOREST(f() AS a), XMLCONCAT(g()), XMLSERIALIZE(CONTENT h() AS text);
        SELECT * FROM JSON_TABLE(f(), '$' PASSING g() AS x COLUMNS (a int PATH '$' DEFAULT h() ON EMPTY))
            => calls:f calls:g calls:h unknown
        SELECT ROW(f()), (g()).a, (h())[1], a[i()], a[1:j()] FROM t;
        SELECT f() IS NULL, g() IS TRUE, NOT h(), i() AND j() => calls:f calls:g calls:h calls:i calls:j unknown
        SELECT lower(f()), g(x => h()) => calls:lower calls:f calls:g calls:h unknown
        SELECT count(f() ORDER BY g()) FILTER (WHERE h()) => calls:count calls:f calls:g calls:h unknown
        SELECT mode() WITHIN GROUP (ORDER BY f()) => calls:mode calls:f unknown
        SELECT count(*) OVER (PARTITION BY f() ORDER BY g() ROWS BETWEEN h() PRECEDING AND i() FOLLOWING)
            => calls:count calls:f calls:g calls:h calls:i unknown
        SELECT * FROM XMLTABLE(XMLNAMESPACES(i() AS a), f() PASSING g() COLUMNS b int PATH h() DEFAULT j())
            => calls:g calls:f calls:i calls:h calls:j unknown
        SELECT JSON_OBJECTAGG(f(): g() ) FILTER (WHERE h()), JSON_ARRAYAGG(i() ORDER BY j())
            => calls:h calls:f calls:g calls:j calls:i unknown
        INSERT INTO t VALUES (f()); INSERT INTO t (a[f()]) VALUES (1); INSERT INTO t SELECT f();
        INSERT INTO t VALUES (1) RETURNING f() => insert:t calls:f unknown
        INSERT INTO t VALUES (1) ON CONFLICT (f(a)) WHERE g(a) DO UPDATE SET b = h() WHERE i()
            => insert:t update:t calls:f calls:g calls:h calls:i unknown
        UPDATE t SET a = f(), b[g()] = 1 FROM h() WHERE i() RETURNING j()
            => update:t calls:f calls:g calls:h calls:i calls:j unknown
        UPDATE t SET (a, b) = (f(), 2), (c, d) = (SELECT g(), 1) => update:t calls:f calls:g unknown
        DELETE FROM t USING f() WHERE g() RETURNING h() => delete:t calls:f calls:g calls:h unknown
        MERGE INTO t USING u ON f() WHEN MATCHED AND g() THEN UPDATE SET a = h() WHEN NOT MATCHED THEN INSERT VALUES (i())
            => update:t insert:t calls:f calls:g calls:h calls:i unknown
        SELECT f() INTO n; CREATE TABLE n AS SELECT f();
        CREATE MATERIALIZED VIEW n AS SELECT f() => calls:f unknown catalog
        FETCH 1 FROM c; MOVE ALL IN c => unknown fetch(c)
        CLOSE c; SELECT 1 OPERATOR(pg_catalog.+) 2 => -
        SELECT 1 OPERATOR(s.+) 2; SELECT 1 OPERATOR(s.=) ANY (SELECT 2);
        SELECT a FROM t ORDER BY a USING OPERATOR(s.<) => unknown
        "#,
    );
}

#[test]
fn transactions() {
    check(
        r#"
        BEGIN; BEGIN WORK ISOLATION LEVEL SERIALIZABLE, READ ONLY; START TRANSACTION READ WRITE => begin
        COMMIT; END TRANSACTION AND CHAIN => commit
        ROLLBACK; ABORT AND NO CHAIN => rollback
        SAVEPOINT A => savepoint(a)
        SAVEPOINT "a b" => savepoint(a b)
        RELEASE a; RELEASE SAVEPOINT a => release(a)
        ROLLBACK TO a; ROLLBACK WORK TO SAVEPOINT a => rollbackto(a)
        PREPARE TRANSACTION 'x' => preparetransaction
        COMMIT PREPARED 'x' => catalog
        ROLLBACK PREPARED 'x' => -
        "#,
    );
}
