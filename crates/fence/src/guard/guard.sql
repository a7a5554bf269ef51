-- The guard's functions. Run after check.sql, in one transaction. May be run again at any time.
-- All names are in pg_catalog or qualified, so the caller's search_path has no effect.

-- True if this server process is admitted to the resource until its transaction ends. If false, it may still be admitted:
-- check_write decides.
--
-- While the process holds the lock, until its transaction ends, no other process deletes its admission: the DELETE takes the lock
-- exclusively, and if it cannot, the process is terminated. A row that the query sees after taking the lock therefore stays valid.
-- The function does not wait for the lock, because any role can hold it. The lock belongs to a family of resources: all keys of a
-- keyed one, or a single one. A lock for each key would fill the server's lock table when many keys are loaded. One lock for all
-- only means that a drain may terminate a process that it could have spared.
--
-- The transaction inherits the lock from a subtransaction. Otherwise the lock would belong to the cursor that calls the writing
-- function. When a cursor fails in a savepoint, the server releases its locks and keeps its writes from before the savepoint.
--
-- VOLATILE: under READ COMMITTED the query sees all commits up to its start, after the lock was taken. Nearly every write waits for
-- this function, and SET search_path takes longer than the lock, so all names and operators are qualified instead. Nearly all
-- sessions present a token as PostgreSQL prints it. For any other, the query calls presented(), whose cost makes the planner use
-- an index, unless VACUUM has counted at most one admission.
CREATE OR REPLACE FUNCTION fencegate.is_admitted(fenced text, family text) RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $function$
DECLARE
    holds_lock boolean;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.!~~) 'read %' THEN
        RETURN false;
    END IF;
    BEGIN
        holds_lock := pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtext(family), fencegate.own_pid());
    EXCEPTION WHEN SQLSTATE 'LF000' THEN
        NULL; -- Never raised. The handler makes this block a subtransaction.
    END;
    IF holds_lock THEN
        PERFORM FROM fencegate_state.admission AS a
            WHERE a.pid OPERATOR(pg_catalog.=) fencegate.own_pid()
            AND a.backend_start OPERATOR(pg_catalog.=) fencegate.own_start()
            AND a.resource OPERATOR(pg_catalog.=) fenced
            AND a.database OPERATOR(pg_catalog.=) fencegate.own_database()
            AND a.system_identifier OPERATOR(pg_catalog.=) fencegate.own_system_identifier()
            AND (a.token::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.current_setting('lease.fence', true)
                OR a.token OPERATOR(pg_catalog.=) fencegate.presented(fenced));
        RETURN FOUND;
    END IF;
    RETURN false;
END
$function$;

-- For a fence that only observes: logs a write that an enforcing fence would reject. Takes no lock.
CREATE OR REPLACE FUNCTION fencegate.observe_write(fenced text, may_lack_token boolean) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    presented bigint;
    highest bigint;
BEGIN
    BEGIN
        presented := fencegate.presented(fenced);
    EXCEPTION WHEN SQLSTATE 'LF003' THEN
        RAISE LOG 'fencegate guard: resource "%" would reject a write with LF003', fenced;
        RETURN;
    END;
    SELECT token INTO highest FROM fencegate_state.epoch WHERE resource = fenced;
    IF presented IS NULL AND NOT may_lack_token THEN
        RAISE LOG 'fencegate guard: resource "%" would reject a write with LF002', fenced;
    ELSIF presented < highest THEN
        RAISE LOG 'fencegate guard: resource "%" would reject a write with LF001, presented=% highest=%', fenced, presented, highest;
    END IF;
END
$function$;

-- The resource's name for a key, between its prefix and suffix. Percent-encodes all bytes of the key except letters, digits and
-- _ . / : -
CREATE OR REPLACE FUNCTION fencegate.keyed(prefix text, key text, suffix text) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    bytes bytea;
    encoded text := '';
    byte integer;
BEGIN
    IF key IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'LF004',
            MESSAGE = format('cannot determine what this statement writes: the key of resource "%s{key}%s" is null', prefix, suffix),
            HINT = 'Set the key column.';
    ELSIF key COLLATE "C" ~ '^[A-Za-z0-9_./:-]*$' THEN
        RETURN prefix || key || suffix;
    END IF;
    bytes := convert_to(key, 'UTF8');
    FOR at IN 0 .. octet_length(bytes) - 1 LOOP
        byte := get_byte(bytes, at);
        encoded := encoded || CASE
            WHEN byte < 128 AND chr(greatest(byte, 1)) COLLATE "C" ~ '[A-Za-z0-9_./:-]' THEN chr(byte)
            ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END;
    END LOOP;
    RETURN prefix || encoded || suffix;
END
$function$;

