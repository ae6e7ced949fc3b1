-- commit: the function that applies a batch of guarded changes in one call, filled in from `model/kinds.py` and created
-- by migrate. Each statement of it has a snapshot of its own, so what the locks waited for is seen by what follows.
--
-- inputs: anchors, the executions to lock, in key order, with what guards expect of them; slots, the operations on kinds
--   that occur, as numbers in growing order (see functions.py); docs, the rows of each as JSON, those that are written in
--   hundreds in groups that share most of their fields (see rows.py).
-- result: the commit's time; the changes that were refused, by their number; the inbox of each anchor. As text: asyncpg
--   would look up every other type of array on each new connection, which takes longer than the commit.
-- locks: anchors, then loose rows (flow, lane, outbox, session, summary), each in key order.
-- An insert that meets a record fails (23505), and with it the call: nothing is written, and the caller asks again, this
-- time with a look at every key first (`taken`).
-- A row is changed by its place, found by its key: there is no index to take instead, so that no plan, on whatever size
-- of the table it was made, goes over the table first. The part as well, because in a partitioned table places repeat.
-- Settings come from who calls, because to set them costs more than to find a slot: plans are made for any value, never
-- scan a table and never join by hash or merge. What is prepared on an empty table serves a full one.
-- `outlast.clock` is read and set by plain expressions: each statement costs as much as several rows.

-- part: function
CREATE FUNCTION outlast.{name}(
  anchors text, slots text, docs text[], clock_ms bigint, floor_ms bigint,
  OUT now_ms bigint, OUT refused_list text, OUT inbox_list text
) LANGUAGE plpgsql AS $function$
DECLARE
  numbers int[] := pg_catalog.string_to_array(slots, ',')::int[];
  nth int := 1;
  slot int := numbers[1];
  doc json;
  refused int[];
  inboxes bigint[];
  more int[];
  newest bigint;
BEGIN
  SELECT array_agg(e.inbox), array_agg(q.ix) FILTER (WHERE q.must AND e.same IS NOT TRUE)
    INTO inboxes, refused
  FROM json_to_recordset(anchors::json) AS q(
    ix int, partition int, namespace text, id text, must boolean, {expected_types}, more jsonb)
  LEFT JOIN LATERAL (
    SELECT x.inbox, {expected} AND CASE WHEN q.more IS NULL THEN true ELSE to_jsonb(x) @> q.more END AS same
    FROM outlast.execution AS x
    WHERE x.partition = q.partition AND x.namespace = q.namespace AND x.id = q.id
    FOR NO KEY UPDATE
  ) AS e ON true;
  refused := coalesce(refused, ARRAY[]::int[]);
  WHILE slot <= {last_lock} LOOP
    doc := docs[nth];
{locks}
    nth := nth + 1;
    slot := numbers[nth];
  END LOOP;
  newest := pg_sequence_last_value('outlast.clock');
  now_ms := greatest(coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, newest);
  WHILE slot IS NOT NULL LOOP
    doc := docs[nth];
{rest}
    nth := nth + 1;
    slot := numbers[nth];
  END LOOP;
  IF newest IS NULL OR newest < now_ms THEN
    newest := setval('outlast.clock', now_ms);
  END IF;
  refused_list := array_to_string(refused, ',');
  inbox_list := array_to_string(inboxes, ',', '');
END
$function$

-- part: lock
PERFORM 1 FROM json_to_recordset(doc) AS q({key_types})
CROSS JOIN LATERAL (SELECT 1 FROM outlast.{kind} AS t WHERE {same_key} FOR {strength}) AS l;

