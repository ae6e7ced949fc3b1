-- commit: the function that applies a batch of guarded changes in one call, filled in from `model/kinds.py` and created
-- by migrate. Each statement of it has a snapshot of its own, so what the locks waited for is seen by what follows.
--
-- inputs: anchors, the executions to lock, in key order, with what guards expect of them; docs, a slot per kind and
--   operation (see commit.py) with rows as JSON; operations, which of them occur; sizes, how many rows each slot has; careful, whether inserts are looked up before they are made.
-- result: the commit's time; the changes that were refused, by their number; the inbox of each anchor. As text: asyncpg
--   would look up every other type of array on each new connection, which takes longer than the commit.
-- locks: anchors, then loose rows (flow, lane, outbox, quota, session, summary), each in key order.
-- A row is changed by its place, found by its key; the key again, because in a partitioned table places repeat.
-- Plans are made for any value and never scan a table: what is prepared on an empty table serves a full one.

-- part: function
CREATE FUNCTION outlast.{name}(
  anchors text, operations text, docs text[], sizes text[], careful boolean, clock_ms bigint, floor_ms bigint,
  OUT now_ms bigint, OUT refused_list text, OUT inbox_list text
) LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $function$
DECLARE
  refused int[];
  inboxes bigint[];
  more int[];
  made bigint;
  wanted bigint;
BEGIN
  SELECT array_agg(e.inbox ORDER BY q.n), array_agg(q.ix) FILTER (WHERE q.must AND (
      e.epoch IS NULL OR NOT e.same OR e.epoch <> coalesce(q.epoch, e.epoch)
      OR e.status <> coalesce(q.status, e.status) OR e.inbox <> coalesce(q.inbox, e.inbox)))
    INTO inboxes, refused
  FROM ROWS FROM (json_to_recordset(anchors::json) AS (
      ix int, partition int, namespace text, id text, must boolean, epoch bigint, status text, inbox bigint, more jsonb
    )) WITH ORDINALITY AS q(ix, partition, namespace, id, must, epoch, status, inbox, more, n)
  LEFT JOIN LATERAL (
    SELECT x.epoch, x.status, x.inbox, CASE WHEN q.more IS NULL THEN true ELSE to_jsonb(x) @> q.more END AS same
    FROM outlast.execution AS x
    WHERE x.partition = q.partition AND x.namespace = q.namespace AND x.id = q.id
    FOR NO KEY UPDATE
  ) AS e ON true;
  refused := coalesce(refused, ARRAY[]::int[]);
  IF strpos(operations, 'lock') > 0 OR strpos(operations, 'share') > 0 THEN
{locks}
  END IF;
  SELECT greatest(
      coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, c.last_value)
    INTO now_ms FROM outlast.clock AS c;
  IF strpos(operations, 'guard') > 0 THEN
{guards}
  END IF;
  IF careful THEN
{taken}
  END IF;
  IF strpos(operations, 'delete') > 0 THEN
{deletes}
  END IF;
  IF strpos(operations, 'insert') > 0 THEN
{inserts}
  END IF;
  IF strpos(operations, 'put') > 0 THEN
{puts}
  END IF;
  IF strpos(operations, 'patch') > 0 THEN
{patches}
  END IF;
  IF strpos(operations, 'add') > 0 THEN
{adds}
  END IF;
  PERFORM setval('outlast.clock', now_ms) FROM outlast.clock AS c WHERE c.last_value < now_ms;
  refused_list := array_to_string(refused, ',');
  inbox_list := array_to_string(inboxes, ',', '');
END
$function$

-- part: lock
  IF docs[{slot}] IS NOT NULL THEN
    PERFORM 1 FROM json_to_recordset(docs[{slot}]::json) AS q({key_types})
    CROSS JOIN LATERAL (SELECT 1 FROM outlast.{kind} AS t WHERE {same_key} FOR {strength}) AS l;
  END IF;