-- Returns if the statement may write rows of every key of a keyed resource. No token permits that.
CREATE OR REPLACE FUNCTION fencegate.check_every_key(fenced text, may_lack_token boolean, observes boolean) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    has_token constant boolean := coalesce(btrim(current_setting('lease.fence', true), E' \t\r\n\f\x0b'), '') <> '';
BEGIN
    IF may_lack_token AND NOT has_token THEN
        RETURN;
    ELSIF observes THEN
        RAISE LOG 'fencegate guard: resource "%" would reject TRUNCATE', fenced;
        RETURN;
    ELSIF NOT has_token THEN
        RAISE EXCEPTION USING ERRCODE = 'LF002',
            MESSAGE = format('resource "%s" is fenced, and this session has no token for it', fenced),
            DETAIL = format('resource=%s', fenced),
            HINT = fencegate.missing_token_hint();
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LF004',
        MESSAGE = format('cannot determine what this statement writes: TRUNCATE removes rows of every key of %s', fenced),
        DETAIL = format('resource=%s', fenced),
        HINT = 'Use DELETE for the rows of one key.';
END
$function$;

-- The triggers. They depend only on their arguments: mode, on_missing, the resource's name (for a keyed one: the prefix, the key's
-- column, the suffix), then the exempt roles.
--
-- RETURN NEW: without it, a BEFORE trigger for rows would skip the row. Other triggers need no result.

-- For tables of one resource that is enforced. Without SET search_path, as is_admitted.
CREATE OR REPLACE FUNCTION fencegate.guard_table() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF SESSION_USER OPERATOR(pg_catalog.=) ANY (TG_ARGV[5:]) THEN
        NULL;
    ELSIF NOT fencegate.is_admitted(TG_ARGV[2], TG_ARGV[2]) THEN
        PERFORM fencegate.check_write(TG_ARGV[2], TG_ARGV[2], TG_ARGV[1] OPERATOR(pg_catalog.=) 'allow');
    END IF;
    RETURN NEW;
END
$function$;

-- For all other tables. Not SECURITY DEFINER, because to_jsonb runs casts that a table's owner may have created.
CREATE OR REPLACE FUNCTION fencegate.guard() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    observes constant boolean := TG_ARGV[0] = 'observe';
    may_lack_token constant boolean := TG_ARGV[1] = 'allow';
    key_column constant text := TG_ARGV[3];
    keys text[];
    key text;
    resource text;
    family text;
BEGIN
    IF session_user = ANY (TG_ARGV[5:]) THEN
        RETURN NEW;
    ELSIF key_column = '' AND observes THEN
        PERFORM fencegate.observe_write(TG_ARGV[2], may_lack_token);
        RETURN NEW;
    ELSIF key_column = '' THEN -- A trigger of an earlier version, on a table whose owner has not installed this version yet.
        IF NOT fencegate.is_admitted(TG_ARGV[2], TG_ARGV[2]) THEN
            PERFORM fencegate.check_write(TG_ARGV[2], TG_ARGV[2], may_lack_token);
        END IF;
        RETURN NEW;
    ELSIF TG_LEVEL = 'STATEMENT' THEN
        PERFORM fencegate.check_every_key(format('%s{%s}%s', TG_ARGV[2], key_column, TG_ARGV[4]), may_lack_token, observes);
        RETURN NEW;
    END IF;
    -- An AFTER trigger, unless the row moves to another partition: BEFORE triggers may change the key or skip the row.
    IF TG_OP <> 'INSERT' THEN
        keys := ARRAY[to_jsonb(OLD) ->> key_column];
    END IF;
    IF TG_OP <> 'DELETE' THEN
        key := to_jsonb(NEW) ->> key_column;
        IF TG_OP = 'INSERT' OR key IS DISTINCT FROM keys[1] THEN
            keys := keys || key;
        END IF;
    END IF;
    family := TG_ARGV[2] || '{}' || TG_ARGV[4];
    FOREACH key IN ARRAY keys LOOP
        resource := fencegate.keyed(TG_ARGV[2], CASE WHEN observes THEN coalesce(key, '') ELSE key END, TG_ARGV[4]);
        IF observes THEN
            PERFORM fencegate.observe_write(resource, may_lack_token);
        ELSIF NOT fencegate.is_admitted(resource, family) THEN
            PERFORM fencegate.check_write(resource, family, may_lack_token);
        END IF;
    END LOOP;
    RETURN NEW;
END
$function$;

-- A role that creates a trigger needs EXECUTE on the trigger's function. Trigger functions cannot be called otherwise.
GRANT EXECUTE ON FUNCTION fencegate.is_admitted(text, text), fencegate.observe_write(text, boolean), fencegate.keyed(text, text, text),
    fencegate.check_every_key(text, boolean, boolean), fencegate.guard_table(), fencegate.guard() TO PUBLIC;
