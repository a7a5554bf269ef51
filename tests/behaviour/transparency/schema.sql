-- Initial content of both servers: a table with columns of many types, tables to write to, and functions that raise
-- any given message.
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN even AS int CHECK (value % 2 = 0);
CREATE TABLE wide (
    id int PRIMARY KEY, i2 smallint, i8 bigint, r real, f float8, n numeric, t text, v varchar(20), c char(5), b bytea,
    yes bool, j json, jb jsonb, ia int[], ta text[], rng int4range, comp pair, m mood, ev even, u uuid, tz timestamptz,
    ts timestamp, d date, ti time, iv interval, bits bit(5), vb varbit, ip inet, net cidr, mac macaddr, p point,
    bx box, mo money, tv tsvector, tq tsquery, x xml, o oid, pairs pair[], moods mood[]
);
INSERT INTO wide
SELECT i, i, i * 10000000000, i / 3.0, 1 / (i + 0.5), i * 1.000000001, repeat('text ', i % 7), 'v' || i, 'c' || i % 10,
    decode(lpad(to_hex(i), 6, '0'), 'hex'), i % 2 = 0, json_build_object('k', i, 'deep', json_build_array(i, null, 'x')),
    jsonb_build_object('k', i, 'list', array[i, i + 1]), array[i, null, i + 1], array['a' || i, 'quo"te', null, ''],
    int4range(i, i + 5), row(i, 'b' || i)::pair, (enum_range(null::mood))[1 + i % 3], i * 2,
    lpad(to_hex(i), 32, 'abc')::uuid, '2001-02-03 04:05:06.789+00'::timestamptz + i * interval '1 day 1 second',
    '1999-12-31 23:59:59'::timestamp + i * interval '1 month', '2020-02-28'::date + i, '10:11:12'::time + i * interval '1 minute',
    i * interval '1 month 2 days 03:04:05.6', (i % 32)::bit(5), ('1' || repeat('01', i % 5))::varbit,
    ('10.0.0.' || i)::inet, ('10.' || i || '.0.0/16')::cidr, ('08:00:2b:01:02:' || lpad(to_hex(i), 2, '0'))::macaddr,
    point(i, -i), box(point(0, 0), point(i, i)), i * 1.11::money, to_tsvector('simple', 'word' || i || ' other words'),
    ('word' || i || ' & other')::tsquery, ('<a n="' || i || '">text</a>')::xml, i, array[row(i, 'p')::pair], array['sad', 'ok']::mood[]
FROM generate_series(1, 40) AS i;
INSERT INTO wide (id) VALUES (0);
-- The fenced table, if the policies fence one.
CREATE TABLE ledger (id int PRIMARY KEY, who text NOT NULL DEFAULT 'nobody', amount numeric CHECK (amount >= 0));
INSERT INTO ledger SELECT i, 'owner ' || i, i FROM generate_series(1, 10) AS i;
CREATE TABLE work0 (id int PRIMARY KEY, name text DEFAULT 'none', value numeric CHECK (value < 1000000), UNIQUE (name, value));
CREATE TABLE work1 (id serial PRIMARY KEY, parent int REFERENCES work0 ON DELETE CASCADE, data jsonb, at date DEFAULT '2020-01-01');
CREATE VIEW seen AS SELECT id, name FROM work0 WHERE value > 5;
CREATE SEQUENCE counter;
CREATE PROCEDURE nothing(inout n int) LANGUAGE plpgsql AS 'BEGIN n := n + 1; END';
CREATE FUNCTION say(level text, what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CASE level
    WHEN 'debug' THEN RAISE DEBUG '%', what;
    WHEN 'log' THEN RAISE LOG '%', what;
    WHEN 'info' THEN RAISE INFO '%', what;
    WHEN 'notice' THEN RAISE NOTICE '%', what USING DETAIL = 'a detail', HINT = 'a hint';
    WHEN 'warning' THEN RAISE WARNING '%', what USING ERRCODE = '01234';
    ELSE RAISE EXCEPTION '%', what USING ERRCODE = 'XX123', DETAIL = 'why', HINT = 'how', COLUMN = 'a column',
        CONSTRAINT = 'a constraint', DATATYPE = 'a type', TABLE = 'a table', SCHEMA = 'a schema';
    END CASE;
    RETURN what;
END $$;
CREATE FUNCTION deep(n int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN n = 0 THEN 1 / n ELSE deep(n - 1) END; END';
CREATE FUNCTION cursors() RETURNS SETOF refcursor LANGUAGE plpgsql AS $$
DECLARE one refcursor = 'one'; two refcursor = 'two';
BEGIN
    OPEN one FOR SELECT id, t FROM wide ORDER BY id; RETURN NEXT one;
    OPEN two SCROLL FOR SELECT generate_series(1, 10); RETURN NEXT two;
END $$;
SELECT lo_create(4711);
