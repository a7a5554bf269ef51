-- Run once by the PostgreSQL image in the database `app`: the control role of the proxy, and the role that writes ticks.
CREATE ROLE fencegate LOGIN PASSWORD 'fencegate-example';
CREATE ROLE cron LOGIN PASSWORD 'cron-example';
