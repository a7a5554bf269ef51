-- Deletes the row of this :'proxy', which has no more sessions here. No rows.
DELETE FROM fencegate_state.proxy WHERE id = :'proxy';
