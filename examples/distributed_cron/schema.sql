-- The server stamps each row with the token of the session that writes it. No unique key: nothing but the fence keeps two
-- leaders from writing the same tick.
CREATE TABLE ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    token bigint DEFAULT fencegate.token('cron')
);

-- Each row guards itself: it is overwritten only by a higher fence.
CREATE TABLE guarded (tick text PRIMARY KEY, node text NOT NULL, fence bigint NOT NULL);

CREATE TABLE shards (shard integer PRIMARY KEY, last timestamptz);
INSERT INTO shards SELECT generate_series(0, 3);
CREATE TABLE shard_ticks (
    shard integer NOT NULL REFERENCES shards,
    job text NOT NULL,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    -- A session has one token here, for whatever it writes.
    token bigint DEFAULT fencegate.token('shard')
);
