-- The schemas of fencegate in a downstream database. Run as one transaction, which holds the lock of `init`; may be run again at any time.
--
-- `fencegate` has the functions that everybody may name. `fencegate_state` has the tables and sequences, and PUBLIC may name nothing in
-- it: PostgreSQL takes a relation's lock before it checks the privileges of the relation, but after it has checked those of the schema.
CREATE SCHEMA IF NOT EXISTS fencegate;
CREATE SCHEMA IF NOT EXISTS fencegate_state;
COMMENT ON SCHEMA fencegate IS 'fencegate schema version 6';
COMMENT ON SCHEMA fencegate_state IS 'fencegate: tables. See schema fencegate';

-- Before version 6 the tables were in the schema fencegate. The guard's functions, which `fencegate guard install` replaces, find them
-- meanwhile.
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
-- The `init` of a program that knows earlier versions only fails at this name. It would make empty tables, without any token.
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
    -- When the policies with that hash were loaded, by this server's clock, in microseconds since 1970: those that were
    -- loaded before do not replace them. 0: not known.
    policy_loaded bigint NOT NULL DEFAULT 0
);

-- This database, and the cluster that it is in. IMMUTABLE holds within a process, which stays in its database.
CREATE OR REPLACE FUNCTION fencegate.own_system_identifier() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT system_identifier FROM pg_control_system()$function$;
CREATE OR REPLACE FUNCTION fencegate.own_database() RETURNS oid
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT oid FROM pg_database WHERE datname = current_database()$function$;

-- The server processes that may write now. Unlogged: after a crash none of them is left.
-- backend_start must not be null: a process is told from a later one with its pid by it alone.
-- A row counts only in the database that it was written for. pg_dump, and CREATE DATABASE with a template, copy rows.
CREATE UNLOGGED TABLE IF NOT EXISTS fencegate_state.admission (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    resource      text NOT NULL,
    generation    bigint NOT NULL,
    token         bigint NOT NULL,
    proxy         text NOT NULL,
    admitted      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The process is being ended: the row goes with it, and not before.
    ending        boolean NOT NULL DEFAULT false,
    -- Defaults: programs and guards of version 4 do not name these columns.
    system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
    database      oid NOT NULL DEFAULT fencegate.own_database(),
    PRIMARY KEY (pid, backend_start, resource, generation, token)
);
-- The columns that versions 2 and 4 lack. ADD COLUMN IF NOT EXISTS would wait for the table's lock even where the column exists.
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
-- CREATE INDEX IF NOT EXISTS would wait for the table's lock even where the index is there. Like the primary key, this index finds a
-- single row, so that no plan reads the other rows of a resource or a process. It has no pid: a plan that is made while the table is
-- empty finds all indexes equally good, and would look for a process in this one. The indexes of older programs are dropped first: DROP
-- takes the stronger lock, and to wait for it with the weaker one held would keep every Admit out.
DROP INDEX IF EXISTS fencegate_state.admission_resource, fencegate_state.admission_pid;
DO $$BEGIN
    IF to_regclass('fencegate_state.admission_epoch') IS NULL THEN
        CREATE INDEX admission_epoch ON fencegate_state.admission (resource, generation, token, backend_start);
    END IF;
END$$;

-- The proxies that have sessions here, and the fingerprints of the fences that each enforces. A proxy that leaves takes
-- its row away. One whose control process is gone without that is lost, and counts for a while: its sessions may go on.
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
-- The rows of other databases, which a copy of a database has.
DELETE FROM fencegate_state.admission
    WHERE (system_identifier, database) <> (fencegate.own_system_identifier(), fencegate.own_database());
DELETE FROM fencegate_state.proxy
    WHERE (system_identifier, database) <> (fencegate.own_system_identifier(), fencegate.own_database());

-- Every FENCE RESET: what the fence was set to, by whom.
CREATE TABLE IF NOT EXISTS fencegate_state.reset (
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

-- NOTIFY is a hint: a proxy that misses one reads again within 10 s. Any role can fill the server's queue, and then every transaction
-- that has notified fails at COMMIT. Nothing is announced once the queue is half full, when the server begins to warn of it.
CREATE OR REPLACE FUNCTION fencegate.announce(channel text, payload text) RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT pg_notify($1, $2) WHERE pg_notification_queue_usage() < 0.5
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
        SELECT e.resource FROM fencegate_state.epoch e
        WHERE e.updated < clock_timestamp() - not_raised_for AND starts_with(e.resource, starting_with)
          -- OFFSET: by the index. A join would be planned by what was last seen of the admissions.
          AND NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = e.resource OFFSET 0)
        LIMIT 1000
    LOOP
        -- Somebody is being admitted, or raises the token: it is in use.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('fencegate:' || candidate, 0));
        PERFORM FROM fencegate_state.epoch e
        WHERE e.resource = candidate AND e.updated < clock_timestamp() - not_raised_for FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- The rows of dead processes count as well: the proxies delete them soon.
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

-- Ends the processes that hold the lock of a resource in one of these modes, and returns their names. Not control connections,
-- which hold it for a moment. If a prepared transaction holds the lock as well, none is ended, because that would not help. Two kinds
-- of process are only named for the first 10 s of their transaction: the worker of a subscription that brings an epoch, and a process
-- that acquires the lease of the resource. The latter holds this lock alone, and one that only acquiring, of some lease, takes.
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
        SELECT l.pid, s.usesysid, t.rolname, coalesce(s.xact_start > clock_timestamp() - interval '10 s'
            AND (s.backend_type LIKE 'logical replication%'
                OR bool_or(l.mode = 'ExclusiveLock') OVER (PARTITION BY l.pid) AND EXISTS (
                    SELECT FROM pg_locks AS m WHERE m.pid = l.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock'
                    AND m.database = l.database AND m.relation = to_regclass('fencegate_state.leased'))
                AND fencegate.lease_candidate(t.oid, $1)), false) AS is_spared
        FROM pg_locks AS l LEFT JOIN pg_stat_get_activity(NULL) AS s ON s.pid = l.pid
        LEFT JOIN pg_roles AS t ON t.oid = s.usesysid
        WHERE l.locktype = 'advisory' AND l.mode = ANY ($2) AND l.objsubid = 1
        -- Who waits to hold it alone is in the way of others as well.
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

-- An epoch that a subscription brings, which knows nothing of the processes here: raised as a Publish does it, behind the lock of
-- the resource and not drained. A lower one is ignored, and so is a deletion: processes here may still be admitted. Where the row
-- was deleted by hand, one that is older than what a living process is admitted under is refused: it would not drain that process.
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
            HINT = 'The subscription retries. If the error persists, end them on the server: pg_terminate_backend, or ROLLBACK PREPARED for what is prepared.';
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
                HINT = 'The subscription retries. If the error persists, end them on the server: pg_terminate_backend.';
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
    -- An earlier one does not fire for DELETE, which is this bit of tgtype.
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
