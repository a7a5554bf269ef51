-- One row if the function :'signature' exists: whether temporary objects depend on it, as a word for DROP.
SELECT :cascade AS cascade FROM (SELECT to_regprocedure(:'signature')::oid AS oid) it WHERE it.oid IS NOT NULL;
