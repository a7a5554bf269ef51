-- The time limit of a reading for one session.
, set_config('statement_timeout', :'statement_timeout', true)
