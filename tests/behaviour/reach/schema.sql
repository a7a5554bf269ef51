-- Fenced: jobs, low_ticks, items.
CREATE TABLE owner (id int PRIMARY KEY, name text);
CREATE TABLE region (id int PRIMARY KEY);
CREATE TABLE plain (id int);
CREATE TABLE jobs (
    id int, owner int REFERENCES owner ON DELETE CASCADE, region int DEFAULT 1 REFERENCES region ON DELETE SET DEFAULT ON UPDATE CASCADE
) PARTITION BY RANGE (id);
CREATE TABLE jobs_low PARTITION OF jobs FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
CREATE TABLE jobs_lowest PARTITION OF jobs_low FOR VALUES FROM (0) TO (100);
CREATE VIEW open_jobs AS SELECT id, owner FROM jobs;
CREATE VIEW my_jobs AS SELECT id FROM open_jobs WHERE id < 100;
CREATE VIEW lowest AS SELECT id FROM jobs_lowest;
CREATE VIEW counted AS SELECT count(*) FROM jobs;
CREATE MATERIALIZED VIEW counts AS SELECT count(*) FROM jobs;

CREATE TABLE ticks (id int) PARTITION BY RANGE (id);
CREATE TABLE low_ticks PARTITION OF ticks FOR VALUES FROM (0) TO (100);
CREATE TABLE high_ticks PARTITION OF ticks FOR VALUES FROM (100) TO (200);

CREATE TABLE things (id int PRIMARY KEY, note text);
CREATE TABLE items (note2 text) INHERITS (things);
CREATE TABLE special_items (extra int) INHERITS (items);
CREATE TABLE other_things () INHERITS (things);
CREATE TABLE inbox (id int);
CREATE RULE deliver AS ON INSERT TO inbox DO ALSO INSERT INTO items (id) VALUES (NEW.id);
CREATE VIEW outbox AS SELECT i.id FROM inbox i JOIN things t ON t.id = i.id;
CREATE RULE pass AS ON INSERT TO outbox DO INSTEAD INSERT INTO inbox VALUES (NEW.id);
CREATE TABLE log (item int, by_whom text);

INSERT INTO owner VALUES (1, 'a'), (2, 'b');
INSERT INTO region VALUES (1), (2);
INSERT INTO jobs VALUES (1, 1, 2), (60, 2, 2);
INSERT INTO ticks VALUES (1), (101);
INSERT INTO items VALUES (1, 'one');
