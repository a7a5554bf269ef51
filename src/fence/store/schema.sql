-- The schema of fencegate in a downstream database. Run as one transaction, which holds the lock of `init`; may be run again at any time.
CREATE SCHEMA IF NOT EXISTS fencegate;
COMMENT ON SCHEMA fencegate IS 'fencegate schema version 4';

-- The highest token of each resource. Logged, and committed with synchronous_commit = on.
CREATE TABLE IF NOT EXISTS fencegate.epoch (
    resource    text PRIMARY KEY,
    generation  bigint NOT NULL DEFAULT 1,
    token       bigint NOT NULL CHECK (token > 0),
    drained     boolean NOT NULL DEFAULT false,
    policy_hash text,
    updated     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the policies with that hash were loaded, by this server's clock, in microseconds since 1970: those that were
    -- loaded before do not replace them. 0: not known.
    policy_loaded bigint NOT NULL DEFAULT 0
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
    -- The process is being ended: the row goes with it, and not before.
    ending        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pid, backend_start, resource, generation, token)
);
-- What version 2 lacks. A column that is there would wait for the table's lock all the same.
DO $$BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate.epoch'::regclass AND attname = 'policy_loaded') THEN
        ALTER TABLE fencegate.epoch ADD COLUMN policy_loaded bigint NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate.admission'::regclass AND attname = 'ending') THEN
        ALTER TABLE fencegate.admission ADD COLUMN ending boolean NOT NULL DEFAULT false;
    END IF;
END$$;
-- CREATE INDEX IF NOT EXISTS would wait for the table's lock even where the index is there. Like the primary key, this index finds a
-- single row, so that no plan reads the other rows of a resource or a process. It has no pid: a plan that is made while the table is
-- empty finds all indexes equally good, and would look for a process in this one. The indexes of older programs are dropped first: DROP
-- takes the stronger lock, and to wait for it with the weaker one held would keep every Admit out.
DROP INDEX IF EXISTS fencegate.admission_resource, fencegate.admission_pid;
DO $$BEGIN
    IF to_regclass('fencegate.admission_epoch') IS NULL THEN
        CREATE INDEX admission_epoch ON fencegate.admission (resource, generation, token, backend_start);
    END IF;
END$$;

