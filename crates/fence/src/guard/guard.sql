-- The guard's functions. Run as one transaction after schema.sql; may be run again at any time.
-- Everything is looked up in pg_catalog or named with its schema: no caller's search_path has a say.

-- The token of this session for a resource; null without one. What the proxy would refuse is LF003, but for another
-- resource that is named twice. The cost counts for each row: a list may be 64 KiB long.
CREATE OR REPLACE FUNCTION fencegate.presented(fenced text) RETURNS bigint
    LANGUAGE plpgsql STABLE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    value text := btrim(current_setting('lease.fence', true), E' \t\r\n\f\x0b');
    blank constant text := E'[ \t\r\n\f\x0b]*';
    entry constant text := blank || '[A-Za-z0-9_./:%-]+' || blank || '=' || blank || '[0-9]{1,19}' || blank;
    before constant text := ',' || fenced || '=';
    space text;
    list text;
    token text;
BEGIN
    IF value IS NULL OR value = '' THEN
        RETURN NULL;
    ELSIF value !~ '=' THEN
        token := value;
    ELSIF octet_length(value) <= 65536 AND value ~ ('^' || entry || '(,' || entry || ')*$') THEN
        list := ',' || value || ',';
        -- Many times as fast as translate() in one go.
        FOREACH space IN ARRAY ARRAY[' ', E'\t', E'\r', E'\n', E'\f', E'\x0b'] LOOP
            list := replace(list, space, '');
        END LOOP;
        -- No token in it may be 0 or above the highest; LIKE tells cheaply that there is none to look at.
        IF (list LIKE '%=0%' AND list ~ '=0+,') OR (list LIKE '%=9%' AND EXISTS (
                SELECT FROM regexp_matches(list, '=(9[0-9]{18}),', 'g') AS long
                WHERE long[1]::numeric > 9223372036854775807)) THEN
            token := NULL;
        ELSIF split_part(list, before, 2) = '' THEN
            RETURN NULL;
        ELSIF split_part(list, before, 3) = '' THEN
            token := split_part(split_part(list, before, 2), ',', 1);
        END IF;
    END IF;
    IF token ~ '^[0-9]{1,19}$' AND token::numeric BETWEEN 1 AND 9223372036854775807 THEN
        RETURN token::bigint;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LF003',
        MESSAGE = 'the session''s value of "lease.fence" is not a fencing token',
        DETAIL = format('resource=%s', fenced),
        HINT = 'Use one token, SET lease.fence = 47, or a list by resource, SET lease.fence = ''scheduler=47, billing=55''.';
END
$function$;

-- This server process. IMMUTABLE holds within a process, and a plan that calls these is made and run by one process: they are
-- constants in it. To read the start anew would copy the states of all processes, once for each transaction.
CREATE OR REPLACE FUNCTION fencegate.own_pid() RETURNS integer
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT pg_backend_pid()$function$;
CREATE OR REPLACE FUNCTION fencegate.own_start() RETURNS timestamptz
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())$function$;

-- Is this server process admitted to the resource, up to the end of its transaction? If the answer is true, it is. If the answer is
-- false, it may still be: check_write finds out.
--
-- While the process holds the lock, up to the end of its transaction, nobody deletes its admission: the DELETE needs the lock
-- exclusively, and where it does not get it the process is ended. So what the query sees after the lock stays true. The function
-- does not wait for the lock, because anybody can hold it. The lock is that of a family of resources: all keys of a keyed one, or
-- a single one. A lock for each key would fill the server's table of locks when many keys are loaded. A lock for all of them only
-- means that a drain may end a process which it could have spared.
--
-- The transaction inherits the lock from a subtransaction. Taken plainly, it would belong to the cursor that calls the writing
-- function. When a cursor fails in a savepoint, the server releases its locks and keeps what it wrote before the savepoint.
--
-- VOLATILE: under READ COMMITTED the query sees what is committed when it starts, after the lock. Nearly every write waits for
-- this function. So it does without SET search_path, which takes longer than the lock: all names and operators are qualified.
-- Nearly all sessions present a token as it is printed; for any other the query calls presented(). The cost of that keeps the
-- plan to an index, unless VACUUM has counted no admission or a single one.
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
        NULL; -- Nothing raises it: this makes the subtransaction.
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

