-- The schemas of fencegate in a downstream database. Run as one transaction, which holds the lock of `init`. May be run again at any
-- time.
--
-- `fencegate` contains the functions, and PUBLIC has USAGE on it. `fencegate_state` contains the tables and sequences, without USAGE
-- for PUBLIC: PostgreSQL locks a relation before it checks privileges on the relation, but after it has checked those on the schema.
CREATE SCHEMA IF NOT EXISTS fencegate;
CREATE SCHEMA IF NOT EXISTS fencegate_state;
COMMENT ON SCHEMA fencegate IS 'fencegate schema version 6';
COMMENT ON SCHEMA fencegate_state IS 'fencegate: tables. See schema fencegate';

-- Before version 6 the tables were in the schema fencegate. Rewrites the guard's functions for the new schema, until
-- `fencegate guard install` replaces them.
DO $$
DECLARE
    relations constant text[] := '{epoch,admission,proxy,reset,leased,lease,lease_history,lease_grant,lease_token}';
    named constant text := format('\mfencegate\.(%s)\M', array_to_string(relations, '|'));
    relation text;
    definition text;
BEGIN
    IF to_regclass('fencegate.epoch') IS NULL THEN
        RETURN;
    END IF;
    FOREACH relation IN ARRAY relations LOOP
        IF to_regclass('fencegate.' || relation) IS NOT NULL THEN
            EXECUTE format('ALTER TABLE fencegate.%I SET SCHEMA fencegate_state', relation);
        END IF;
    END LOOP;
    FOR definition IN
        SELECT regexp_replace(pg_get_functiondef(p.oid), named, 'fencegate_state.\1', 'g') FROM pg_proc p
        WHERE p.pronamespace = 'fencegate'::regnamespace AND p.prokind = 'f' AND p.prosrc ~ named
    LOOP
        EXECUTE definition;
    END LOOP;
END$$;
-- This type's name makes the `init` of earlier programs fail. Otherwise it would create empty tables without tokens.
DO $$BEGIN
    IF to_regtype('fencegate.epoch') IS NULL THEN
        CREATE TYPE fencegate.epoch AS ENUM ();
        COMMENT ON TYPE fencegate.epoch IS 'Keeps earlier versions of fencegate from creating a table of this name.';
        REVOKE ALL ON TYPE fencegate.epoch FROM PUBLIC;
    END IF;
END$$;

-- The highest token of each resource. Logged, and committed with synchronous_commit = on.
CREATE TABLE IF NOT EXISTS fencegate_state.epoch (
    resource    text PRIMARY KEY,
    generation  bigint NOT NULL DEFAULT 1,
    token       bigint NOT NULL CHECK (token > 0),
    drained     boolean NOT NULL DEFAULT false,
    policy_hash text,
    updated     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the policies with that hash were loaded, by this server's clock, in microseconds since 1970. Policies loaded earlier
    -- do not replace them. 0: unknown.
    policy_loaded bigint NOT NULL DEFAULT 0
);

-- This database and its cluster. IMMUTABLE is correct within a process, because a process never changes its database.
CREATE OR REPLACE FUNCTION fencegate.own_system_identifier() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT system_identifier FROM pg_control_system()$function$;
CREATE OR REPLACE FUNCTION fencegate.own_database() RETURNS oid
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT oid FROM pg_database WHERE datname = current_database()$function$;

-- The server processes that may write now. Unlogged, because a server crash leaves no such process.
-- backend_start must not be null: only backend_start distinguishes a process from a later one with the same pid.
-- A row counts only in the database for which it was written, because pg_dump and CREATE DATABASE with a template copy rows.
CREATE UNLOGGED TABLE IF NOT EXISTS fencegate_state.admission (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    resource      text NOT NULL,
    generation    bigint NOT NULL,
    token         bigint NOT NULL,
    proxy         text NOT NULL,
    admitted      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The process is being terminated. The row is deleted only after the process has ended.
    ending        boolean NOT NULL DEFAULT false,
    -- With defaults, because programs and guards of version 4 do not name these columns.
    system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
    database      oid NOT NULL DEFAULT fencegate.own_database(),
    PRIMARY KEY (pid, backend_start, resource, generation, token)
);
-- The columns that versions 2 and 4 lack. ADD COLUMN IF NOT EXISTS would wait for the table's lock even if the column exists.
DO $$BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate_state.epoch'::regclass AND attname = 'policy_loaded') THEN
        ALTER TABLE fencegate_state.epoch ADD COLUMN policy_loaded bigint NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate_state.admission'::regclass AND attname = 'ending') THEN
        ALTER TABLE fencegate_state.admission ADD COLUMN ending boolean NOT NULL DEFAULT false;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate_state.admission'::regclass AND attname = 'database') THEN
        ALTER TABLE fencegate_state.admission
            ADD COLUMN system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
            ADD COLUMN database oid NOT NULL DEFAULT fencegate.own_database();
    END IF;
