-- has_schema: whether this file holds an Outlast store.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outlast_meta'
