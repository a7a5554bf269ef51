-- Settings for the later statements of the same Query. One row.
SELECT set_config('lock_timeout', :'lock_timeout', true), set_config('enable_seqscan', 'off', true),
set_config('jit', 'off', true):timeout;
