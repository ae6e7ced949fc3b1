-- purge: the function that deletes ended executions with all that belongs to them, created by migrate. An open one has
-- no purge time and no end, so it is in neither index. A member of a flow is not in that of ends: it goes with its flow,
-- which gives it a purge time. Rows that somebody has locked stay for the next call; a call
-- ends after the execution that passes the bound of rows.

-- part: function
CREATE FUNCTION outlast.{name}(
  _finished_before bigint, _most int, _namespace text, _tag text, _value text, _rows_max bigint,
  clock_ms bigint, floor_ms bigint, OUT purged int, OUT now_ms bigint
) LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $function$
DECLARE
  v_rows bigint := 0;
  v_some bigint;
  ended record;
BEGIN
  purged := 0;
  SELECT greatest(
      coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, c.last_value)
    INTO now_ms FROM outlast.clock AS c;
  IF _finished_before IS NULL THEN
    FOR ended IN
      SELECT x.partition, x.namespace, x.id FROM outlast.execution AS x
      WHERE x.purge_at <= now_ms AND (_namespace IS NULL OR x.namespace = _namespace) AND {tagged}
      ORDER BY x.purge_at LIMIT _most FOR UPDATE SKIP LOCKED
    LOOP
{each}
    END LOOP;
  ELSE
    FOR ended IN
      SELECT x.partition, x.namespace, x.id FROM outlast.execution AS x
      WHERE x.finished_at < _finished_before AND x.flow IS NULL AND (_namespace IS NULL OR x.namespace = _namespace) AND {tagged}
      ORDER BY x.finished_at LIMIT _most FOR UPDATE SKIP LOCKED
    LOOP
{each}
    END LOOP;
  END IF;
  PERFORM setval('outlast.clock', now_ms) FROM outlast.clock AS c WHERE purged > 0 AND c.last_value < now_ms;
END
$function$

-- part: tagged
(_tag IS NULL OR EXISTS (
        SELECT 1 FROM outlast.tag AS t
        WHERE t.partition = x.partition AND t.namespace = x.namespace AND t.execution = x.id
          AND t.tag = _tag AND t.value = _value))

-- part: each
{belongings}
      DELETE FROM outlast.execution AS t
      WHERE t.partition = ended.partition AND t.namespace = ended.namespace AND t.id = ended.id;
      purged := purged + 1;
      v_rows := v_rows + 1;
      EXIT WHEN v_rows >= _rows_max;

-- part: belongings
      DELETE FROM outlast.{kind} AS t
      WHERE t.partition = ended.partition AND t.namespace = ended.namespace AND t.execution = ended.id;
      GET DIAGNOSTICS v_some = ROW_COUNT;
      v_rows := v_rows + v_some;

-- part: call
SELECT purged, now_ms FROM outlast.{name}(
  :finished_before, :most, :namespace, :tag, :value, :rows_max, :clock_ms, :floor_ms
)
