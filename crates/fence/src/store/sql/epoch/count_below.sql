-- One row: the number of live admissions to resource $1 below the epoch of generation $2 and token $3.
-- The first statement of Mark that reads the processes. Later ones see the same view. Therefore the locks are
-- read after the processes. In the opposite order, both reads would miss a process that prepares its transaction and
-- ends in between.
PREPARE count_below (text, bigint, bigint) AS
SELECT count(*) FROM fencegate_state.admission a
WHERE a.resource = $1 AND (a.generation, a.token) < ($2, $3) AND :living;
