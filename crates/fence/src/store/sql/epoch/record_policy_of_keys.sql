-- Records the policy for the keys of a keyed resource, in a page of epoch rows ordered by name, from :'after_name'
-- on. The page is limited by the time of a Query. Writes nothing if the policy is already recorded. The second
-- statement's row is the last one of the page.
-- Locks the rows in this order, so that two proxies that load at once cannot deadlock. A separate statement changes
-- the rows, so that it sees tokens that were raised before the lock was granted.
:page_of_keys
SELECT count(*) FROM (SELECT FROM fencegate_state.epoch e WHERE :is_due_in_page
  ORDER BY e.resource FOR UPDATE) locked;
:page_of_keys,
  recorded AS (UPDATE fencegate_state.epoch e SET policy_hash = :'policy', policy_loaded = :loaded
    WHERE :is_due_in_page)
SELECT last FROM page;
