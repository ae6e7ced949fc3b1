-- due: what is due by :now, oldest first. Each part selects (due_at, then the record's columns) and reads only its own
-- partial index, so its cost does not grow with history. {filter} is empty, or parts of filter.sql.

-- part: lease
-- Leases whose session lapsed or is gone: hop from holder to holder in the lease index, look at each one's session.
WITH RECURSIVE holder (worker, partition) AS (
  (SELECT e.worker, e.partition FROM outlast.execution AS e WHERE e.worker IS NOT NULL
   ORDER BY e.worker, e.partition LIMIT 1)
  UNION ALL
  SELECT n.worker, n.partition FROM holder AS h CROSS JOIN LATERAL (
    SELECT e.worker, e.partition FROM outlast.execution AS e
    WHERE e.worker IS NOT NULL AND (e.worker, e.partition) > (h.worker, h.partition)
    ORDER BY e.worker, e.partition LIMIT 1
  ) AS n
), lapsed AS MATERIALIZED (
  SELECT h.worker, h.partition, s.expires_at
  FROM holder AS h LEFT JOIN LATERAL (
    SELECT s.expires_at FROM outlast.session AS s WHERE s.partition = h.partition AND s.worker = h.worker OFFSET 0
  ) AS s ON true
  WHERE s.expires_at IS NULL OR s.expires_at <= :now
)
SELECT coalesce(h.expires_at, x.claimed_at) AS due_at, {columns}
FROM lapsed AS h CROSS JOIN LATERAL (
  SELECT * FROM outlast.execution AS e WHERE e.worker = h.worker AND e.partition = h.partition OFFSET 0
) AS x
WHERE true {filter}
ORDER BY 1 LIMIT :limit

-- part: timeout
SELECT x.attempt_deadline_at AS due_at, {columns} FROM outlast.execution AS x
WHERE x.attempt_deadline_at <= :now {filter} ORDER BY x.attempt_deadline_at LIMIT :limit

-- part: deadline
SELECT x.deadline_at AS due_at, {columns} FROM outlast.execution AS x
WHERE x.deadline_at <= :now {filter} ORDER BY x.deadline_at LIMIT :limit

-- part: timer
SELECT x.wake_at AS due_at, {columns} FROM outlast.execution AS x
WHERE x.wake_at <= :now {filter} ORDER BY x.wake_at LIMIT :limit

-- part: next_timer
-- When to look again: the first wake time that lies ahead.
SELECT (
  SELECT x.wake_at FROM outlast.execution AS x WHERE x.wake_at > :now {filter} ORDER BY x.wake_at LIMIT 1
) AS next_at

-- part: retention
SELECT x.purge_at AS due_at, {columns} FROM outlast.execution AS x
WHERE x.purge_at <= :now {filter} ORDER BY x.purge_at LIMIT :limit

-- part: outbox
SELECT x.due_at AS due, {columns} FROM outlast.outbox AS x
WHERE x.due_at <= :now {filter} ORDER BY x.due_at LIMIT :limit

-- part: session
-- Sessions that lapsed and hold nothing any more.
SELECT x.expires_at AS due_at, {columns} FROM outlast.session AS x
WHERE x.expires_at <= :now AND NOT EXISTS (
  SELECT 1 FROM outlast.execution AS e WHERE e.worker = x.worker AND e.partition = x.partition
) ORDER BY x.expires_at, x.worker, x.partition LIMIT :limit

-- part: flow
SELECT x.purge_at AS due_at, {columns} FROM outlast.flow AS x
WHERE x.purge_at <= :now {filter} ORDER BY x.purge_at LIMIT :limit

-- part: cancel
SELECT x.cancel_at AS due_at, {columns} FROM outlast.flow AS x
WHERE x.cancel_at <= :now {filter} ORDER BY x.cancel_at LIMIT :limit

-- part: summary
SELECT x.check_at AS due_at, {columns} FROM outlast.summary AS x
WHERE x.check_at <= :now {filter} ORDER BY x.check_at LIMIT :limit

-- part: dependency
SELECT x.depend_at AS due_at, {columns} FROM outlast.summary AS x
WHERE x.depend_at <= :now {filter} ORDER BY x.depend_at LIMIT :limit

-- part: sibling
SELECT x.siblings_at AS due_at, {columns} FROM outlast.member AS x
WHERE x.siblings_at <= :now {filter} ORDER BY x.siblings_at LIMIT :limit

-- part: depth
-- How much is due in all, up to a bound that keeps the look cheap.
SELECT count(*) AS n FROM ({part}) AS d
