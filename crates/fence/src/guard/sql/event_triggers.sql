-- Those of these :event_triggers that there are.
SELECT evtname AS name FROM pg_event_trigger WHERE evtname IN (:event_triggers) ORDER BY evtname;
