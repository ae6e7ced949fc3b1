-- add: more in one counter of one record, by key.
UPDATE {table} SET {field} = {field} + ? WHERE {key}
