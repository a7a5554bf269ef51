-- The server stamps each row with the token of the session that writes it. Without a unique key, only the fence prevents
-- two leaders from writing the same tick.
CREATE TABLE ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    token bigint DEFAULT fencegate.token('cron')
);

-- Each row has its own fence: only a higher token overwrites it.
CREATE TABLE guarded (tick text PRIMARY KEY, node text NOT NULL, fence bigint NOT NULL);

CREATE TABLE shards (shard integer PRIMARY KEY, last timestamptz);
INSERT INTO shards SELECT generate_series(0, 3);
CREATE TABLE shard_ticks (
    shard integer NOT NULL REFERENCES shards,
    job text NOT NULL,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    -- A session has the same token for all its writes to shards.
    token bigint DEFAULT fencegate.token('shard')
);
