-- The key of the lock that init, remove and every change of the guard hold. No resource has this name. Any role can
-- take the lock.
hashtextextended('fencegate {init}', 0)
