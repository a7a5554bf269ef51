-- The oids of both schemas of fencegate.
(to_regnamespace('fencegate'), to_regnamespace('fencegate_state'))
