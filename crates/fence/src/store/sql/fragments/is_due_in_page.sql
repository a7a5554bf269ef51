-- True if row e of the page is that of a key, and has another policy recorded that was not loaded later.
e.resource > :'after_name' AND e.resource <= (SELECT last FROM page) AND :is_called
AND e.policy_hash IS DISTINCT FROM :'policy' AND :is_older
