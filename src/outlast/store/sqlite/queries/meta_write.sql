-- meta_write: a setting.
INSERT OR REPLACE INTO outlast_meta (name, value) VALUES (?, ?)
