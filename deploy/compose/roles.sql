-- Run once by the image of PostgreSQL, in the database `app`: the proxy's control role, and who writes the ticks.
CREATE ROLE fencegate LOGIN PASSWORD 'fencegate-example';
CREATE ROLE cron LOGIN PASSWORD 'cron-example';
