-- purge: ended executions and all that belongs to them, bounded per call. An open one has no purge time and no end, so
-- it is in neither index. A member of a flow is not in that of ends: it goes with its flow, which gives it a purge time.

-- part: retention
SELECT x.namespace, x.id FROM outlast_execution AS x INDEXED BY outlast_execution_retention
WHERE x.purge_at <= :now {filter} ORDER BY x.purge_at LIMIT :limit

-- part: finished
SELECT x.namespace, x.id FROM outlast_execution AS x INDEXED BY outlast_execution_finished
WHERE x.finished_at < :finished_before AND x.flow IS NULL {filter} ORDER BY x.finished_at LIMIT :limit

-- part: belongings
DELETE FROM {table} WHERE namespace = ? AND execution = ?

-- part: execution
DELETE FROM outlast_execution WHERE namespace = ? AND id = ?
