-- find: executions of a namespace, newest first, by the conditions asked for. One index does the order: by status if
-- one is asked for, else by workflow, else by time. Those that somebody holds are in no index of their status: they are
-- read by their leases, and sorted. A tag that few have comes first instead: then only those few are read, and sorted.
-- {source} is one of the three.

-- part: select
SELECT {columns} FROM {source} WHERE x.namespace = :namespace {conditions} {listed}
ORDER BY x.created_at DESC, x.id DESC LIMIT :limit

-- part: count
SELECT count(*) FROM {source} WHERE x.namespace = :namespace {conditions} {listed}

-- part: staging
-- Whether any flow is being staged: only then executions are asked for theirs, and an index alone does not do.
SELECT 1 FROM outlast_flow INDEXED BY outlast_flow_staging
WHERE namespace = :namespace AND staged_at IS NOT NULL LIMIT 1

-- part: listed
-- Members of a flow that is still being staged are not there yet.
AND (x.flow IS NULL OR NOT EXISTS (
  SELECT 1 FROM outlast_flow AS f WHERE f.namespace = x.namespace AND f.id = x.flow AND f.staged_at IS NOT NULL
))

-- part: in_order
outlast_execution AS x

-- part: by_lease
outlast_execution AS x INDEXED BY outlast_execution_lease

-- part: by_tag
outlast_tag AS few CROSS JOIN outlast_execution AS x
  ON few.namespace = :namespace AND few.tag = :tag_{n} AND few.value = :value_{n}
  AND x.namespace = few.namespace AND x.id = few.execution

-- part: tagged
SELECT count(*) FROM (
  SELECT 1 FROM outlast_tag WHERE namespace = :namespace AND tag = :tag AND value = :value LIMIT :limit
)

-- part: status_one
AND x.status = :status

-- part: held
AND x.worker IS NOT NULL

-- part: not_held
AND x.worker IS NULL

-- part: reason
AND x.reason = :reason

-- part: workflow
AND x.workflow = :workflow

-- part: lane
AND x.lane = :lane

-- part: tag
AND EXISTS (
  SELECT 1 FROM outlast_tag AS t
  WHERE t.namespace = x.namespace AND t.execution = x.id AND t.tag = :tag_{n} AND t.value = :value_{n}
)

-- part: id_prefix
AND x.id >= :id_prefix AND x.id < :id_prefix_end

-- part: created_from
AND x.created_at >= :created_from

-- part: created_before
AND x.created_at < :created_before

-- part: after
AND (x.created_at, x.id) < (:after_created_at, :after_id)
