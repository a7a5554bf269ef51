-- Locks the epoch of resource $1 against changes and Admits. One row if there is one.
PREPARE lock_epoch (text) AS
SELECT FROM fencegate_state.epoch WHERE resource = $1 FOR UPDATE;
