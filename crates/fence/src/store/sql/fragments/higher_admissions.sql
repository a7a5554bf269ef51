-- The live processes that are admitted under tokens above that of the reset.
FROM fencegate_state.admission a WHERE a.resource = :'resource' AND a.token > :token AND :living
