-- Locks the epoch of resource $1 against changes. One row if there is one.
PREPARE lock_epoch_shared (text) AS
SELECT FROM fencegate_state.epoch WHERE resource = $1 FOR SHARE;
