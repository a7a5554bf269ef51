-- True if lock l is one of these :modes on the resource's relations, see relations. The name of a relation that an
-- open transaction has created is invisible to other sessions: the relation may be a missing one.
l.locktype = 'relation' AND l.granted AND l.database = :this_database AND l.mode IN (:modes)
AND (l.relation IN (SELECT oid FROM relation) OR (EXISTS (SELECT FROM unresolved)
     AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation)))
