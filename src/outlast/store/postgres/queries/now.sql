-- now: the store's time. inputs: a test's time, if any, and what it must not be behind.
SELECT greatest(
  coalesce(:clock_ms::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), :floor_ms::bigint, c.last_value
) AS now_ms FROM outlast.clock AS c
