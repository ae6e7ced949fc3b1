-- scan: records whose key begins with a prefix, in key order (sequenced kinds: in the order of their seq).
SELECT {columns} FROM {table} WHERE {prefix} ORDER BY {order} LIMIT ?
