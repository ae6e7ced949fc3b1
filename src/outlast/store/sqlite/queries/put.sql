-- put: the record, whether or not one was there. What a later release keeps in other columns stays.
INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {replaced}
