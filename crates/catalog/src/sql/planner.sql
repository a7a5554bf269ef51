-- Settings for the later statements of the same Query, which the planner cannot know to read few rows. One row.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);
