-- insert: one new record of a kind. Inserts nothing if its key is taken (the caller reads who took it).
INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING
