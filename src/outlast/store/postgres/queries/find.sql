-- find: executions of a namespace, newest first, by the conditions asked for. One index does the order: by status if
-- one is asked for, else by workflow, else by time. A tag that few have comes first instead: then only those few are
-- read, and sorted. {source} is one of the two. (Why COLLATE "POSIX": see the indexes in migrations/.)

-- part: select
SELECT {columns} FROM {source} WHERE x.namespace COLLATE "POSIX" = :namespace {conditions} {listed}
ORDER BY x.created_at DESC, x.id COLLATE "POSIX" DESC LIMIT :limit

-- part: each
-- Of several statuses: each in its own order, then the newest of all. One index can't give several in order.
SELECT {columns} FROM unnest(:status::text[]) AS s(status) CROSS JOIN LATERAL ({one}) AS x
ORDER BY x.created_at DESC, x.id COLLATE "POSIX" DESC LIMIT :limit

-- part: count
SELECT count(*) AS n FROM {source} WHERE x.namespace COLLATE "POSIX" = :namespace {conditions} {listed}

-- part: staging
-- Whether any flow is being staged: only then executions are asked for theirs, and an index alone does not do.
SELECT 1 AS n FROM outlast.flow WHERE namespace = :namespace AND staged_at IS NOT NULL LIMIT 1

-- part: listed
-- Members of a flow that is still being staged are not there yet.
AND (x.flow IS NULL OR NOT EXISTS (
  SELECT 1 FROM outlast.flow AS f
  WHERE f.partition = x.partition AND f.namespace = x.namespace AND f.id = x.flow AND f.staged_at IS NOT NULL
))

-- part: in_order
outlast.execution AS x

-- part: by_tag
outlast.tag AS few CROSS JOIN LATERAL (
  SELECT * FROM outlast.execution AS e
  WHERE e.partition = few.partition AND e.namespace = few.namespace AND e.id = few.execution OFFSET 0
) AS x

-- part: by_tag_condition
AND few.namespace COLLATE "POSIX" = :namespace AND few.tag COLLATE "POSIX" = :tag_{n} AND few.value COLLATE "POSIX" = :value_{n}

-- part: tagged
SELECT count(*) AS n FROM (
  SELECT 1 FROM outlast.tag WHERE namespace COLLATE "POSIX" = :namespace AND tag COLLATE "POSIX" = :tag AND value COLLATE "POSIX" = :value LIMIT :limit
) AS t

-- part: status_one
AND x.status COLLATE "POSIX" = :status

-- part: status_each
AND x.status COLLATE "POSIX" = s.status

-- part: status_any
AND x.status = ANY (:status)

-- part: workflow
AND x.workflow COLLATE "POSIX" = :workflow

-- part: workflow_too
AND x.workflow = :workflow

-- part: lane
AND x.lane = :lane

-- part: reason
AND x.reason = :reason

-- part: tag
AND EXISTS (
  SELECT 1 FROM outlast.tag AS t
  WHERE t.partition = x.partition AND t.namespace = x.namespace AND t.execution = x.id
    AND t.tag = :tag_{n} AND t.value = :value_{n}
)

-- part: id_prefix
AND x.id >= :id_prefix AND x.id < :id_prefix_end

-- part: created_from
AND x.created_at >= :created_from

-- part: created_before
AND x.created_at < :created_before

-- part: after
AND (x.created_at, x.id COLLATE "POSIX") < (:after_created_at, :after_id)
