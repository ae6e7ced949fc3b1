-- scan: records whose key begins with a prefix, in key order (sequenced kinds: in the order of their seq).

-- part: here
SELECT {columns} FROM outlast.{kind} AS x WHERE {prefix} {after} ORDER BY {order} LIMIT :limit

-- part: everywhere
-- A prefix that names no partition: the first of each, then the first of all. Its cost does not grow with the table.
SELECT {columns} FROM generate_series(0, :partitions::int - 1) AS p(partition) CROSS JOIN LATERAL (
  SELECT * FROM outlast.{kind} AS x WHERE x.partition = p.partition AND {prefix} {after} ORDER BY {order} LIMIT :limit
) AS x ORDER BY {order} LIMIT :limit
