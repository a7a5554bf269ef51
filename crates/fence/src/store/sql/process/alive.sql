-- A row for each of these :processes of this database that has not ended.
SELECT s.pid FROM pg_stat_get_activity(NULL) s WHERE s.datid = :this_database AND :is_one_of;
