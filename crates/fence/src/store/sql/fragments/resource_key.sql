-- The key of the advisory lock of the resource that :name names. guard.sql uses the same key.
hashtextextended('fencegate:' || :name, 0)