END$$;
-- CREATE INDEX IF NOT EXISTS would wait for the table's lock even if the index exists. Like the primary key, this index finds a single
-- row, so no plan reads other rows of a resource or a process. The index has no pid: a plan made while the table is empty considers
-- all indexes equally good, and would use this one to find a process. The indexes of older programs are dropped first, because DROP
-- takes the stronger lock: waiting for it while holding the weaker one would block every Admit.
DROP INDEX IF EXISTS fencegate_state.admission_resource, fencegate_state.admission_pid;
DO $$BEGIN
    IF to_regclass('fencegate_state.admission_epoch') IS NULL THEN
        CREATE INDEX admission_epoch ON fencegate_state.admission (resource, generation, token, backend_start);
    END IF;
END$$;

-- The proxies that have sessions here, and the fingerprints of the fences that each enforces. A proxy deletes its row when it
-- leaves. A proxy whose control process has ended without that is lost. It still counts for a while, because its sessions may
-- continue.
CREATE UNLOGGED TABLE IF NOT EXISTS fencegate_state.proxy (
    id            text PRIMARY KEY,
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    enforced      text[] NOT NULL,
    announced     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- As in admission.
    system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
    database      oid NOT NULL DEFAULT fencegate.own_database()
);
DO $$BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate_state.proxy'::regclass AND attname = 'database') THEN
        ALTER TABLE fencegate_state.proxy
            ADD COLUMN system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
            ADD COLUMN database oid NOT NULL DEFAULT fencegate.own_database();
    END IF;
END$$;
-- A copy of a database contains rows of the original. Delete them.
DELETE FROM fencegate_state.admission
    WHERE (system_identifier, database) <> (fencegate.own_system_identifier(), fencegate.own_database());
DELETE FROM fencegate_state.proxy
    WHERE (system_identifier, database) <> (fencegate.own_system_identifier(), fencegate.own_database());

-- Every FENCE RESET: the new epoch, and the role and proxy that set it.
CREATE TABLE IF NOT EXISTS fencegate_state.reset (
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    resource      text NOT NULL,
    generation    bigint NOT NULL,
    token         bigint NOT NULL,
    role          text NOT NULL,
    proxy         text NOT NULL,
    forced        boolean NOT NULL
);

-- The token that this session presents for a resource. Null if there is none, or if the value is invalid.
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

-- NOTIFY is a hint: a proxy that misses one reads again within 10 s. Any role can fill the server's queue. Then every transaction
-- that has notified fails at COMMIT. Therefore sends nothing once the queue is half full, which is when the server begins to warn.
CREATE OR REPLACE FUNCTION fencegate.announce(channel text, payload text) RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT pg_notify($1, $2) WHERE pg_notification_queue_usage() < 0.5
$function$;

