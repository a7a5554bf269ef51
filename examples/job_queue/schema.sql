-- The jobs and their progress. Any session may insert. Only the holder of its lease may change a job.
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key text NOT NULL UNIQUE CHECK (idempotency_key <> ''),
    work jsonb NOT NULL,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'succeeded', 'failed')),
    attempts int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    next_run_at timestamptz NOT NULL DEFAULT now(),
    worker text,
    last_heartbeat_at timestamptz,
    must_heartbeat_before timestamptz,
    processed_at timestamptz,
    output jsonb
);
CREATE INDEX ON job (next_run_at) WHERE state = 'queued';
CREATE INDEX ON job (must_heartbeat_before) WHERE state = 'running';

-- The results of jobs. Systems without a fence rely on this unique key, but it permits both (7, 1) and (7, 2).
CREATE TABLE ledger (job bigint NOT NULL REFERENCES job, token bigint, amount bigint, UNIQUE (job, token));

-- The desired state of the generator, which any replica may write, and its jobs, which only the holder of the lease may write.
CREATE TABLE generator AS SELECT false AS running;
CREATE TABLE generated (n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);

-- The current leases, and the last 100 ended leases of each job.
CREATE VIEW lease AS
SELECT election, token, holder, acquired, renewed, expires AS until,
       CASE WHEN expires > clock_timestamp() THEN 'active' ELSE 'expired' END AS status
FROM fencegate_state.lease WHERE NOT released
UNION ALL
SELECT election, token, holder, acquired, renewed, ended, CASE how WHEN 'released' THEN how ELSE 'expired' END
FROM fencegate_state.lease_history;