-- part: guard
  IF docs[{slot}] IS NOT NULL THEN
    SELECT array_agg(q.ix) INTO more
    FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, test text, field text, fields jsonb, {key_types})
    LEFT JOIN LATERAL (SELECT to_jsonb(t) AS row FROM outlast.{kind} AS t WHERE {same_key} OFFSET 0) AS o ON true
    WHERE NOT CASE q.test
      WHEN 'matches' THEN coalesce(o.row @> q.fields, false)
      WHEN 'absent' THEN o.row IS NULL
      WHEN 'reached' THEN coalesce((o.row ->> q.field)::bigint <= now_ms, false)
      WHEN 'ahead' THEN coalesce((o.row ->> q.field)::bigint > now_ms, false)
      WHEN 'lapsed' THEN coalesce((o.row ->> q.field)::bigint <= now_ms, true)
    END;
    refused := refused || coalesce(more, ARRAY[]::int[]);
  END IF;

-- part: taken
    IF docs[{slot}] IS NOT NULL THEN
      SELECT array_agg(q.ix) INTO more FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, {key_types})
      CROSS JOIN LATERAL (SELECT 1 FROM outlast.{kind} AS t WHERE {same_key} OFFSET 0) AS o;
      refused := refused || coalesce(more, ARRAY[]::int[]);
    END IF;

-- part: insert
  IF docs[{slot}] IS NOT NULL THEN
    INSERT INTO outlast.{kind} ({columns})
    SELECT {settled} FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, {types})
    WHERE q.ix <> ALL (refused) ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS made = ROW_COUNT;
    wanted := sizes[{slot}]::bigint;
    IF cardinality(refused) > 0 THEN
      SELECT count(*) INTO wanted FROM json_to_recordset(docs[{slot}]::json) AS q(ix int) WHERE q.ix <> ALL (refused);
    END IF;
    IF made <> wanted THEN
      -- Taken by somebody: nothing is written, and the caller asks again, carefully.
      RAISE EXCEPTION USING ERRCODE = 'OL001', MESSAGE = 'a key of {kind} is taken';
    END IF;
  END IF;

-- part: put
  IF docs[{slot}] IS NOT NULL THEN
    INSERT INTO outlast.{kind} ({columns})
    SELECT {settled} FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, {types})
    WHERE q.ix <> ALL (refused)
    ON CONFLICT ({key}) DO UPDATE SET {excluded};
  END IF;

-- part: delete
  IF docs[{slot}] IS NOT NULL THEN
    DELETE FROM outlast.{kind} AS t USING json_to_recordset(docs[{slot}]::json) AS q(ix int, {key_types})
    CROSS JOIN LATERAL (SELECT x.ctid AS place FROM outlast.{kind} AS x WHERE {same_key_of_x} OFFSET 0) AS o
    WHERE t.ctid = o.place AND {same_key} AND q.ix <> ALL (refused);
  END IF;

-- part: patch
  IF docs[{slot}] IS NOT NULL THEN
    UPDATE outlast.{kind} AS t SET {patched}
    FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, fields jsonb, {key_types})
    CROSS JOIN LATERAL (
      SELECT x.ctid AS place, x AS old FROM outlast.{kind} AS x WHERE {same_key_of_x} OFFSET 0
    ) AS o
    CROSS JOIN LATERAL jsonb_populate_record(o.old, q.fields) AS r
    WHERE t.ctid = o.place AND {same_key} AND q.ix <> ALL (refused);
  END IF;

-- part: add
  IF docs[{slot}] IS NOT NULL THEN
    UPDATE outlast.{kind} AS t SET {added}
    FROM (
      SELECT {key_of_q}, {sums} FROM json_to_recordset(docs[{slot}]::json) AS q(ix int, {key_types}, {number_types})
      WHERE q.ix <> ALL (refused) GROUP BY {key_of_q}
    ) AS q
    CROSS JOIN LATERAL (SELECT x.ctid AS place FROM outlast.{kind} AS x WHERE {same_key_of_x} OFFSET 0) AS o
    WHERE t.ctid = o.place AND {same_key};
  END IF;

-- part: call
SELECT now_ms, refused_list, inbox_list FROM outlast.{name}(:anchors, :operations, :docs, :sizes, :careful, :clock_ms, :floor_ms)
