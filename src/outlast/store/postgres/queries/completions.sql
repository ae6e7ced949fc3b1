-- completions: the feed behind a cursor, in the order of transactions, up to the oldest that is still under way: what
-- commits later comes later. {filter} is empty, or parts of filter.sql.

-- part: page
SELECT x.tx::text AS tx, {columns} FROM outlast.completion AS x
WHERE (x.tx, x.seq) > (:after_tx::text::xid8, :after_seq) AND x.tx < :horizon::text::xid8 {filter}
ORDER BY x.tx, x.seq LIMIT :limit

-- part: horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
  (SELECT max(x.tx) >= pg_snapshot_xmin(pg_current_snapshot()) FROM outlast.completion AS x) AS more

-- part: newest
SELECT x.tx::text AS tx, x.seq FROM outlast.completion AS x WHERE x.tx < :horizon::text::xid8
ORDER BY x.tx DESC, x.seq DESC LIMIT 1
