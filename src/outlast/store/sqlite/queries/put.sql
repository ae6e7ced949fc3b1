-- put: the record, whether or not one was there.
INSERT OR REPLACE INTO {table}{columns} VALUES ({marks})
