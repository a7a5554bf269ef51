-- CASCADE for an :object of this :class on which only temporary ones depend, as the checks before have found;
-- otherwise nothing.
CASE WHEN EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = :class AND d.refobjid = :object
AND d.deptype = 'n' AND :is_temporary) THEN ' CASCADE' ELSE '' END
