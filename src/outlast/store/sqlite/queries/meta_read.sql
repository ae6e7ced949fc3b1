-- meta_read: one setting that is fixed when the store is created.
SELECT value FROM outlast_meta WHERE name = ?
