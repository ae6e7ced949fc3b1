-- ring: tell every process that listens. Sent by itself, never inside of a commit: a NOTIFY makes commits wait for
-- each other.
SELECT pg_notify(:bell, :heard)
