-- True if the resource of row e is that of a key: its name has these texts :'before' and :'after' the key, of
-- :after_length and together :length characters.
(starts_with(e.resource, :'before') AND right(e.resource, :after_length) = :'after' AND length(e.resource) >= :length)
