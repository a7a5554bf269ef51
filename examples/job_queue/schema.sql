-- What is to be done, and how far it is. Anybody may insert; who writes a job that is there has its lease.
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

-- What the jobs did. Its unique key is the second layer of those who have no fence: it lets (7, 1) and (7, 2) both in.
CREATE TABLE ledger (job bigint NOT NULL REFERENCES job, token bigint, amount bigint, UNIQUE (job, token));

-- Whether the generator is to run: any replica may write that. What it has made: only the one that has the lease.
CREATE TABLE generator AS SELECT false AS running;
CREATE TABLE generated (n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);

-- The leases that run, and the last 100 of each job that have ended.
CREATE VIEW lease AS
SELECT election, token, holder, acquired, renewed, expires AS until,
       CASE WHEN expires > clock_timestamp() THEN 'active' ELSE 'expired' END AS status
FROM fencegate_state.lease WHERE NOT released
UNION ALL
SELECT election, token, holder, acquired, renewed, ended, CASE how WHEN 'released' THEN how ELSE 'expired' END
FROM fencegate_state.lease_history;
