-- Joins lock l of a prepared transaction with that transaction, p.
JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL
AND x.virtualtransaction = l.virtualtransaction JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
