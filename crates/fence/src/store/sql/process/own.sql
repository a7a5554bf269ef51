-- One row: the connection's own server process and its start.
SELECT :own;
