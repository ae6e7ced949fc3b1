-- renew: the function that keeps a worker's sessions alive, one in each partition (a start that claims needs one in any
-- of them), and says what hangs on them, created by migrate.
-- Sessions are locked in key order; the leases are read after that, so that a takeover that came first is seen.
-- result: a row per lease; or one row without any, which tells the time.

-- part: function
CREATE FUNCTION outlast.{name}(
  _worker text, _ttl_ms bigint, _partitions int, clock_ms bigint, floor_ms bigint
) RETURNS TABLE (now_ms bigint, namespace text, id text, epoch bigint, inbox bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  v_now bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);  -- as with claims: it says who holds what, and until when
  PERFORM 1 FROM generate_series(0, _partitions - 1) AS q(partition) CROSS JOIN LATERAL (
    SELECT 1 FROM outlast.session AS s WHERE s.partition = q.partition AND s.worker = _worker FOR NO KEY UPDATE
  ) AS l;
  SELECT greatest(
      coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, c.last_value)
    INTO v_now FROM outlast.clock AS c;
  INSERT INTO outlast.session AS s (partition, worker, expires_at, started_at)
  SELECT q.partition, _worker, v_now + _ttl_ms, v_now
  FROM generate_series(0, _partitions - 1) AS q(partition)
  ON CONFLICT (partition, worker) DO UPDATE SET expires_at = greatest(s.expires_at, excluded.expires_at);
  PERFORM setval('outlast.clock', v_now) FROM outlast.clock AS c WHERE c.last_value < v_now;
  RETURN QUERY
    SELECT v_now, x.namespace, x.id, x.epoch, x.inbox FROM outlast.execution AS x WHERE x.worker = _worker;
  IF NOT FOUND THEN
    now_ms := v_now;
    RETURN NEXT;
  END IF;
END
$function$

-- part: call
SELECT * FROM outlast.{name}(:worker, :ttl_ms, :partitions, :clock_ms, :floor_ms)
