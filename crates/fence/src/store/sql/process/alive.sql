-- A row for each of these :processes of this database that has not ended.
SELECT a.pid FROM pg_stat_get_activity(NULL) a WHERE a.datid = :this_database AND :is_one_of;
