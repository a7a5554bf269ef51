-- Whether this session may write to a resource, decided in the session's own transaction: for the guard's triggers, and for
-- fencegate.claim. Run after schema.sql, in the same transaction, by `init` and by `guard install`. May be run again at any time.
-- All names are in pg_catalog or qualified, so the caller's search_path has no effect.

-- The token that this session presents for a resource. Null if there is none. A value that the proxy would reject is LF003, except
-- a list that names another resource twice. The cost applies to each row: a list may be 64 KiB long.
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
        -- Much faster than one translate().
        FOREACH space IN ARRAY ARRAY[' ', E'\t', E'\r', E'\n', E'\f', E'\x0b'] LOOP
            list := replace(list, space, '');
        END LOOP;
        -- No token in the list may be 0 or exceed bigint. LIKE is a cheap test that most lists pass.
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

-- This server process. IMMUTABLE is correct within a process, and one process makes and runs a plan, so these functions are
-- constants in the plan. Without it, each transaction would copy the states of all processes.
CREATE OR REPLACE FUNCTION fencegate.own_pid() RETURNS integer
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT pg_backend_pid()$function$;
CREATE OR REPLACE FUNCTION fencegate.own_start() RETURNS timestamptz
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())$function$;

-- The hint of LF002. A subscription's worker has no client that could set a token.
CREATE OR REPLACE FUNCTION fencegate.missing_token_hint() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE WHEN backend_type LIKE 'logical replication%'
        THEN 'Rows of a subscription need a token, or an exempt owner: see `fencegate guard status`.'
        ELSE 'SET lease.fence to the fencing token that the leader election issued, or connect with options=-clease.fence=TOKEN.' END
    FROM pg_stat_get_activity(pg_backend_pid())
$function$;

-- Takes the shared lock of a resource until the transaction ends. Waits for at most 10 s. Any role may take that lock: a process
-- that holds it exclusively, or waits to, for more than 100 ms is terminated, except control connections, which hold it briefly.
-- take_lock takes it in a subtransaction, for the reason given at is_admitted.
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
            HINT = 'Nothing was written. Retry. If the error persists, terminate these processes with pg_terminate_backend, and end prepared transactions with ROLLBACK PREPARED.';
    END IF;
END
$function$;
REVOKE ALL ON FUNCTION fencegate.await_lock(text) FROM PUBLIC;

-- Returns if this server process may write to the resource until its transaction ends, although is_admitted was false. Raises an
-- error otherwise. At READ COMMITTED it does not look for an admission again, unless another process holds the lock.
--
-- Any role may call it. It reveals nothing, and takes only locks that any role can take, apart from the lock of the caller's own
-- admission. It terminates other processes only for the lock of a resource with an epoch, for which they have no use.
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

    -- In a subtransaction, as in is_admitted. If another process holds the lock, this locks the row itself. No other role can do
    -- that, and it prevents a DELETE as well. A row that is younger than the snapshot, or is being deleted, cannot be locked: then
    -- the process counts as not admitted.
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
        -- The snapshot may be older than the admission, or older than its end. A unique index shows the current rows. No
        -- SERIALIZABLE transaction reads admissions, so this insert conflicts with no other leader's transaction.
        BEGIN
            INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy)
                VALUES (fencegate.own_pid(), fencegate.own_start(), fenced, coalesce((SELECT generation FROM fencegate_state.epoch
                    WHERE resource = fenced), 1), presented, 'probe');
            RAISE EXCEPTION USING ERRCODE = 'LF000';
        EXCEPTION
            WHEN unique_violation THEN
                RETURN;
            WHEN SQLSTATE 'LF000' THEN
                NULL; -- There was no such row. The inserted one is rolled back.
        END;
    END IF;

    -- Not admitted. While this process holds the lock, no other one raises the epoch: a Publish takes the lock exclusively, and so
    -- does a process that acquires a lease. Without an epoch no token is in force, and the epoch is not read again.
    is_locked := EXISTS (SELECT FROM fencegate_state.epoch WHERE resource = fenced);
    IF is_locked THEN
        PERFORM fencegate.await_lock(fenced);
    END IF;
    IF NOT is_locked THEN
        NULL;
    ELSIF sees_current THEN
        SELECT * INTO epoch FROM fencegate_state.epoch WHERE resource = fenced;
    ELSE
        -- Fails with 40001 if the row has changed since the snapshot. FOR KEY SHARE would not fail. The lock above keeps the
        -- row as it is, so the row's own lock is released: no process waits for it.
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
            HINT = 'A newer leader has taken over. Stop this work, and campaign again before further writes.';
    ELSIF presented = epoch.token THEN
        RAISE EXCEPTION USING ERRCODE = 'LF006',
            MESSAGE = format('cannot prove which token for resource "%s" is the highest: its predecessors have not all ended yet', fenced),
            DETAIL = format('resource=%s', fenced),
            HINT = 'Nothing was written. Retry. If the error persists, renew the lease at isolation level READ COMMITTED, or see the proxy''s log.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LF004',
        MESSAGE = format('token %s for resource "%s" is not in force yet, and the statement does not show that it writes to the resource', presented, fenced),
        DETAIL = format('resource=%s presented=%s', fenced, presented) || coalesce(' highest=' || epoch.token, ''),
        HINT = 'If the policy names a lease, acquire or renew it, and commit. Otherwise connect through the proxy and retry: the proxy puts the token in force if the session''s role may lock a table of the resource. If the role may not, name the function that writes the table under functions: in the policy. A token never comes into force for a resource that no policy names or that is only observed, or for an exempt role.';
