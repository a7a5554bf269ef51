-- The epochs of the resources $1.
PREPARE epochs (text[]) AS
SELECT resource, generation, token, drained FROM fencegate_state.epoch WHERE resource = ANY ($1);
