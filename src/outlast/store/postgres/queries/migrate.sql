-- migrate: what bringing the schema up to date needs to know and to leave behind.

-- part: lock
-- One process at a time: the others wait, and then find it done.
SELECT pg_advisory_xact_lock(hashtextextended('outlast.migrate', 0))

-- part: has_schema
SELECT count(*) AS n, current_setting('server_encoding') AS encoding, current_database()::text AS database
FROM pg_catalog.pg_tables WHERE schemaname = 'outlast' AND tablename = 'meta'

-- part: read
SELECT name, value FROM outlast.meta

-- part: write
-- The number of partitions and the identity are fixed when the store is created.
INSERT INTO outlast.meta AS m (name, value)
VALUES ('schema', :schema), ('partitions', :partitions), ('oldest', :oldest),
  ('identity', gen_random_uuid()::text)
ON CONFLICT (name) DO UPDATE SET value = CASE WHEN m.name IN ('schema', 'oldest') THEN excluded.value ELSE m.value END

-- part: functions
SELECT p.proname::text AS name FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = 'outlast' AND p.proname::text = ANY (:names::text[])