-- Deletes the highest tokens of resources whose names start with `starting_with`, whose tokens have not been raised for
-- `not_raised_for`, and to which no server process is admitted: up to a thousand. Returns their number. A deleted token no
-- longer rejects lower ones, see docs/fence/keyed.md.
CREATE OR REPLACE FUNCTION fencegate.prune(not_raised_for interval, starting_with text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    candidate text;
    pruned bigint := 0;
BEGIN
    -- Each statement must see earlier commits, above all admissions.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = 'fencegate.prune requires isolation level READ COMMITTED',
            HINT = 'Call it outside a transaction block, after SET default_transaction_isolation = ''read committed''.';
    END IF;
    FOR candidate IN
        SELECT e.resource FROM fencegate_state.epoch e
        WHERE e.updated < clock_timestamp() - not_raised_for AND starts_with(e.resource, starting_with)
          -- OFFSET makes the planner use the index. It would plan a join by outdated statistics of admission.
          AND NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = e.resource OFFSET 0)
        LIMIT 1000
    LOOP
        -- If the lock is held, a process is being admitted or raises the token: the resource is in use.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('fencegate:' || candidate, 0));
        PERFORM FROM fencegate_state.epoch e
        WHERE e.resource = candidate AND e.updated < clock_timestamp() - not_raised_for FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- Admissions of ended processes also count. The proxies delete them soon.
        DELETE FROM fencegate_state.epoch e
        WHERE e.resource = candidate
          AND NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = candidate);
        IF FOUND THEN
            pruned := pruned + 1;
            PERFORM fencegate.announce('fencegate', candidate);
        END IF;
    END LOOP;
    RETURN pruned;
END
$function$;

-- Terminates the processes that hold the lock of a resource in one of these modes, and returns their names. Omits control
-- connections, which hold the lock only briefly. If a prepared transaction holds the lock as well, terminates none, because that
-- would not help. Only names two kinds of process for the first 10 s of their transaction: the worker of a subscription that brings
-- an epoch, and a process that acquires the lease of the resource. The latter holds this lock exclusively, and another lock that
-- only the acquisition of a lease takes.
CREATE OR REPLACE FUNCTION fencegate.end_holders(resource text, modes text[]) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    lock constant bigint := hashtextextended('fencegate:' || $1, 0);
    holders text;
BEGIN
    -- Without this, a transaction sees the processes of its first query.
    PERFORM pg_stat_clear_snapshot();
    WITH held AS MATERIALIZED (
        SELECT l.pid, s.usesysid, t.rolname, coalesce(s.xact_start > clock_timestamp() - interval '10 s'
            AND (s.backend_type LIKE 'logical replication%'
                OR bool_or(l.mode = 'ExclusiveLock') OVER (PARTITION BY l.pid) AND EXISTS (
                    SELECT FROM pg_locks AS m WHERE m.pid = l.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock'
                    AND m.database = l.database AND m.relation = to_regclass('fencegate_state.leased'))
                AND fencegate.lease_candidate(t.oid, $1)), false) AS is_spared
        FROM pg_locks AS l LEFT JOIN pg_stat_get_activity(NULL) AS s ON s.pid = l.pid
        LEFT JOIN pg_roles AS t ON t.oid = s.usesysid
        WHERE l.locktype = 'advisory' AND l.mode = ANY ($2) AND l.objsubid = 1
        -- A process that waits for the exclusive lock blocks others, too.
        AND (l.granted OR l.mode = 'ExclusiveLock') AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = lock
        AND NOT coalesce(s.application_name = 'fencegate control'
            AND has_table_privilege(t.oid, 'fencegate_state.admission', 'INSERT'), false)
    )
    SELECT string_agg(coalesce('process ' || h.pid || ' of role ' || h.rolname, 'process ' || h.pid, 'a prepared transaction'), ', ')
        INTO holders
    FROM (SELECT l.pid, l.rolname, CASE WHEN NOT l.is_spared AND NOT EXISTS (SELECT FROM held WHERE pid IS NULL)
              AND (me.rolsuper OR (NOT t.rolsuper AND (pg_has_role(me.oid, 'pg_signal_backend', 'USAGE')
                  OR pg_has_role(me.oid, t.oid, 'USAGE')))) THEN pg_terminate_backend(l.pid) END AS signalled
          FROM (SELECT DISTINCT * FROM held) AS l JOIN pg_roles AS me ON me.rolname = current_user
          LEFT JOIN pg_roles AS t ON t.oid = l.usesysid) AS h;
    RETURN holders;
END
$function$;

-- Takes the lock of a resource until the transaction ends, exclusively (`alone`) or shared, and returns null. Terminates processes
-- that block it for more than 100 ms. If some still hold the lock after `patience`, gives up and returns them.
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
            NULL; -- Handled below.
        END;
        holders := fencegate.end_holders($1, CASE WHEN $2 THEN '{ShareLock,ExclusiveLock}' ELSE '{ExclusiveLock}' END::text[]);
        IF clock_timestamp() >= latest THEN
            RETURN coalesce(holders, 'others');
        END IF;
    END LOOP;
