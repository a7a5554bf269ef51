-- Notifies listeners of these :payloads, an array, if the server's notification queue is less than half full, as
-- fencegate.announce in schema.sql does. COMMIT would fail if the queue were full. One row for each payload.
SELECT pg_notify('fencegate', p) FROM unnest(:payloads) p WHERE pg_notification_queue_usage() < 0.5;
