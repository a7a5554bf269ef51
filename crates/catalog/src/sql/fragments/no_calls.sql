-- The table calls, if the policies name no function: planning the rest takes longer than running it.
calls(function, relation, operations) AS (SELECT NULL::oid, NULL::oid, '' WHERE false)
