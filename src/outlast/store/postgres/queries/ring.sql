-- ring: tell every process that listens. Sent by itself by whoever rings often: a NOTIFY makes commits wait for each
-- other.
SELECT pg_notify(:bell, :heard)
