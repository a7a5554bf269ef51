-- The repositories, and when each is due.
CREATE TABLE repositories (name text PRIMARY KEY, due timestamptz NOT NULL);
INSERT INTO repositories VALUES ('alpha', 'infinity'), ('beta', 'infinity'), ('gamma', 'infinity');
-- The queue. The server stamps each row with the token of the session that writes it.
CREATE TABLE tasks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    repository text NOT NULL REFERENCES repositories,
    scheduler text NOT NULL,
    token bigint DEFAULT fencegate.token('refresh')
);
