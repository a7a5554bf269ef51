-- Settings for the later statements of the same Query: the planner cannot know that they read few rows. One row.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);
