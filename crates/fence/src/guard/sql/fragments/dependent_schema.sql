-- Schema of the dependent object of row d of pg_depend. An object that belongs to a relation or a domain has the
-- schema of that.
coalesce(
(SELECT to_regnamespace(i.schema)::oid FROM pg_identify_object(d.classid, d.objid, d.objsubid) i),
(SELECT y.relnamespace FROM pg_class y WHERE y.oid = CASE d.classid
  WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = d.objid)
  WHEN 'pg_trigger'::regclass THEN (SELECT tgrelid FROM pg_trigger WHERE oid = d.objid)
  WHEN 'pg_attrdef'::regclass THEN (SELECT adrelid FROM pg_attrdef WHERE oid = d.objid)
  WHEN 'pg_constraint'::regclass THEN (SELECT conrelid FROM pg_constraint WHERE oid = d.objid)
  WHEN 'pg_policy'::regclass THEN (SELECT polrelid FROM pg_policy WHERE oid = d.objid) END),
(SELECT x.typnamespace FROM pg_constraint k JOIN pg_type x ON x.oid = k.contypid
  WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid))
