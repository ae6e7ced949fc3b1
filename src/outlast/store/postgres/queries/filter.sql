-- filter: what a reconciler or a feed may be restricted to. {id} is the column with the execution's id.

-- part: namespace
AND x.namespace = :namespace

-- part: tag
AND EXISTS (
  SELECT 1 FROM outlast.tag AS t
  WHERE t.partition = x.partition AND t.namespace = x.namespace AND t.execution = x.{id}
    AND t.tag = :tag AND t.value = :value
)

-- part: tag_elsewhere
AND EXISTS (
  SELECT 1 FROM outlast.tag AS t
  WHERE t.namespace COLLATE "POSIX" = x.namespace AND t.execution COLLATE "POSIX" = x.{id} AND t.tag COLLATE "POSIX" = :tag AND t.value COLLATE "POSIX" = :value
)