END
$function$;

-- Applies an epoch that a subscription brings. Its publisher knows nothing of the processes here, so the epoch is raised as by a
-- Publish: under the lock of the resource, and not drained. Ignores lower epochs and deletions, because processes here may still be
-- admitted. If the row was deleted by hand, refuses an epoch that is below a live process's admission: it would not drain that process.
CREATE OR REPLACE FUNCTION fencegate.receive_epoch() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    holders text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RETURN NULL;
    END IF;
    holders := fencegate.take_lock(NEW.resource, true, '5 s');
    IF holders IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'LF006',
            MESSAGE = format('the fence of resource "%s" cannot be raised: its lock is held by %s', NEW.resource, holders),
            DETAIL = format('resource=%s', NEW.resource),
            HINT = 'The subscription retries. If the error persists, terminate these processes with pg_terminate_backend, and end prepared transactions with ROLLBACK PREPARED.';
    ELSIF TG_OP = 'INSERT' THEN
        -- The resource may have an epoch here, from before the subscription or a deletion. This trigger decides on the UPDATE.
        UPDATE fencegate_state.epoch AS e SET generation = NEW.generation, token = NEW.token, updated = NEW.updated,
            policy_hash = NEW.policy_hash, policy_loaded = NEW.policy_loaded
        WHERE e.resource = NEW.resource;
        IF EXISTS (SELECT FROM fencegate_state.epoch AS e WHERE e.resource = NEW.resource) THEN
            RETURN NULL;
        END IF;
        SELECT string_agg(DISTINCT 'process ' || a.pid, ', ') INTO holders
        FROM fencegate_state.admission AS a JOIN pg_stat_get_activity(NULL) AS s ON s.pid = a.pid
        WHERE a.resource = NEW.resource AND (a.generation, a.token) > (NEW.generation, NEW.token)
            AND (a.system_identifier, a.database) = (fencegate.own_system_identifier(), fencegate.own_database())
            AND coalesce(s.datid = a.database AND s.backend_start = a.backend_start, true);
        IF holders IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'LF006',
                MESSAGE = format('the subscription brings an older epoch of resource "%s" than that of %s, and the epoch here is gone', NEW.resource, holders),
                DETAIL = format('resource=%s', NEW.resource),
                HINT = 'The subscription retries. If the error persists, terminate these processes with pg_terminate_backend.';
        END IF;
        NEW.drained := false;
    ELSIF (NEW.generation, NEW.token) < (OLD.generation, OLD.token) THEN
        RETURN NULL;
    ELSE
        NEW.drained := OLD.drained AND (NEW.generation, NEW.token) = (OLD.generation, OLD.token);
    END IF;
    RETURN NEW;
END
$function$;
DO $$BEGIN
    -- The trigger of earlier versions does not fire for DELETE (bit 8 of tgtype).
    IF NOT EXISTS (SELECT FROM pg_trigger
            WHERE tgrelid = 'fencegate_state.epoch'::regclass AND tgname = 'receive_epoch' AND tgtype & 8 <> 0) THEN
        DROP TRIGGER IF EXISTS receive_epoch ON fencegate_state.epoch;
        CREATE TRIGGER receive_epoch BEFORE INSERT OR UPDATE OR DELETE ON fencegate_state.epoch
            FOR EACH ROW EXECUTE FUNCTION fencegate.receive_epoch();
        ALTER TABLE fencegate_state.epoch ENABLE REPLICA TRIGGER receive_epoch;
    END IF;
END$$;

REVOKE ALL ON SCHEMA fencegate, fencegate_state FROM PUBLIC;
GRANT USAGE ON SCHEMA fencegate TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA fencegate_state FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fencegate.token(text) TO PUBLIC;
REVOKE ALL ON FUNCTION fencegate.own_system_identifier(), fencegate.own_database(), fencegate.announce(text, text), fencegate.prune(interval, text),
    fencegate.end_holders(text, text[]), fencegate.take_lock(text, boolean, interval), fencegate.receive_epoch() FROM PUBLIC;