END
$function$;

-- Acts like the first write under this session's token, but writes nothing: afterwards the token is in force, and no process of an
-- older one is left. Returns the token. Without a name, claims every resource in the list of lease.fence, and returns the highest token.
--
-- Through the proxy, the error about a token that is not in force makes the proxy raise the fence and send the statement again.
CREATE OR REPLACE FUNCTION fencegate.claim(resource text DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    presents constant text := btrim(current_setting('lease.fence', true), E' \t\r\n\f\x0b');
    sees_current constant boolean := current_setting('transaction_isolation') LIKE 'read %';
    claimed text;
    claimed_token bigint;
    highest bigint;
BEGIN
    IF resource IS NULL AND presents <> '' AND presents !~ '=' THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'cannot determine which resource to claim: the session presents one token for all resources',
            HINT = 'Name the resource: SELECT fencegate.claim(''scheduler'').';
    ELSIF resource IS NULL AND coalesce(presents, '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'LF002',
            MESSAGE = 'this session has no token with which to claim a resource',
            HINT = fencegate.missing_token_hint();
    ELSIF NOT sees_current AND current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction',
            MESSAGE = 'cannot claim a resource in a read-only transaction at this isolation level',
            HINT = 'Call fencegate.claim before the transaction, or begin it READ WRITE.';
    END IF;
    FOR claimed IN SELECT coalesce(resource, btrim(split_part(entry, '=', 1), E' \t\r\n\f\x0b'))
        FROM regexp_split_to_table(CASE WHEN resource IS NULL THEN presents ELSE '' END, ',') AS entry
    LOOP
        PERFORM fencegate.check_write(claimed, claimed, false);
        claimed_token := fencegate.presented(claimed);
        -- A snapshot from before the token was in force does not show the last commits of older holders.
        IF NOT sees_current AND NOT EXISTS (SELECT FROM fencegate_state.epoch AS e
                WHERE e.resource = claimed AND e.token = claimed_token AND e.drained) THEN
            RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
                MESSAGE = format('the transaction''s snapshot is older than token %s of resource "%s"', claimed_token, claimed),
                DETAIL = format('resource=%s presented=%s', claimed, claimed_token),
                HINT = 'Retry the transaction. Call fencegate.claim before the transaction reads.';
        END IF;
        highest := greatest(highest, claimed_token);
    END LOOP;
    RETURN highest;
END
$function$;

-- Creating a trigger requires EXECUTE on the functions that it calls.
GRANT USAGE ON SCHEMA fencegate TO PUBLIC;
GRANT EXECUTE ON FUNCTION fencegate.presented(text), fencegate.own_pid(), fencegate.own_start(), fencegate.missing_token_hint(),
    fencegate.check_write(text, text, boolean), fencegate.claim(text) TO PUBLIC;
