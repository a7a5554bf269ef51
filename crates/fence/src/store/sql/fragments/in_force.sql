-- True if the holder of lease l leads, by the database's clock.
NOT l.released AND l.expires > clock_timestamp()
