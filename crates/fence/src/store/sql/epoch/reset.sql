-- Reset. The second statement's row is the previous epoch. The third's rows are the live processes that are admitted
-- under higher tokens. The fourth's row is the new epoch, if the previous one was :generation and :known_token, the
-- policies are the same, and the reset is :permitted. Records the operator's role with it.
-- Every Admit holds the lock shared until its row is committed. Reset therefore sees all admissions from before it
-- got the lock, and later Admits read the new epoch. It reads the processes only after it has the lock: the first
-- read in a transaction fixes the view of them.
SELECT pg_advisory_xact_lock(hashtextextended(:'lock_name', 0));
SELECT generation, token, policy_hash = :'policy' AS same_policy FROM fencegate_state.epoch
  WHERE resource = :'resource' FOR UPDATE;
SELECT DISTINCT a.pid, a.token, a.proxy :higher_admissions ORDER BY a.token DESC, a.pid;
WITH changed AS (UPDATE fencegate_state.epoch SET generation = generation + 1, token = :token, drained = false,
    updated = clock_timestamp() WHERE resource = :'resource' AND policy_hash = :'policy'
    AND (generation, token) = (:generation, :known_token) AND :permitted
    RETURNING resource, generation, token),
  kept AS (INSERT INTO fencegate_state.reset (resource, generation, token, role, proxy, forced)
    SELECT resource, generation, token, :'role', :'proxy', :force FROM changed)
  SELECT resource, generation, token FROM changed;
