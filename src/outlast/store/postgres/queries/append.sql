-- append: the function that adds frames to an execution's stream, fenced by its holder's epoch, created by migrate.
-- The execution's row is locked, so that frames are numbered in the order of their commits. A repeated append is
-- recognised: its frames are among the newest.

-- part: function
CREATE FUNCTION outlast.{name}(
  _partition int, _namespace text, _execution text, _status text, _epoch bigint, _change text, frames text,
  clock_ms bigint, floor_ms bigint, OUT applied boolean, OUT newest bigint, OUT now_ms bigint
) LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $function$
DECLARE
  v_held boolean;
BEGIN
  SELECT x.status = _status AND x.epoch = _epoch INTO v_held FROM outlast.execution AS x
  WHERE x.partition = _partition AND x.namespace = _namespace AND x.id = _execution FOR NO KEY UPDATE;
  SELECT greatest(
      coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, c.last_value)
    INTO now_ms FROM outlast.clock AS c;
  SELECT coalesce(max(f.seq), 0), coalesce(bool_or(f.change_id = _change), false) INTO newest, applied FROM (
    SELECT f.seq, f.change_id FROM outlast.frame AS f
    WHERE f.partition = _partition AND f.namespace = _namespace AND f.execution = _execution
    ORDER BY f.seq DESC LIMIT 10000
  ) AS f;
  IF applied OR NOT coalesce(v_held, false) THEN
    RETURN;
  END IF;
  INSERT INTO outlast.frame (partition, namespace, execution, seq, at, value, change_id)
  SELECT _partition, _namespace, _execution, newest + f.n, now_ms, decode(f.value, 'hex'), _change
  FROM json_array_elements_text(frames::json) WITH ORDINALITY AS f(value, n);
  newest := newest + json_array_length(frames::json);
  applied := true;
  PERFORM setval('outlast.clock', now_ms) FROM outlast.clock AS c WHERE c.last_value < now_ms;
END
$function$

-- part: call
SELECT applied, newest, now_ms FROM outlast.{name}(
  :partition, :namespace, :execution, :status, :epoch, :change, :frames, :clock_ms, :floor_ms
)
