-- True if trigger t on relation c has the name and a function of the guard. Any role can create one on its own table.
-- A temporary table has no guard: only its own session writes to it.
(starts_with(t.tgname, 'fencegate_guard_') AND c.relpersistence <> 't' AND t.tgfoid IN (
SELECT p.oid FROM pg_proc p JOIN pg_namespace f ON f.oid = p.pronamespace WHERE f.nspname = 'fencegate'))