-- part: guard
-- Most are about a time, or that there is nothing: only to compare fields that few ask for the row is made a document.
-- One is asked for all changes that have it.
SELECT array_agg(f.ix) INTO more FROM (
  SELECT unnest(q.askers) AS ix
  FROM json_to_recordset(doc) AS q(askers int[], test text, field text, fields jsonb, {asked_types})
  LEFT JOIN LATERAL (
    SELECT true AS here, CASE q.field{numbers} END AS at,
      CASE WHEN q.test = 'matches'
        THEN CASE WHEN q.fields IS NULL THEN true ELSE to_jsonb(t) @> q.fields END{compared} END AS same
    FROM outlast.{kind} AS t WHERE {same_key} OFFSET 0
  ) AS o ON true
  WHERE NOT CASE q.test
    WHEN 'matches' THEN coalesce(o.same, false)
    WHEN 'absent' THEN o.here IS NULL
    WHEN 'reached' THEN coalesce(o.at <= now_ms, false)
    WHEN 'ahead' THEN coalesce(o.at > now_ms, false)
    WHEN 'lapsed' THEN coalesce(o.at <= now_ms, true)
  END
) AS f;
refused := refused || coalesce(more, ARRAY[]::int[]);

-- part: taken
SELECT array_agg(q.ix) INTO more FROM {keys}
CROSS JOIN LATERAL (SELECT 1 FROM outlast.{kind} AS t WHERE {same_row} OFFSET 0) AS o;
refused := refused || coalesce(more, ARRAY[]::int[]);

-- part: insert
INSERT INTO outlast.{kind} ({columns})
SELECT {settled} FROM {rows}
WHERE q.ix <> ALL (refused);

-- part: put
INSERT INTO outlast.{kind} ({columns})
SELECT {settled_flat} FROM json_to_recordset(doc) AS q(ix int, {types})
WHERE q.ix <> ALL (refused)
ON CONFLICT ({key}) DO UPDATE SET {excluded};

-- part: delete
DELETE FROM outlast.{kind} AS t USING json_to_recordset(doc) AS q(ix int, {key_types})
CROSS JOIN LATERAL (
  SELECT x.ctid AS place, x.tableoid AS home FROM outlast.{kind} AS x WHERE {same_key_of_x} OFFSET 0
) AS o
WHERE t.ctid = o.place AND t.tableoid = o.home AND q.ix <> ALL (refused);

-- part: patch
-- `fields` has a bit for each field that the patch is about: any other keeps its value.
UPDATE outlast.{kind} AS t SET {patched}
FROM {patches}
CROSS JOIN LATERAL (
  SELECT x.ctid AS place, x.tableoid AS home FROM outlast.{kind} AS x WHERE {same_row_of_x} OFFSET 0
) AS o
WHERE t.ctid = o.place AND t.tableoid = o.home AND q.ix <> ALL (refused);

-- part: add
UPDATE outlast.{kind} AS t SET {added}
FROM (
  SELECT {key_of_q}, {sums} FROM json_to_recordset(doc) AS q(ix int, {key_types}, {number_types})
  WHERE q.ix <> ALL (refused) GROUP BY {key_of_q}
) AS q
CROSS JOIN LATERAL (
  SELECT x.ctid AS place, x.tableoid AS home FROM outlast.{kind} AS x WHERE {same_key_of_x} OFFSET 0
) AS o
WHERE t.ctid = o.place AND t.tableoid = o.home;

-- part: call
SELECT now_ms, refused_list, inbox_list, false AS rung
FROM outlast.{name}(:anchors, :slots, :docs, :clock_ms, :floor_ms)

-- part: prompt_call
-- The same, and who meets a lock waits only so long; that goes with the transaction. An argument depends on what sets
-- it, so it is set before the function is called.
WITH prompt AS MATERIALIZED (SELECT set_config('lock_timeout', :wait_ms, true) AS wait_ms)
SELECT c.now_ms, c.refused_list, c.inbox_list, false AS rung
FROM prompt,
  LATERAL outlast.{name}(:anchors, :slots || left(prompt.wait_ms, 0), :docs, :clock_ms, :floor_ms) AS c

-- part: ringing_call
-- The same, and a ring that is heard when it is committed; only if nobody else's commit rings just now, because those
-- that do wait for each other's disk.
SELECT now_ms, refused_list, inbox_list,
  CASE WHEN coalesce(refused_list, '') <> '' THEN false
    WHEN pg_try_advisory_xact_lock(hashtextextended('outlast.ring', 0)) THEN pg_notify(:bell, :heard)::text = ''
    ELSE false END AS rung
FROM outlast.{name}(:anchors, :slots, :docs, :clock_ms, :floor_ms)
