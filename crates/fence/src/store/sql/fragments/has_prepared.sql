-- True if there are prepared transactions. Much cheaper than reading locks. A prepared transaction is listed before
-- its locks lose their process.
EXISTS (SELECT FROM pg_prepared_xact())
