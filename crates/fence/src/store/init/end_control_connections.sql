-- Terminates the control connections of proxies, and waits for their ends, so that later queries use new ones. A
-- row for each: whether it has ended within a second. Spares connections that this role may not terminate.
SELECT pg_terminate_backend(s.pid, 1000) FROM pg_stat_get_activity(NULL) s JOIN pg_roles t ON t.oid = s.usesysid
WHERE s.datid = :this_database AND s.application_name = 'fencegate control' AND s.pid <> pg_backend_pid()
AND :may_terminate;
