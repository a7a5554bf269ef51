-- The schema of fencegate in a downstream database. Run as one transaction; may be run again at any time.
SELECT pg_advisory_xact_lock(hashtextextended('fencegate:init', 0));

CREATE SCHEMA IF NOT EXISTS fencegate;
COMMENT ON SCHEMA fencegate IS 'fencegate schema version 1';

-- The highest token of each resource. Logged, and committed with synchronous_commit = on.
CREATE TABLE IF NOT EXISTS fencegate.epoch (
    resource    text PRIMARY KEY,
    generation  bigint NOT NULL DEFAULT 1,
    token       bigint NOT NULL CHECK (token > 0),
    drained     boolean NOT NULL DEFAULT false,
    policy_hash text,
    updated     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The server processes that may write now. Unlogged: after a crash none of them is left.
-- backend_start must not be null: a process is told from a later one with its pid by it alone.
CREATE UNLOGGED TABLE IF NOT EXISTS fencegate.admission (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    resource      text NOT NULL,
    generation    bigint NOT NULL,
    token         bigint NOT NULL,
    proxy         text NOT NULL,
    admitted      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pid, backend_start, resource, generation, token)
);
CREATE INDEX IF NOT EXISTS admission_resource ON fencegate.admission (resource);
CREATE INDEX IF NOT EXISTS admission_pid ON fencegate.admission (pid);

-- The token that this session presents for a resource; null without one, or when the value cannot be read.
CREATE OR REPLACE FUNCTION fencegate.token(resource text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
    WITH entry AS (
        SELECT btrim(item, E' \t\r\n\f\x0b') AS item, number
        FROM regexp_split_to_table(current_setting('lease.fence', true), ',') WITH ORDINALITY AS split(item, number)
    ), presented AS (
        SELECT item AS digits, number FROM entry WHERE item !~ '='
        UNION ALL
        SELECT btrim(split_part(item, '=', 2), E' \t\r\n\f\x0b'), number FROM entry
        WHERE btrim(split_part(item, '=', 1), E' \t\r\n\f\x0b') = $1 AND item ~ '^[^=]*=[^=]*$'
    )
    SELECT CASE WHEN digits ~ '^[0-9]{1,19}$' AND digits::numeric BETWEEN 1 AND 9223372036854775807
                THEN digits::bigint END
    FROM presented ORDER BY number LIMIT 1
$function$;

REVOKE ALL ON SCHEMA fencegate FROM PUBLIC;
GRANT USAGE ON SCHEMA fencegate TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA fencegate FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fencegate.token(text) TO PUBLIC;
