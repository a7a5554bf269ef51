-- The beginning of the script that `fencegate init` ran for schema version 5, unchanged.
-- The schema of fencegate in a downstream database. Run as one transaction, which holds the lock of `init`; may be run again at any time.
CREATE SCHEMA IF NOT EXISTS fencegate;
COMMENT ON SCHEMA fencegate IS 'fencegate schema version 5';

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
    -- Defaults: programs and guards of version 4 do not name these columns.
    system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
    database      oid NOT NULL DEFAULT fencegate.own_database(),
    PRIMARY KEY (pid, backend_start, resource, generation, token)
);
-- The columns that versions 2 and 4 lack. ADD COLUMN IF NOT EXISTS would wait for the table's lock even where the column exists.
DO $$BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate.epoch'::regclass AND attname = 'policy_loaded') THEN
        ALTER TABLE fencegate.epoch ADD COLUMN policy_loaded bigint NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate.admission'::regclass AND attname = 'ending') THEN
        ALTER TABLE fencegate.admission ADD COLUMN ending boolean NOT NULL DEFAULT false;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'fencegate.admission'::regclass AND attname = 'database') THEN
        ALTER TABLE fencegate.admission
            ADD COLUMN system_identifier bigint NOT NULL DEFAULT fencegate.own_system_identifier(),
            ADD COLUMN database oid NOT NULL DEFAULT fencegate.own_database();
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
