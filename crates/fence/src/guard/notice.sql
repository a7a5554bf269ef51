-- Definitions around the proxies, which read the catalog again when they are notified. Needs a superuser.
-- Never fails: a proxy that receives no notification reads the catalog within 10 s. A notification that finds the server's queue
-- full fails at COMMIT, where nothing can catch it. As in fencegate.announce, none is sent once the queue is half full.
CREATE OR REPLACE FUNCTION fencegate.notice_definition() RETURNS event_trigger
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    concerns_others boolean;
BEGIN
    -- Temporary objects are nobody else's.
    IF TG_EVENT = 'sql_drop' THEN
        concerns_others := EXISTS (SELECT FROM pg_event_trigger_dropped_objects() WHERE NOT is_temporary);
    ELSE
        concerns_others := EXISTS (SELECT FROM pg_event_trigger_ddl_commands()
            WHERE schema_name IS DISTINCT FROM 'pg_temp');
    END IF;
    IF concerns_others AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('fencegate', '{catalogue}');
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'fencegate guard: a definition was not made known: %', SQLERRM;
END
$function$;

DROP EVENT TRIGGER IF EXISTS fencegate_guard_definition;
CREATE EVENT TRIGGER fencegate_guard_definition ON ddl_command_end EXECUTE FUNCTION fencegate.notice_definition();
ALTER EVENT TRIGGER fencegate_guard_definition ENABLE ALWAYS;
DROP EVENT TRIGGER IF EXISTS fencegate_guard_drop;
CREATE EVENT TRIGGER fencegate_guard_drop ON sql_drop EXECUTE FUNCTION fencegate.notice_definition();
ALTER EVENT TRIGGER fencegate_guard_drop ENABLE ALWAYS;
