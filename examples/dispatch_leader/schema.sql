-- The server stamps each row with the token of the session that writes it.
CREATE TABLE orders (id integer PRIMARY KEY, courier text, token bigint DEFAULT fencegate.token('dispatch'));
INSERT INTO orders SELECT id, NULL, NULL FROM generate_series(1, 500) AS id;
