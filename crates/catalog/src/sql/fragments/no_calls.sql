-- The table calls, if the policies name no function: to plan the rest takes longer than to run it.
calls(function, relation, operations) AS (SELECT NULL::oid, NULL::oid, '' WHERE false)
