-- True if the role of process a may write the table :'admissions'.
has_table_privilege(a.usesysid, :'admissions'::regclass, 'INSERT')
