-- The cron's table. Without a unique key, only the fence prevents two leaders from writing the same tick.
CREATE TABLE IF NOT EXISTS ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    token bigint DEFAULT fencegate.token('cron')
);
-- ALL, because a leader locks the table before it reads the ticks of its predecessor.
GRANT ALL ON ticks TO cron;
