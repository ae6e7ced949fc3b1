-- read: some fields of one record, by key. What guards and load read.
SELECT {columns} FROM {table} WHERE {key}
