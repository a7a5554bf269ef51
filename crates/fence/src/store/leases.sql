-- Leases: elections whose coordinator is this database. See docs/lead/leases.md. Run after schema.sql, in the same transaction.
-- Names compare byte by byte. With another collation, a new version of the system's library could break the index, and with it
-- the uniqueness of an election's row.

-- The last lease of each election. The row exists while the lease is in force, and for 30 days afterwards.
CREATE TABLE IF NOT EXISTS fencegate_state.lease (
    election text COLLATE "C" PRIMARY KEY,
    token    bigint NOT NULL DEFAULT 0 CHECK (token >= 0),
    holder   text COLLATE "C" NOT NULL DEFAULT '',
    -- Text shown in place of the holder, see proclaim.
    shown    text NOT NULL DEFAULT '',
    -- The role that acquired it.
    role     text NOT NULL DEFAULT '',
    acquired timestamptz NOT NULL DEFAULT '-infinity',
    renewed  timestamptz NOT NULL DEFAULT '-infinity',
    expires  timestamptz NOT NULL DEFAULT '-infinity',
    released boolean NOT NULL DEFAULT true,
    -- The day of expires, in UTC. Indexed instead of expires, so that most renewals change no index.
    last_day date NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- The last 100 ended leases of each election. A lease that ran out has either expired or was overtaken by another holder.
CREATE TABLE IF NOT EXISTS fencegate_state.lease_history (
    election text COLLATE "C" NOT NULL,
    token    bigint NOT NULL,
    holder   text NOT NULL,
    role     text NOT NULL,
    acquired timestamptz NOT NULL,
    renewed  timestamptz NOT NULL,
    ended    timestamptz NOT NULL,
    how      text NOT NULL CHECK (how IN ('released', 'expired', 'overtaken')),
    PRIMARY KEY (election, token)
);

-- The elections that each role may lead. `*` in a pattern matches any text.
CREATE TABLE IF NOT EXISTS fencegate_state.lease_grant (
    role    regrole NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    PRIMARY KEY (role, pattern)
);

-- The resources whose policies name a lease, as recorded by `fencegate guard install`. `{}` stands for the key. A new lease raises
-- their fences.
CREATE TABLE IF NOT EXISTS fencegate_state.leased (
    resource text COLLATE "C" PRIMARY KEY,
    lease    text COLLATE "C" NOT NULL
);

-- One sequence for all elections, so that later tokens are higher even after a row was pruned. Must never be set back.
CREATE SEQUENCE IF NOT EXISTS fencegate_state.lease_token;

DO $$BEGIN
    IF to_regclass('fencegate_state.lease_last_day') IS NULL THEN
        CREATE INDEX lease_last_day ON fencegate_state.lease (last_day);
    END IF;
END$$;

-- The calling role. Within SECURITY DEFINER, current_user is the owner.
CREATE OR REPLACE FUNCTION fencegate.lease_caller() RETURNS text
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END
$function$;

CREATE OR REPLACE FUNCTION fencegate.lease_matches(election text, pattern text) RETURNS boolean
    LANGUAGE sql IMMUTABLE -- No SET: the server inlines it.
AS $function$
    -- E'' strings do not depend on standard_conforming_strings.
    SELECT $1 COLLATE "C" LIKE replace(replace(replace(replace(
        $2, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%')
$function$;

-- The schema's owner needs a grant like any other role: if it is a superuser, functions of other roles may run in its sessions.
CREATE OR REPLACE FUNCTION fencegate.lease_may(caller text, election text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    -- Ignores a superuser's implicit memberships: functions of other roles run in its sessions, for example in autovacuum's ANALYZE.
    is_member boolean := NOT (SELECT rolsuper FROM pg_roles WHERE rolname = caller);
BEGIN
    RETURN EXISTS (
        SELECT FROM fencegate_state.lease_grant g
        WHERE (g.role = (SELECT oid FROM pg_roles WHERE rolname = caller) OR is_member AND pg_has_role(caller, g.role, 'USAGE'))
          AND fencegate.lease_matches($2, g.pattern));
END
$function$;

-- Returns the calling role if it may lead the election. Raises an error otherwise.
CREATE OR REPLACE FUNCTION fencegate.lease_role(election text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    caller text := fencegate.lease_caller();
BEGIN
    IF $1 IS NULL OR octet_length($1) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the name of an election has 1 to 512 bytes',
            HINT = 'Choose a shorter name, for example a digest.';
    END IF;
    IF fencegate.lease_may(caller, $1) THEN
        RETURN caller;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42501',
        MESSAGE = format('role %s may not lead election %s', caller, $1),
        HINT = 'Grant it with `fencegate init --leases-for ROLE --elections PATTERN`.';
END
$function$;

-- Checks the duration of a lease. Months and days are not permitted, because their length depends on the time zone.
CREATE OR REPLACE FUNCTION fencegate.lease_time(ttl interval) RETURNS interval
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    seconds double precision := extract(epoch FROM $1);
BEGIN
    IF $1 IS NULL OR NOT seconds BETWEEN 0.1 AND 86400 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the ttl of a lease is 100 ms to 1 day',
            HINT = 'Include the unit: ''10 s''.';
    END IF;
    RETURN make_interval(secs => seconds);
END
$function$;

CREATE OR REPLACE FUNCTION fencegate.lease_holder(holder text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF $1 IS NULL OR octet_length($1) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the name of a holder has 1 to 512 bytes',
            HINT = 'Choose a shorter name, for example host and process.';
    END IF;
    RETURN $1;
END
$function$;

-- The results must survive a crash. Holds until the transaction ends, unlike the SET clause of a function.
CREATE OR REPLACE FUNCTION fencegate.lease_durable() RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$function$;

-- Records an ended lease in the history. The caller has locked its row.
CREATE OR REPLACE FUNCTION fencegate.lease_ended(lease fencegate_state.lease, ended timestamptz, how text) RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    INSERT INTO fencegate_state.lease_history (election, token, holder, role, acquired, renewed, ended, how)
    SELECT $1.election, $1.token, $1.holder, $1.role, $1.acquired, $1.renewed, $2, $3
    ON CONFLICT DO NOTHING;
    DELETE FROM fencegate_state.lease_history h
    WHERE h.election = $1.election
      AND h.token <= (SELECT o.token FROM fencegate_state.lease_history o WHERE o.election = $1.election
                      ORDER BY o.token DESC OFFSET 100 LIMIT 1)
$function$;

CREATE OR REPLACE FUNCTION fencegate.lease_day(at timestamptz) RETURNS date
    LANGUAGE sql IMMUTABLE
AS $function$
    SELECT ($1 AT TIME ZONE 'UTC')::date
$function$;

-- Extends a lease in force. The caller has locked its row. Returns the new expiry, which is never earlier than a previous one.
CREATE OR REPLACE FUNCTION fencegate.lease_extend(election text, at timestamptz, lasting interval) RETURNS timestamptz
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    UPDATE fencegate_state.lease AS l
    SET renewed = $2, expires = greatest(l.expires, $2 + $3), last_day = fencegate.lease_day(greatest(l.expires, $2 + $3))
    WHERE l.election = $1 RETURNING l.expires
$function$;

-- Deletes up to two elections whose last lease ended 30 days ago. Their next token is still higher.
CREATE OR REPLACE FUNCTION fencegate.lease_prune() RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $function$
    WITH pruned AS (
        DELETE FROM fencegate_state.lease l
        WHERE l.election IN (
            SELECT o.election FROM fencegate_state.lease o
            WHERE o.last_day < fencegate.lease_day(clock_timestamp()) - 30
              -- Higher only where rows were restored without the sequence.
              AND o.token <= (SELECT s.last_value FROM fencegate_state.lease_token s)
            ORDER BY o.last_day LIMIT 2 FOR UPDATE SKIP LOCKED)
        RETURNING l.election
    )
    DELETE FROM fencegate_state.lease_history h USING pruned WHERE h.election = pruned.election
$function$;

-- True if this is the canonical encoding of a key in a name. Percent-encoding permits others, but a key has only one name. The
-- limit of 256 bytes is that of policies.
CREATE OR REPLACE FUNCTION fencegate.is_key(encoded text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    key bytea;
BEGIN
    IF $1 COLLATE "C" !~ '^([A-Za-z0-9_./:-]|%[0-9A-F]{2})*$'
        OR $1 COLLATE "C" ~ '%(2[DEF]|3[0-9A]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A])' THEN
        RETURN false;
    END IF;
    SELECT string_agg(CASE length(part[1]) WHEN 1 THEN part[1]::bytea ELSE decode(substr(part[1], 2), 'hex') END, '' ORDER BY number)
        INTO key FROM regexp_matches($1, '%..|.', 'g') WITH ORDINALITY AS parts(part, number);
    RETURN key IS NULL OR octet_length(key) <= 256 AND convert_from(key, 'UTF8') IS NOT NULL;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN false;
END
$function$;

-- The resources whose tokens this election issues. A lease whose name matches no valid key issues none.
CREATE OR REPLACE FUNCTION fencegate.lease_resources(election text) RETURNS SETOF text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT d.resource FROM fencegate_state.leased d WHERE d.lease = $1 AND strpos(d.lease, '{}') = 0
    UNION ALL
    SELECT replace(k.resource, '{}', k.key)
    FROM (SELECT d.resource, substr($1, strpos(d.lease, '{}'), length($1) - length(d.lease) + 2) AS key
        FROM fencegate_state.leased d
        WHERE strpos(d.lease, '{}') > 0 AND length($1) >= length(d.lease) - 2
          AND starts_with($1, split_part(d.lease, '{}', 1))
          AND right($1, length(split_part(d.lease, '{}', 2))) = split_part(d.lease, '{}', 2)) AS k
    WHERE fencegate.is_key(k.key)
$function$;

-- True if a session of this login role, or of a role that it may become, may acquire the lease that issues the resource's tokens.
CREATE OR REPLACE FUNCTION fencegate.lease_candidate(login oid, resource text) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT EXISTS (
        SELECT FROM fencegate_state.leased d JOIN fencegate_state.lease_grant g ON pg_has_role($1, g.role, 'MEMBER')
        WHERE (d.resource = $2 AND strpos(d.lease, '{}') = 0 AND fencegate.lease_matches(d.lease, g.pattern))
           OR (strpos(d.resource, '{}') > 0 AND strpos(d.lease, '{}') > 0 AND length($2) >= length(d.resource) - 2
               AND starts_with($2, split_part(d.resource, '{}', 1))
               AND right($2, length(split_part(d.resource, '{}', 2))) = split_part(d.resource, '{}', 2)
               AND fencegate.lease_matches(replace(d.lease, '{}',
                   substr($2, strpos(d.resource, '{}'), length($2) - length(d.resource) + 2)), g.pattern)))
$function$;

-- Puts the token of a lease in force for its resources, if it is not yet: when the token is issued, and with each renewal. As when
-- a proxy raises a fence, no process may write under a lower token afterwards. A process that does so seen only by the guard is
-- terminated after 100 ms. If a proxy has admitted processes, the fence stays undrained, and the proxies drain it.
--
-- If a fence cannot be raised until `latest`, the call that issues the token fails. The mere extension of a lease succeeds with a
-- warning: an obstacle to one fence must not end the leadership. Writes there are refused until a later renewal has raised the fence.
--
-- Holds the lock of the resource until the transaction ends. A process that passes the guard without an admission holds the lock
-- shared until its own transaction ends, and so does an Admit. If there is no epoch, no admission and no earlier token of this
-- election, no process has passed. Otherwise the epoch's row may have been deleted by hand: a new row is above all admissions, in a
-- generation of its own.
CREATE OR REPLACE FUNCTION fencegate.lease_fence(election text, issued bigint, is_new boolean, latest timestamptz) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '100ms'
AS $function$
#variable_conflict use_column
DECLARE
    blocked constant text := 'the fence of resource "%s" cannot be raised: its lock is held by %s';
    -- An older snapshot may lack an admission.
    sees_current constant boolean := current_setting('transaction_isolation') LIKE 'read %';
    fenced   text;
    holders  text;
    is_alone boolean;
BEGIN
    FOR fenced IN SELECT fencegate.lease_resources($1) LOOP
        CONTINUE WHEN EXISTS (SELECT FROM fencegate_state.epoch e WHERE e.resource = fenced
            AND (e.token > issued OR e.token = issued AND (e.drained OR NOT sees_current)));
        -- No other code can take this lock. It marks a process that acquires a lease: see end_holders.
        LOCK TABLE fencegate_state.leased IN ROW SHARE MODE;
        IF NOT EXISTS (SELECT FROM fencegate_state.epoch e WHERE e.resource = fenced)
            AND NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = fenced)
            AND NOT EXISTS (SELECT FROM fencegate_state.lease l WHERE l.election = $1 AND l.token BETWEEN 1 AND issued - 1) THEN
            -- Proxies must not wait for this row when they insert first tokens.
            PERFORM pg_try_advisory_xact_lock(hashtextextended('fencegate:' || fenced, 0));
            INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES (fenced, issued, sees_current)
                ON CONFLICT DO NOTHING;
            CONTINUE WHEN FOUND;
        END IF;
        EXIT WHEN holders IS NOT NULL AND clock_timestamp() >= latest;
        holders := fencegate.take_lock(fenced, true, latest - clock_timestamp());
        IF holders IS NOT NULL AND is_new THEN
            RAISE EXCEPTION USING ERRCODE = 'LF006', MESSAGE = format(blocked, fenced, holders),
                DETAIL = format('resource=%s', fenced),
                HINT = 'Nothing has changed. Retry. If the error persists, terminate these processes with pg_terminate_backend, and end prepared transactions with ROLLBACK PREPARED.';
        ELSIF holders IS NOT NULL THEN
            RAISE WARNING USING ERRCODE = 'LF006', MESSAGE = format(blocked, fenced, holders),
                DETAIL = format('resource=%s', fenced),
                HINT = 'The lease is extended, but writes to the resource are refused until these processes end. Terminate them with pg_terminate_backend, and end prepared transactions with ROLLBACK PREPARED.';
            CONTINUE;
        END IF;
        -- Read the processes before the prepared transactions, because a process may prepare its own in between.
        PERFORM pg_stat_clear_snapshot();
        is_alone := sees_current AND NOT EXISTS (
            SELECT FROM fencegate_state.admission a LEFT JOIN fencegate_state.epoch e USING (resource)
            JOIN pg_stat_get_activity(NULL) s ON s.pid = a.pid
            WHERE a.resource = fenced AND coalesce((a.generation, a.token) < (e.generation, issued), true)
              AND (a.system_identifier, a.database) = (fencegate.own_system_identifier(), fencegate.own_database())
              AND coalesce(s.datid = a.database AND s.backend_start = a.backend_start, true));
        is_alone := is_alone AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database());
        -- Proxies lock the row only briefly.
        PERFORM set_config('lock_timeout', '5s', true);
        INSERT INTO fencegate_state.epoch AS e (resource, generation, token, drained)
            SELECT fenced, 1 + coalesce(max(a.generation), 0), issued, is_alone FROM fencegate_state.admission a WHERE a.resource = fenced
            ON CONFLICT (resource) DO UPDATE SET token = issued, updated = clock_timestamp(), drained = is_alone
            WHERE e.token < issued OR e.token = issued AND NOT e.drained;
        PERFORM set_config('lock_timeout', '100ms', true);
        PERFORM fencegate.announce('fencegate', fenced);
    END LOOP;
END
$function$;

-- Acquires the lease of an election for this holder. Returns no row while another holder's lease is in force.
CREATE OR REPLACE FUNCTION fencegate.acquire(election text, holder text, ttl interval)
    RETURNS TABLE (token bigint, expires timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER ROWS 1
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
AS $function$
#variable_conflict use_column
DECLARE
    caller   text := fencegate.lease_role($1);
    named    text := fencegate.lease_holder($2);
    lasting  interval := fencegate.lease_time($3);
    lease    fencegate_state.lease;
    at       timestamptz;
BEGIN
    -- Most calls end here. They take no lock, so a candidate cannot delay the holder's renewal.
    SELECT * INTO lease FROM fencegate_state.lease l WHERE l.election = $1;
    IF lease.holder <> named AND NOT lease.released AND lease.expires > clock_timestamp() THEN
        RETURN;
    END IF;
    PERFORM fencegate.lease_durable();
    IF lease.election IS NULL THEN
        INSERT INTO fencegate_state.lease (election) VALUES ($1) ON CONFLICT DO NOTHING;
    END IF;
    IF lease.holder = named THEN
        SELECT * INTO lease FROM fencegate_state.lease l WHERE l.election = $1 FOR UPDATE;
    ELSE
        -- A process that has locked the row acquires, renews or releases the lease. Do not wait for the outcome.
        SELECT * INTO lease FROM fencegate_state.lease l WHERE l.election = $1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    at := clock_timestamp();
    IF NOT lease.released AND lease.expires > at THEN
        IF lease.holder = named THEN
            PERFORM fencegate.lease_fence($1, lease.token, false, at + interval '300 ms');
            RETURN QUERY SELECT lease.token, fencegate.lease_extend($1, at, lasting);
        END IF;
        RETURN;
    END IF;
    IF NOT lease.released THEN
        PERFORM fencegate.lease_ended(
            lease, lease.expires, CASE WHEN lease.holder = named THEN 'expired' ELSE 'overtaken' END);
    END IF;
    -- Take the number under the row's lock. One taken earlier could be lower than that of a later lease. It must also exceed the
    -- fence: earlier tokens may have come from another source, or a backup may have restored an older sequence.
    lease.token := greatest(nextval('fencegate_state.lease_token'), lease.token + 1, (
        SELECT max(e.token) + 1 FROM fencegate_state.epoch e
        WHERE e.resource IN (SELECT fencegate.lease_resources($1))));
    PERFORM fencegate.lease_fence($1, lease.token, true, at + interval '5 s');
    at := clock_timestamp();
    RETURN QUERY UPDATE fencegate_state.lease AS l
        SET token = lease.token, holder = named, shown = named, role = caller, acquired = at, renewed = at,
            expires = at + lasting, released = false, last_day = fencegate.lease_day(at + lasting)
        WHERE l.election = $1 RETURNING l.token, l.expires;
    PERFORM fencegate.announce('fencegate_lease', $1);
    -- At higher isolation levels, pruning would make unrelated calls fail (40001).
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM fencegate.lease_prune();
    END IF;
END
$function$;

-- Extends the lease under this token, and returns its new expiry. Raises LF001 if the lease is no longer in force.
CREATE OR REPLACE FUNCTION fencegate.renew(election text, token bigint, ttl interval) RETURNS timestamptz
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
AS $function$
#variable_conflict use_column
DECLARE
    caller  text := fencegate.lease_role($1);
    lasting interval := fencegate.lease_time($3);
    lease   fencegate_state.lease;
    at      timestamptz;
BEGIN
    PERFORM fencegate.lease_durable();
    SELECT * INTO lease FROM fencegate_state.lease l WHERE l.election = $1 FOR UPDATE;
    at := clock_timestamp();
    IF NOT FOUND OR lease.token IS DISTINCT FROM $2 OR lease.released OR lease.expires <= at THEN
        RAISE EXCEPTION USING ERRCODE = 'LF001',
            MESSAGE = format('fencing token %s of election %s is stale: %s', coalesce($2::text, 'null'), $1,
                CASE WHEN $2 < lease.token THEN format('the highest is %s', lease.token)
                     WHEN lease.token IS DISTINCT FROM $2 THEN 'there is no such lease'
                     WHEN lease.released THEN 'its lease was released'
                     ELSE format('its lease expired at %s', lease.expires) END),
            DETAIL = format('election=%s presented=%s highest=%s', $1, coalesce($2::text, 'null'), coalesce(lease.token, 0)),
            HINT = 'Stop the work under this token. Acquire the lease again before further writes.';
    END IF;
    PERFORM fencegate.lease_fence($1, lease.token, false, at + interval '300 ms');
    RETURN fencegate.lease_extend($1, at, lasting);
END
$function$;

-- Extends the leases of many elections, each under its own token, in one statement. Returns a row for each with its new expiry, or
-- null if the token is no longer in force. Returns no row for a lease that another transaction has locked, instead of waiting for it.
CREATE OR REPLACE FUNCTION fencegate.renew_all(elections text[], tokens bigint[], ttl interval)
    RETURNS TABLE (election text, expires timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    caller  text := fencegate.lease_caller();
    lasting interval := fencegate.lease_time($3);
    locked  text[];
    at      timestamptz;
BEGIN
    PERFORM fencegate.lease_durable();
    locked := ARRAY(SELECT l.election FROM fencegate_state.lease l
        WHERE l.election = ANY ($1) AND fencegate.lease_may(caller, l.election) FOR UPDATE SKIP LOCKED);
    at := clock_timestamp();
    PERFORM fencegate.lease_fence(l.election, l.token, false, at + interval '300 ms') FROM fencegate_state.lease l
        JOIN unnest($1, $2) AS asked (election, token) ON l.election = asked.election AND l.token = asked.token
        WHERE l.election = ANY (locked) AND NOT l.released AND l.expires > at
          AND EXISTS (SELECT FROM fencegate_state.leased);
    RETURN QUERY WITH renewed AS (
        UPDATE fencegate_state.lease AS l
        SET renewed = at, expires = greatest(l.expires, at + lasting),
            last_day = fencegate.lease_day(greatest(l.expires, at + lasting))
        FROM unnest($1, $2) AS asked (election, token)
        WHERE l.election = asked.election AND l.election = ANY (locked)
          AND l.token = asked.token AND NOT l.released AND l.expires > at
        RETURNING l.election, l.expires
    )
    SELECT it.election, r.expires FROM unnest(locked) AS it (election) LEFT JOIN renewed r ON r.election = it.election;
END
$function$;

-- Ends the lease under this token, and wakes waiting candidates. Returns false if the lease is no longer in force.
CREATE OR REPLACE FUNCTION fencegate.release(election text, token bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
AS $function$
#variable_conflict use_column
DECLARE
    caller text := fencegate.lease_role($1);
    lease  fencegate_state.lease;
    at     timestamptz;
BEGIN
    PERFORM fencegate.lease_durable();
    SELECT * INTO lease FROM fencegate_state.lease l WHERE l.election = $1 FOR UPDATE;
    at := clock_timestamp();
    IF NOT FOUND OR lease.token IS DISTINCT FROM $2 OR lease.released OR lease.expires <= at THEN
        RETURN false;
    END IF;
    UPDATE fencegate_state.lease AS l SET expires = at, released = true WHERE l.election = $1;
    PERFORM fencegate.lease_ended(lease, at, 'released');
    PERFORM fencegate.announce('fencegate_lease', $1);
    RETURN true;
END
$function$;

-- Makes `leader` show this text in place of the holder. The holder does not change. Returns false if the token is no longer in force.
CREATE OR REPLACE FUNCTION fencegate.proclaim(election text, token bigint, holder text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
AS $function$
#variable_conflict use_column
DECLARE
    caller text := fencegate.lease_role($1);
    named  text := fencegate.lease_holder($3);
BEGIN
    PERFORM fencegate.lease_durable();
    UPDATE fencegate_state.lease AS l SET shown = named
        WHERE l.election = $1 AND l.token = $2 AND NOT l.released AND l.expires > clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM fencegate.announce('fencegate_lease', $1);
    RETURN true;
END
$function$;

-- The leader of an election. Returns a row while the lease is in force.
CREATE OR REPLACE FUNCTION fencegate.leader(election text)
    RETURNS TABLE (holder text, token bigint, expires timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER ROWS 1
    SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    caller text := fencegate.lease_role($1);
BEGIN
    RETURN QUERY SELECT l.shown, l.token, l.expires FROM fencegate_state.lease l
        WHERE l.election = $1 AND NOT l.released AND l.expires > clock_timestamp();
END
$function$;

-- The leader of each election that the caller may lead. The owner of the schema sees all elections.
CREATE OR REPLACE FUNCTION fencegate.leases()
    RETURNS TABLE (election text, holder text, token bigint, expires timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    caller text := fencegate.lease_caller();
BEGIN
    RETURN QUERY SELECT l.election, l.shown, l.token, l.expires FROM fencegate_state.lease l
        WHERE NOT l.released AND l.expires > clock_timestamp()
          -- The owner may read the table itself.
          AND (caller = current_user OR fencegate.lease_may(caller, l.election))
        ORDER BY l.election;
END
$function$;

-- For `fencegate guard`, if the owner of a table runs it.
CREATE OR REPLACE FUNCTION fencegate.leased_resources() RETURNS TABLE (resource text, lease text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $function$SELECT resource, lease FROM fencegate_state.leased$function$;
GRANT EXECUTE ON FUNCTION fencegate.leased_resources() TO PUBLIC;

REVOKE ALL ON fencegate_state.lease, fencegate_state.lease_history, fencegate_state.lease_grant, fencegate_state.leased FROM PUBLIC;
REVOKE ALL ON SEQUENCE fencegate_state.lease_token FROM PUBLIC;
REVOKE ALL ON FUNCTION
    fencegate.lease_caller(), fencegate.lease_matches(text, text), fencegate.lease_candidate(oid, text), fencegate.lease_may(text, text), fencegate.lease_role(text), fencegate.lease_time(interval), fencegate.lease_holder(text), fencegate.lease_prune(),
    fencegate.lease_durable(), fencegate.lease_day(timestamptz), fencegate.lease_extend(text, timestamptz, interval),
    fencegate.is_key(text), fencegate.lease_resources(text), fencegate.lease_fence(text, bigint, boolean, timestamptz), fencegate.lease_ended(fencegate_state.lease, timestamptz, text),
    fencegate.acquire(text, text, interval), fencegate.renew(text, bigint, interval), fencegate.release(text, bigint),
    fencegate.renew_all(text[], bigint[], interval), fencegate.proclaim(text, bigint, text), fencegate.leader(text), fencegate.leases()
    FROM PUBLIC;
