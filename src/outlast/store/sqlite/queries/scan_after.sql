-- scan_after: as scan, going on behind a key.
SELECT {columns} FROM {table} WHERE {prefix} AND ({order}) > ({marks}) ORDER BY {order} LIMIT ?
