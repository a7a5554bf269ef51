-- The fences of the resources :plain, with the number of server processes admitted to each. The second statement's
-- rows are those of keys, which the condition :of_keys selects: at most :most_keys, the most recently updated first.
-- The third statement's row is the total number of keys.
SELECT :fence_columns FROM fencegate_state.epoch e WHERE e.resource = ANY (ARRAY[:plain]::text[]);
SELECT :fence_columns FROM (SELECT * FROM fencegate_state.epoch e WHERE :of_keys
  ORDER BY e.updated DESC LIMIT :most_keys) e ORDER BY e.updated DESC;
SELECT count(*) AS keys FROM fencegate_state.epoch e WHERE :of_keys;