-- The proxies that have sessions here, and the fingerprints of the fences that each enforces. A proxy that leaves takes
-- its row away. One whose control process is gone without that is lost, and counts for a while: its sessions may go on.
CREATE UNLOGGED TABLE IF NOT EXISTS fencegate.proxy (
    id            text PRIMARY KEY,
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    enforced      text[] NOT NULL,
    announced     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Every FENCE RESET: what the fence was set to, by whom.
CREATE TABLE IF NOT EXISTS fencegate.reset (
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    resource      text NOT NULL,
    generation    bigint NOT NULL,
    token         bigint NOT NULL,
    role          text NOT NULL,
    proxy         text NOT NULL,
    forced        boolean NOT NULL
);

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

-- Forgets the highest tokens of resources whose names start so and whose tokens have not been raised for so long: up to a
-- thousand, of those to which no server process is admitted. Returns how many. See docs/operations.md: what is forgotten
-- rejects nobody any more.
CREATE OR REPLACE FUNCTION fencegate.prune(not_raised_for interval, starting_with text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    candidate text;
    pruned bigint := 0;
BEGIN
    -- Each statement has to see what was committed before it: an admission, above all.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = 'fencegate.prune needs a transaction that is READ COMMITTED',
            HINT = 'Run it outside of other transactions, with SET default_transaction_isolation = ''read committed''.';
    END IF;
    FOR candidate IN
        SELECT e.resource FROM fencegate.epoch e
        WHERE e.updated < clock_timestamp() - not_raised_for AND starts_with(e.resource, starting_with)
          -- OFFSET: by the index. A join would be planned by what was last seen of the admissions.
          AND NOT EXISTS (SELECT FROM fencegate.admission a WHERE a.resource = e.resource OFFSET 0)
        LIMIT 1000
    LOOP
        -- Somebody is being admitted, or raises the token: it is in use.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('fencegate:' || candidate, 0));
        PERFORM FROM fencegate.epoch e
        WHERE e.resource = candidate AND e.updated < clock_timestamp() - not_raised_for FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- The rows of dead processes count as well: the proxies delete them soon.
        DELETE FROM fencegate.epoch e
        WHERE e.resource = candidate
          AND NOT EXISTS (SELECT FROM fencegate.admission a WHERE a.resource = candidate);
        IF FOUND THEN
            pruned := pruned + 1;
            PERFORM pg_notify('fencegate', candidate);
        END IF;
    END LOOP;
    RETURN pruned;
END
$function$;

-- Ends the processes that hold the lock of a resource in one of these modes, and returns who they are. Not control connections,
-- which hold it for a moment; and not who acquires a lease, for 10 s: it holds a lock that nobody else can take. Nobody is ended
-- in vain, where a prepared transaction holds the lock as well.
CREATE OR REPLACE FUNCTION fencegate.end_holders(resource text, modes text[]) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    lock constant bigint := hashtextextended('fencegate:' || $1, 0);
    holders text;
BEGIN
    -- Otherwise the processes are those of the first look in this transaction.
    PERFORM pg_stat_clear_snapshot();
    WITH held AS MATERIALIZED (
        SELECT l.pid, s.usesysid FROM pg_locks AS l LEFT JOIN pg_stat_get_activity(NULL) AS s ON s.pid = l.pid
        LEFT JOIN pg_roles AS t ON t.oid = s.usesysid
        WHERE l.locktype = 'advisory' AND l.mode = ANY ($2) AND l.objsubid = 1
        -- Who waits to hold it alone is in the way of others as well.
        AND (l.granted OR l.mode = 'ExclusiveLock') AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = lock
        AND NOT coalesce(s.application_name = 'fencegate control'
            AND has_table_privilege(t.oid, 'fencegate.admission', 'INSERT'), false)
        AND NOT coalesce(s.xact_start > clock_timestamp() - interval '10 s' AND EXISTS (
            SELECT FROM pg_locks AS m WHERE m.pid = l.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock'
            AND m.database = l.database AND m.relation = to_regclass('fencegate.leased')), false)
    )
    SELECT string_agg(coalesce('process ' || h.pid, 'a prepared transaction'), ', ') INTO holders
    FROM (SELECT l.pid, CASE WHEN NOT EXISTS (SELECT FROM held WHERE pid IS NULL)
              AND (me.rolsuper OR (NOT t.rolsuper AND (pg_has_role(me.oid, 'pg_signal_backend', 'USAGE')
                  OR pg_has_role(me.oid, t.oid, 'USAGE')))) THEN pg_terminate_backend(l.pid) END AS signalled
          FROM held AS l JOIN pg_roles AS me ON me.rolname = current_user
          LEFT JOIN pg_roles AS t ON t.oid = l.usesysid) AS h;
    RETURN holders;
END
$function$;

-- Takes the lock of a resource until the transaction ends, alone or shared, and returns null. Ends the processes that keep it
-- waiting for more than 100 ms; where some still hold the lock when the patience is over, gives up and returns them.
CREATE OR REPLACE FUNCTION fencegate.take_lock(resource text, alone boolean, patience interval) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '100ms'
AS $function$
DECLARE
    lock constant bigint := hashtextextended('fencegate:' || $1, 0);
    latest constant timestamptz := clock_timestamp() + $3;
    holders text;
BEGIN
    LOOP
        BEGIN
            IF $2 THEN
                PERFORM pg_advisory_xact_lock(lock);
            ELSE
                PERFORM pg_advisory_xact_lock_shared(lock);
            END IF;
            RETURN NULL;
        EXCEPTION WHEN lock_not_available THEN
            NULL; -- Looked into below.
        END;
        holders := fencegate.end_holders($1, CASE WHEN $2 THEN '{ShareLock,ExclusiveLock}' ELSE '{ExclusiveLock}' END::text[]);
        IF clock_timestamp() >= latest THEN
            RETURN coalesce(holders, 'others');
        END IF;
    END LOOP;
END
$function$;

REVOKE ALL ON SCHEMA fencegate FROM PUBLIC;
GRANT USAGE ON SCHEMA fencegate TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA fencegate FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fencegate.token(text) TO PUBLIC;
REVOKE ALL ON FUNCTION fencegate.prune(interval, text), fencegate.end_holders(text, text[]),
    fencegate.take_lock(text, boolean, interval) FROM PUBLIC;
