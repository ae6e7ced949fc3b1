-- find: executions of a namespace, newest first, by the conditions asked for. One index does the order: by status if
-- one is asked for, else by workflow, else by time.

-- part: select
SELECT {columns} FROM outlast_execution AS x WHERE x.namespace = :namespace {conditions}
ORDER BY x.created_at DESC, x.id DESC LIMIT :limit

-- part: count
SELECT count(*) FROM outlast_execution AS x WHERE x.namespace = :namespace {conditions}

-- part: status_one
AND x.status = :status

-- part: status_any
AND x.status IN (SELECT value FROM json_each(:status))

-- part: workflow
AND x.workflow = :workflow

-- part: lane
AND x.lane = :lane

-- part: tag
AND x.id IN (
  SELECT t.execution FROM outlast_tag AS t
  WHERE t.namespace = :namespace AND t.tag = :tag_{n} AND t.value = :value_{n}
)

-- part: id_prefix
AND x.id >= :id_prefix AND x.id < :id_prefix_end

-- part: created_from
AND x.created_at >= :created_from

-- part: created_before
AND x.created_at < :created_before

-- part: after
AND (x.created_at, x.id) < (:after_created_at, :after_id)
