-- Notifies the proxies of definitions that bypass them, so that they read the catalog again. Requires a superuser.
-- Never fails: a proxy that receives no notification reads the catalog within 10 s. If the server's queue is full, a notification
-- fails at COMMIT, where no handler can catch it. Therefore sends none once the queue is half full, as fencegate.announce does.
CREATE OR REPLACE FUNCTION fencegate.notice_definition() RETURNS event_trigger
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    concerns_others boolean;
BEGIN
    -- Temporary objects concern only their own session.
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
    RAISE LOG 'fencegate guard: could not notify the proxies of a definition: %', SQLERRM;
END
$function$;

DROP EVENT TRIGGER IF EXISTS fencegate_guard_definition;
CREATE EVENT TRIGGER fencegate_guard_definition ON ddl_command_end EXECUTE FUNCTION fencegate.notice_definition();
ALTER EVENT TRIGGER fencegate_guard_definition ENABLE ALWAYS;
DROP EVENT TRIGGER IF EXISTS fencegate_guard_drop;
CREATE EVENT TRIGGER fencegate_guard_drop ON sql_drop EXECUTE FUNCTION fencegate.notice_definition();
ALTER EVENT TRIGGER fencegate_guard_drop ENABLE ALWAYS;
