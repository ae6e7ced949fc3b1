-- completions: the feed behind a cursor, in commit order. {filter} is empty, or parts of filter.sql.
SELECT {columns} FROM outlast_completion AS x WHERE x.seq > :after {filter} ORDER BY x.seq LIMIT :limit
