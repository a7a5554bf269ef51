//! Valid input, which tests damage.

use crate::support::message::{self, bind_text, copy_data, execute, parse, query, sync};
use fencegate_testing::dice::Dice;

pub fn borrow(corpus: &[Vec<u8>]) -> Vec<&[u8]> {
    corpus.iter().map(Vec::as_slice).collect()
}

pub fn frames() -> Vec<Vec<u8>> {
    vec![
        query("SELECT 1"),
        [parse("s", "SELECT $1", &[25]), bind_text("p", "s", &[Some(b"x"), None]), execute("p", 10), sync()].concat(),
        [copy_data(b"1\t2\n"), message::copy_done(), message::copy_fail("no")].concat(),
        [message::close_statement("s"), message::describe_portal("p"), message::flush()].concat(),
        message::function_call(177, &[Some(b"a"), None]),
        [message::password("secret"), message::terminate()].concat(),
        message::header(b'p', 65_019),
        [message::tagged(b'D', b"\0\x01\0\0\0\x0242"), message::tagged(b'Z', b"I")].concat(),
    ]
}

pub fn startup_packets() -> Vec<Vec<u8>> {
    let plain = [("user", "ada"), ("database", "app")];
    let more = [("user", "eve"), ("options", "-c lease.fence=47"), ("user", "ada"), ("replication", "database")];
    let (longest, too_long) = ("d".repeat(63), "d".repeat(64));
    let odd = [("database", ""), ("user", "ada"), ("_pq_.new", "1"), ("application_name", "ä b")];
    vec![
        message::startup(message::PROTOCOL_3_0, &plain),
        message::startup(message::PROTOCOL_3_2, &more),
        message::startup(message::PROTOCOL_3_0, &odd),
        message::startup(message::PROTOCOL_3_0, &[("user", &longest), ("database", &too_long)]),
        message::startup(message::PROTOCOL_3_0, &[("database", &longest), ("user", "ada")]),
        message::startup(2 << 16, &plain),
        message::ssl_request(),
        message::gss_enc_request(),
        message::cancel_request(b"\0\0\x12\x34secret key"),
    ]
}

