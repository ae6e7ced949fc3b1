-- health: what `outlast doctor` looks at. Reads only.

-- part: server
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
  current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
  pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::boolean AS read_only, current_setting('server_encoding') AS encoding,
  current_setting('max_connections')::int AS connections_max,
  -- A role that may not see what others do sees that they are there.
  (SELECT count(*) FROM pg_stat_activity
    WHERE usesysid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend')::int AS connections,
  pg_database_size(current_database()) AS size

-- part: privileges
SELECT t.tablename::text AS name FROM pg_tables AS t
WHERE t.schemaname = 'outlast' AND t.tablename <> 'meta' AND NOT (
  has_table_privilege(format('outlast.%I', t.tablename), 'SELECT')
  AND has_table_privilege(format('outlast.%I', t.tablename), 'INSERT')
  AND has_table_privilege(format('outlast.%I', t.tablename), 'UPDATE')
  AND has_table_privilege(format('outlast.%I', t.tablename), 'DELETE'))
UNION ALL
SELECT 'clock' WHERE NOT (has_sequence_privilege('outlast.clock', 'SELECT') AND has_sequence_privilege('outlast.clock', 'UPDATE'))
UNION ALL
SELECT p.proname::text FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace
WHERE s.nspname = 'outlast' AND p.proname::text = ANY (:functions::text[]) AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1

-- part: indexes
-- Indexes of ours that are gone, or that were never finished.
SELECT n.name FROM unnest(:names::text[]) AS n(name)
WHERE NOT EXISTS (
  SELECT 1 FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace JOIN pg_index AS i ON i.indexrelid = c.oid
  WHERE s.nspname = 'outlast' AND c.relname = n.name AND i.indisvalid)
ORDER BY 1

-- part: oldest
-- The oldest transaction: while it lasts, no completion behind it is in the feed, and nothing dead is cleared away.
-- One that is prepared belongs to no connection, and outlives a restart.
SELECT coalesce(max(extract(epoch FROM now() - o.since)), 0)::float8 AS seconds,
  (SELECT count(*) FROM pg_stat_activity WHERE usesysid IS NOT NULL AND backend_type IS NULL)::int AS hidden,
  coalesce((array_agg(o.who ORDER BY o.since))[1], '') AS who
FROM (
  SELECT a.xact_start AS since, format('pid %s, %s', a.pid, coalesce(nullif(left(a.application_name, 60), ''), 'no name')) AS who
  FROM pg_stat_activity AS a
  WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
  UNION ALL
  SELECT p.prepared, format('prepared as %L', left(p.gid, 60)) FROM pg_prepared_xacts AS p
) AS o

-- part: feed
-- Completions of transactions that this server has not had yet: they are another server's.
SELECT coalesce((SELECT max(x.tx) >= pg_snapshot_xmax(pg_current_snapshot()) FROM outlast.completion AS x), false) AS ahead

-- part: bloat
SELECT s.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
  (s.last_autovacuum IS NOT NULL OR s.last_vacuum IS NOT NULL) AS vacuumed
FROM pg_stat_user_tables AS s
WHERE s.schemaname = 'outlast' AND s.n_dead_tup > 100000 AND s.n_dead_tup > s.n_live_tup
ORDER BY s.n_dead_tup DESC LIMIT 1

-- part: skew
-- The fullest partition by work that is ready, against the mean.
SELECT count(*)::bigint AS ready, coalesce(max(p.n), 0)::bigint AS fullest
FROM (SELECT count(*) AS n FROM outlast.execution WHERE ready_at IS NOT NULL GROUP BY partition) AS p

-- part: ready_total
SELECT count(*) AS n FROM outlast.execution WHERE ready_at IS NOT NULL
