-- True if row a of admission or proxy was written for this database of this cluster, or if that is unknown.
((a.system_identifier, a.database)
= (fencegate.own_system_identifier(), fencegate.own_database()) IS NOT FALSE)
