-- load: records of one kind, by key. inputs: their keys as JSON. Result: the place of each in the list, and its columns.
SELECT q.n, {columns}
FROM ROWS FROM (json_to_recordset(:keys::text::json) AS ({key_types})) WITH ORDINALITY AS q({key}, n)
CROSS JOIN LATERAL (SELECT * FROM outlast.{kind} AS t WHERE {same_key} OFFSET 0) AS x