-- The hint of LF002. The worker of a subscription has no client that could set a token.
CREATE OR REPLACE FUNCTION fencegate.missing_token_hint() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE WHEN backend_type LIKE 'logical replication%'
        THEN 'Rows of a subscription need a token, or an exempt owner: see `fencegate guard status`.'
        ELSE 'SET lease.fence to the fencing token that the leader election gave, or connect with options=-clease.fence=TOKEN.' END
    FROM pg_stat_get_activity(pg_backend_pid())
$function$;

-- Takes the lock of a resource, shared, until the transaction ends. Waits for 10 s at most. Everybody may take that lock: who
-- holds it alone, or waits to, for more than 100 ms is ended, but for control connections, which hold it for a moment. take_lock
-- takes it in a subtransaction, as is_admitted has to.
CREATE OR REPLACE FUNCTION fencegate.await_lock(fenced text) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    holders constant text := fencegate.take_lock(fenced, false, '10 s');
BEGIN
    IF holders IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'LF006',
            MESSAGE = format('cannot prove which token for resource "%s" is the highest: its lock is held by %s',
                fenced, holders),
            DETAIL = format('resource=%s', fenced),
            HINT = 'Nothing was written. Retry. If the error persists, end them on the server: pg_terminate_backend, or ROLLBACK PREPARED for what is prepared.';
    END IF;
END
$function$;
REVOKE ALL ON FUNCTION fencegate.await_lock(text) FROM PUBLIC;

-- May this server process write to the resource, as far as its transaction goes, although is_admitted has just said false? Returns,
-- or raises. At READ COMMITTED it does not look for an admission again, unless somebody else holds the lock.
--
-- Everybody may call it: it gives nothing away, and takes only locks that everybody can take, but for that of the caller's own
-- admission. It ends others only for the lock of a resource that has an epoch, which nobody else has a use for.
CREATE OR REPLACE FUNCTION fencegate.check_write(fenced text, family text, may_lack_token boolean) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    presented constant bigint := fencegate.presented(fenced);
    sees_current constant boolean := current_setting('transaction_isolation') LIKE 'read %';
    holds_lock boolean;
    is_locked boolean;
    epoch fencegate_state.epoch;
BEGIN
    IF presented IS NULL THEN
        IF may_lack_token THEN
            RETURN;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'LF002',
            MESSAGE = format('resource "%s" is fenced, and this session has no token for it', fenced),
            DETAIL = format('resource=%s', fenced),
            HINT = fencegate.missing_token_hint();
    END IF;

    -- In a subtransaction, as in is_admitted. Where somebody else holds the lock, the row itself is locked, which nobody else can,
    -- and which keeps it as well. Only one that is younger than the snapshot, or about to be deleted, cannot be locked: the
    -- process counts as not admitted.
    BEGIN
        holds_lock := pg_try_advisory_xact_lock_shared(hashtext(family), pg_backend_pid());
        IF NOT holds_lock THEN
            PERFORM FROM fencegate_state.admission AS a
                WHERE a.pid = fencegate.own_pid() AND a.backend_start = fencegate.own_start()
                AND a.resource = fenced AND a.token = presented
                AND a.database = fencegate.own_database() AND a.system_identifier = fencegate.own_system_identifier()
                FOR KEY SHARE SKIP LOCKED;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    EXCEPTION WHEN serialization_failure THEN
        NULL; -- The row was deleted since the snapshot.
    END;
    IF holds_lock AND NOT sees_current THEN
        -- The snapshot may be older than the admission, or than its end. A unique index knows what is there now. Nobody
        -- reads admissions under SERIALIZABLE, so that this insert conflicts with no other leader's transaction.
        BEGIN
            INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy)
                VALUES (fencegate.own_pid(), fencegate.own_start(), fenced, coalesce((SELECT generation FROM fencegate_state.epoch
                    WHERE resource = fenced), 1), presented, 'probe');
            RAISE EXCEPTION USING ERRCODE = 'LF000';
        EXCEPTION
            WHEN unique_violation THEN
                RETURN;
            WHEN SQLSTATE 'LF000' THEN
                NULL; -- It is not there, and what was inserted is rolled back.
        END;
    END IF;

    -- Not admitted. While the lock is held, the epoch is not raised: a Publish takes it exclusively, and so does who acquires
    -- a lease. Where there is no epoch, nothing can be in force; what comes after that look is not read, without the lock.
    is_locked := EXISTS (SELECT FROM fencegate_state.epoch WHERE resource = fenced);
    IF is_locked THEN
        PERFORM fencegate.await_lock(fenced);
    END IF;
    IF NOT is_locked THEN
        NULL;
    ELSIF sees_current THEN
        SELECT * INTO epoch FROM fencegate_state.epoch WHERE resource = fenced;
    ELSE
        -- Fails with 40001 if the row has changed since the snapshot; FOR KEY SHARE would not. What is read stays true by
        -- the lock above: that of the row is given back, so that nobody has to wait for it.
        BEGIN
            SELECT * INTO epoch FROM fencegate_state.epoch WHERE resource = fenced FOR SHARE;
            RAISE EXCEPTION USING ERRCODE = 'LF000';
        EXCEPTION WHEN SQLSTATE 'LF000' THEN
            NULL;
        END;
    END IF;
    IF presented = epoch.token AND epoch.drained THEN
        RETURN;
    ELSIF presented < epoch.token THEN
        RAISE EXCEPTION USING ERRCODE = 'LF001',
            MESSAGE = format('fencing token %s for resource "%s" is stale: the highest is %s', presented, fenced, epoch.token),
            DETAIL = format('resource=%s presented=%s highest=%s', fenced, presented, epoch.token),
            HINT = 'A newer leader has taken over. Stop this work; campaign again before you write again.';
    ELSIF presented = epoch.token THEN
        RAISE EXCEPTION USING ERRCODE = 'LF006',
            MESSAGE = format('cannot prove which token for resource "%s" is the highest: its predecessors have not all ended yet', fenced),
            DETAIL = format('resource=%s', fenced),
            HINT = 'Nothing was written. Retry. If the error persists, renew the lease at READ COMMITTED, or see the proxy''s log.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LF004',
        MESSAGE = format('token %s for resource "%s" is not in force yet, and nothing in the statement told the proxy to put it in force', presented, fenced),
        DETAIL = format('resource=%s presented=%s', fenced, presented) || coalesce(' highest=' || epoch.token, ''),
        HINT = 'Where the policy names a lease: acquire or renew it, and commit that. Otherwise connect to the proxy, not around it, and try again: it puts the token in force if the session''s role may lock a table of the resource. If it may not, name the function that writes the table under functions: in the policy.';
