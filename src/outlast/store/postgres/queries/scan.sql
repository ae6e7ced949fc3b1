-- scan: records whose key begins with a prefix, in key order (sequenced kinds: in the order of their seq).
SELECT {columns} FROM outlast.{kind} AS x WHERE {prefix} {after} ORDER BY {order} LIMIT :limit
