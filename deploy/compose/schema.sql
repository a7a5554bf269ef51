-- The cron's table. It has no unique key: nothing but the fence keeps two leaders from writing the same tick.
CREATE TABLE IF NOT EXISTS ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    token bigint DEFAULT fencegate.token('cron')
);
-- All, because a leader locks the table before it reads what its predecessor did.
GRANT ALL ON ticks TO cron;