END
$function$;

-- For a fence that only observes: a line in the server's log about what it would reject. Takes no lock.
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

-- The name of a keyed resource, from what stands before and after the key: every other byte of it than letters, digits
-- and _ . / : - is percent-encoded.
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
            MESSAGE = format('cannot tell what this statement would write: the key of resource "%s{key}%s" is null', prefix, suffix),
            HINT = 'Give the row a key.';
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

-- May the statement write rows of every key of a keyed resource? Nobody's tokens tell that.
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
        MESSAGE = format('cannot tell what this statement would write: TRUNCATE takes rows of every key of %s', fenced),
        DETAIL = format('resource=%s', fenced),
        HINT = 'DELETE the rows of one key.';
END
$function$;

-- The triggers. Their arguments are all that they go by: mode, on_missing, the resource's name (of a keyed one what stands
-- before the key, the key's column, what stands after it), then the exempt roles.
--
-- RETURN NEW: a BEFORE trigger for rows would skip the row without it; the others need no result.

-- That of tables of a single resource, which is enforced. As is_admitted, it does without SET search_path.
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

-- That of all others. Not SECURITY DEFINER: to_jsonb runs casts that a table's owner may have made.
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
    ELSIF key_column = '' THEN -- An earlier version's trigger on a table whose owner has not installed this one's yet.
        IF NOT fencegate.is_admitted(TG_ARGV[2], TG_ARGV[2]) THEN
            PERFORM fencegate.check_write(TG_ARGV[2], TG_ARGV[2], may_lack_token);
        END IF;
        RETURN NEW;
    ELSIF TG_LEVEL = 'STATEMENT' THEN
        PERFORM fencegate.check_every_key(format('%s{%s}%s', TG_ARGV[2], key_column, TG_ARGV[4]), may_lack_token, observes);
        RETURN NEW;
    END IF;
    -- After the row was written, if it was not moved: triggers before it may still have changed its key, or skipped it.
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

-- Those of the triggers too: whoever creates a trigger needs them, and nobody can call them otherwise.
GRANT USAGE ON SCHEMA fencegate TO PUBLIC;
GRANT EXECUTE ON FUNCTION fencegate.presented(text), fencegate.own_pid(), fencegate.own_start(), fencegate.is_admitted(text, text),
    fencegate.missing_token_hint(), fencegate.check_write(text, text, boolean), fencegate.observe_write(text, boolean), fencegate.keyed(text, text, text),
    fencegate.check_every_key(text, boolean, boolean), fencegate.guard_table(), fencegate.guard() TO PUBLIC;
