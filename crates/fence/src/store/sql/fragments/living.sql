-- True if row a belongs to a live process: the row was written for this database, the pid exists, and its
-- backend_start is the same or hidden. PostgreSQL never turns NOT IN into a join: it reads the processes once and
-- hashes them, whatever the statistics of the table.
(:is_of_this_database
 AND (a.pid, a.backend_start) NOT IN (SELECT s.pid, s.backend_start FROM pg_stat_get_activity(NULL) s
WHERE s.datid = fencegate.own_database() IS NOT FALSE) IS NOT TRUE)
