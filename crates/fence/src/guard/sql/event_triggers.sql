-- The existing ones of these :event_triggers.
SELECT evtname AS name FROM pg_event_trigger WHERE evtname IN (:event_triggers) ORDER BY evtname;
