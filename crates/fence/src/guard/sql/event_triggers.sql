-- The event triggers among :event_triggers that exist.
SELECT evtname AS name FROM pg_event_trigger WHERE evtname IN (:event_triggers) ORDER BY evtname;