/// Bodies of DataRow, ParameterStatus, ErrorResponse and ReadyForQuery.
pub fn bodies() -> Vec<Vec<u8>> {
    [
        &b"\0\x02\0\0\0\x0242\xff\xff\xff\xff"[..],
        b"\0\x00",
        b"\0\x03\0\0\0\0\0\0\0\x01x\0\0\0\x02\xc3\xa4",
        b"client_encoding\0UTF8\0",
        b"standard_conforming_strings\0off\0",
        b"SERROR\0VERROR\0C42601\0Msyntax error at or near \"x\"\0P15\0Fscan.l\0L1188\0Rscanner_yyerror\0\0",
        b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0",
        b"T",
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

/// The parts of Parse and Bind after their strings.
pub fn binds() -> Vec<Vec<u8>> {
    [
        &b"\0\0"[..],
        b"\0\x02\0\0\0\x17\0\0\x0b\x86",
        b"\0\0\0\0\0\0",
        b"\0\x01\0\x01\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff\0\x01\0\x01",
        b"\0\x02\0\0\0\x01\0\x02\0\0\0\x03-07\0\0\0\x100123456789abcdef\0\0",
        b"\0\0\0\x02\0\0\0\x0242\0\0\0\x02\xc3\xa4\0\0",
        b"\0\x01\0\0\0\x01\0\0\0\x24a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\0\0",
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

pub const VALUES: [&str; 15] = [
    "47",
    " 9223372036854775807 ",
    "scheduler=47, shard/3=55",
    "scheduler=1,shard/3=2,a=3,b=4",
    "a=1",
    "\ta = 47 , b = 8\n",
    "00000000000000000047",
    "0000000000000000001",
    "47=12",
    "dev=1, v = 2,av=3",
    "shard/caf%C3%A9=7,b=1",
    "a=9223372036854775807,\u{b}b\u{c}=\r1",
    "a=1,b=2\u{c}",
    "",
    " \t",
];

pub const POLICIES: [&str; 6] = [
    "version: 1\nresources:\n  - name: scheduler\n    election: /cron/leader\n    tables:\n      - public.ticks\n      - \
     name: public.jobs\n        operations: [insert, update, delete, truncate, ddl]\n    functions: [public.run_tick]\n",
    "version: 1\nresources:\n- name: shard/{shard}\n  election: /shards/{shard}\n  tables: [{name: public.t, key: shard}]\n",
    "version: 1\nresources: [{name: a, tables: ['public.\"Odd \"\"Name\"'], on_missing: allow, mode: observe}]\n",
    "# é\nversion: 1 # one\r\nopaque: require_token\r\ndatabases: [app, \"b\\u0041\"]\r\nexempt_roles: [migrator]\r\n",
    "---\nversion: 1\nresources:\n  - {name: &n a, tables: [public.é, public.u]}\n...\n",
    "version: 1\nopaque: >-\n  allow\nresources:\n  - name: |-\n      a\n    tables:\n    - 'public.a'\n",
];

pub const TEXTS: [&str; 16] = [
    "SELECT a, f(b) FROM s.t JOIN u USING (c) WHERE d = $1 FOR UPDATE OF t",
    "INSERT INTO s.t (a, b) VALUES (1, 'x'), (2, E'\\n') ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *",
    "UPDATE pgbench_accounts SET abalance = abalance + 5 WHERE aid = 7;",
    "DELETE FROM ONLY \"Odd \"\"Name\" USING u WHERE t.a = u.a;",
    "WITH RECURSIVE d AS (DELETE FROM t RETURNING *) SELECT * FROM d, LATERAL f(d.a) WITH ORDINALITY x",
    "COPY t (a, b) FROM STDIN WITH (FORMAT csv) WHERE a > 1",
    "PREPARE p (int) AS UPDATE t SET a = $1; EXECUTE p(1); DEALLOCATE ALL",
    "CREATE FUNCTION f(a int) RETURNS int LANGUAGE plpgsql AS $body$ BEGIN RETURN 1; END $body$",
    "SET LOCAL lease.fence = 'scheduler=47, shard/3=55'; RESET ALL; SET \"lease.fence\" TO -5",
    "BEGIN; SAVEPOINT a; ROLLBACK TO a; RELEASE a; COMMIT AND CHAIN",
    "/* c /* d */ */ SELECT 'it''s', \"a\" -- e\n FROM t; /* end */",
    "SELECT E'a\\'b', 'c\\', U&'\\0041', B'01', $$d$$, $t$e$t$",
    "SELECT 'ä', \"ö\", $tag$ü$tag$ -- é\n FROM t",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "CREATE RULE r AS ON INSERT TO t DO (DELETE FROM u; SELECT 1)",
    "DO $$ BEGIN DELETE FROM t; END $$",
];

pub const PLAIN: [&str; 12] = [
    "SELECT a, abs(b), 'it''s', E'a\\'b', $tag$x$tag$, $1 FROM s.t WHERE c IN (1, 2.5e3) AND NOT (d OR e = ANY (f));",
    "INSERT INTO s.\"T\" (a, b) VALUES (1, 'x'), (now(), DEFAULT) ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *",
    "UPDATE t SET a = coalesce(b, upper(c)), d = d::text || 'x' WHERE e BETWEEN 1 AND (2)",
    "DELETE FROM t WHERE a IN (VALUES (1), (2)) /* c /* d */ */ RETURNING a -- e",
    "SELECT 1 UNION ALL (SELECT count(*) FROM t GROUP BY (a) ORDER BY (b) LIMIT (1))",
    "SELECT 'c\\', U&'\\0041', B'01', X'ff', n'x', $$d$$, $t$e$t$ FROM now() n, t now",
    "SELECT * FROM t now(a), u AS abs(b), LATERAL (SELECT sum(c) FROM v) x(d)",
    "INSERT INTO t (a) VALUES (E'x' \n 'y\\' || ', now() --')",
    "INSERT INTO t SELECT a, max(b) FROM u WHERE EXISTS (SELECT 1 FROM v) ON CONFLICT DO NOTHING",
    "SELECT a[1], (b).c, d.now(), e::numeric(10, 2), CAST(f AS varchar(3)), ROW(g), ARRAY[h] IS NULL",
    "SELECT CASE WHEN a THEN abs(1) ELSE (lower(b)) END FROM c JOIN d USING (e) WHERE f LIKE ('x') OR g(h)",
    "VALUES (1, least(2, 3)), (-4, ('5')); ;",
];

/// A random sequence of words. Most are not SQL, and some have a meaning other than the apparent one.
pub fn sentence(dice: &mut Dice) -> String {
    const STARTS: [&str; 7] = [
        "SELECT",
        "SELECT a FROM t WHERE",
        "INSERT INTO t VALUES (",
        "INSERT INTO t (a) SELECT",
        "UPDATE t SET a =",
        "DELETE FROM s.t WHERE",
        "VALUES (",
    ];
    #[rustfmt::skip]
    const WORDS: [&str; 52] = [
        "a", "b.c", "t", "1", "'x'", "E'\\''", "$1", "abs(1)", "now()", "f(1)", "lower(", "upper(", "(", "(", ")", ")", ",",
        ",", "+", "=", "AND", "OR", "NOT", "IN (", "FROM", "FROM t", "WHERE", "AS", "now", "abs", ".", "::", "::int",
        "numeric(1)", "text(a)", "left('x', 1)", "ON CONFLICT", "DO NOTHING", "DO UPDATE SET a =", "RETURNING", "FOR UPDATE",
        "WITH x AS (", "INTO u", ";", "SELECT", "UNION", "VALUES (", "JOIN u ON", "CASE WHEN", "THEN", "END", "ROW(",
    ];
    let words = (0..=dice.below(9)).map(|_| *dice.pick(&WORDS)).collect::<Vec<_>>().join(" ");
    let sentence = format!("{} {words}", dice.pick(&STARTS));
    let open = sentence.matches('(').count().saturating_sub(sentence.matches(')').count());
    sentence + &")".repeat(open)
}
