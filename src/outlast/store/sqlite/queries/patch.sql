-- patch: new values for some fields of one record, by key.
UPDATE {table} SET {assignments} WHERE {key}
