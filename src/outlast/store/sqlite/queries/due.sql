-- due: what is due by :now, oldest first. Each part selects (due_at, then the record's columns) and reads only its own
-- partial index, so its cost does not grow with history. {filter} is empty, or parts of filter.sql.

-- part: lease
-- Leases whose session lapsed or is gone: hop from holder to holder in the lease index, look at each one's session.
WITH RECURSIVE holder (worker) AS (
  SELECT min(worker) FROM outlast_execution INDEXED BY outlast_execution_lease WHERE worker IS NOT NULL
  UNION ALL
  SELECT (
    SELECT min(worker) FROM outlast_execution INDEXED BY outlast_execution_lease
    WHERE worker > holder.worker
  ) FROM holder WHERE holder.worker IS NOT NULL
)
SELECT coalesce(s.expires_at, x.claimed_at) AS due_at, {columns}
FROM holder
LEFT JOIN outlast_session AS s ON s.partition = 0 AND s.worker = holder.worker
CROSS JOIN outlast_execution AS x INDEXED BY outlast_execution_lease
WHERE holder.worker IS NOT NULL AND (s.expires_at IS NULL OR s.expires_at <= :now)
  AND x.worker = holder.worker {filter}
ORDER BY due_at LIMIT :limit

-- part: timeout
SELECT x.attempt_deadline_at AS due_at, {columns}
FROM outlast_execution AS x INDEXED BY outlast_execution_timeout
WHERE x.attempt_deadline_at <= :now {filter} ORDER BY x.attempt_deadline_at LIMIT :limit

-- part: deadline
SELECT x.deadline_at AS due_at, {columns} FROM outlast_execution AS x INDEXED BY outlast_execution_deadline
WHERE x.deadline_at <= :now {filter} ORDER BY x.deadline_at LIMIT :limit

-- part: timer
SELECT x.wake_at AS due_at, {columns} FROM outlast_execution AS x INDEXED BY outlast_execution_timer
WHERE x.wake_at <= :now {filter} ORDER BY x.wake_at LIMIT :limit

-- part: next_timer
-- When the next timer will be due: one step in the index behind what is.
SELECT min(due_at) FROM (
  SELECT x.wake_at AS due_at FROM outlast_execution AS x INDEXED BY outlast_execution_timer
  WHERE x.wake_at > :now {filter} ORDER BY x.wake_at LIMIT 1
)

-- part: retention
SELECT x.purge_at AS due_at, {columns} FROM outlast_execution AS x INDEXED BY outlast_execution_retention
WHERE x.purge_at <= :now {filter} ORDER BY x.purge_at LIMIT :limit

-- part: outbox
SELECT x.due_at AS due_at, {columns} FROM outlast_outbox AS x INDEXED BY outlast_outbox_due
WHERE x.due_at <= :now {filter} ORDER BY x.due_at LIMIT :limit

-- part: session
-- Sessions that lapsed and hold nothing any more.
SELECT x.expires_at AS due_at, {columns} FROM outlast_session AS x INDEXED BY outlast_session_expiry
WHERE x.expires_at <= :now AND NOT EXISTS (
  SELECT 1 FROM outlast_execution AS e INDEXED BY outlast_execution_lease
  WHERE e.worker = x.worker
) {filter} ORDER BY x.expires_at LIMIT :limit

-- part: flow
SELECT x.purge_at AS due_at, {columns} FROM outlast_flow AS x INDEXED BY outlast_flow_retention
WHERE x.purge_at <= :now {filter} ORDER BY x.purge_at LIMIT :limit

-- part: cancel
SELECT x.cancel_at AS due_at, {columns} FROM outlast_flow AS x INDEXED BY outlast_flow_cancel
WHERE x.cancel_at <= :now {filter} ORDER BY x.cancel_at LIMIT :limit

-- part: summary
SELECT x.check_at AS due_at, {columns} FROM outlast_summary AS x INDEXED BY outlast_summary_check
WHERE x.check_at <= :now {filter} ORDER BY x.check_at LIMIT :limit

-- part: dependency
SELECT x.depend_at AS due_at, {columns} FROM outlast_summary AS x INDEXED BY outlast_summary_depend
WHERE x.depend_at <= :now {filter} ORDER BY x.depend_at LIMIT :limit

-- part: sibling
SELECT x.siblings_at AS due_at, {columns} FROM outlast_member AS x INDEXED BY outlast_member_siblings
WHERE x.siblings_at <= :now {filter} ORDER BY x.siblings_at LIMIT :limit

-- part: depth
-- How much is due in all, up to a bound that keeps the look cheap.
SELECT count(*) FROM ({part})
