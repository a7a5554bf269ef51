-- CASCADE if the :object of this :class has dependents, otherwise nothing. Earlier checks have found only temporary
-- dependents.
CASE WHEN EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = :class AND d.refobjid = :object
AND d.deptype = 'n' AND :is_temporary) THEN ' CASCADE' ELSE '' END
