-- First tokens. The rows are the admissions. try_locks.sql comes before, in the same transaction.
-- $1 proxy; of each process and resource: $2 resource, $3 token, $4 fingerprint of the policy, $5 when it was
-- loaded, $6 lease, $7 pid, $8 backend_start, $9 system identifier, $10 postmaster start.
-- The statement begins after the locks are held, so it sees all earlier admissions to, and epochs of, these
-- resources. It creates an epoch only where none exists, and admits only to epochs that it has created, which no
-- other transaction can have changed.
-- OFFSET 0 prevents a join with the admissions. A join planned while the table was empty would read all admissions
-- for each resource.
PREPARE admit_first (text, text[], bigint[], text[], bigint[], text[], integer[], numeric[], numeric[], numeric[]) AS
WITH firsts AS MATERIALIZED (SELECT f.*
    FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10)
      f(resource, token, hash, loaded, lease, pid, backend_start, system_identifier, postmaster_start)
    WHERE :resource_key = ANY ((SELECT current_setting('fencegate.locked')::bigint[])::bigint[])),
  processes AS MATERIALIZED (SELECT p.*, i.backend_start AS started
    FROM (SELECT DISTINCT pid, backend_start, system_identifier, postmaster_start FROM firsts) p
    CROSS JOIN LATERAL :identity WHERE :is_identified),
  fenceable AS MATERIALIZED (SELECT f.*, p.started FROM firsts f
    JOIN processes p USING (pid, backend_start, system_identifier, postmaster_start)),
  made AS (INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash, policy_loaded)
    SELECT f.resource, f.token, true, f.hash, f.loaded FROM fenceable f
    WHERE NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = f.resource OFFSET 0)
      AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database())
      AND (f.lease IS NULL OR EXISTS (SELECT FROM fencegate_state.lease l
        WHERE l.election = f.lease AND l.token = f.token AND :in_force))
    ON CONFLICT (resource) DO NOTHING RETURNING resource, generation, token)
INSERT INTO fencegate_state.admission AS a (pid, backend_start, resource, generation, token, proxy)
  SELECT f.pid, f.started, m.resource, m.generation, m.token, $1 FROM made m JOIN fenceable f USING (resource)
  RETURNING :granted;
