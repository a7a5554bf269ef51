-- True if the policies of row e were loaded earlier than :loaded. A time in the future means that the clock was set
-- back since. The policies recorded last are then in force, until a proxy finds that its own were loaded later.
(e.policy_loaded < :loaded OR e.policy_loaded > :now)
