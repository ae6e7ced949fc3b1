-- delete: one record, by key.
DELETE FROM {table} WHERE {key}
