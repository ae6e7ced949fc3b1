-- start: starting an execution inside of somebody else's transaction. It exists when that commits, and never was if
-- that rolls back. Filled in by functions.py; created by migrate.

-- part: join
-- Asked before `call`, on the caller's connection. The setting lives as long as the transaction: if it is gone by the
-- next statement, there is none, and `call` writes nothing.
SELECT to_regprocedure('outlast.{start}(json)') IS NOT NULL AS known, set_config('outlast.joined', :caller, true) AS caller

-- part: call
-- Given as text: the caller may have a way of their own to write JSON.
SELECT outcome, existing, now_ms FROM outlast.{start}(CAST(CAST(:asked AS text) AS json))

-- part: function
-- inputs: asked, a document: the arguments of `commit` for one change that inserts an execution; which execution that
--   is; who is to be told; which store is meant, and who joined the transaction (both null if nobody wants to know).
-- result: `started`; `exists`, with the record that is there, and its input if it is another's; `elsewhere`, it is not
--   that store; `alone`, the statement is its own transaction. Nothing is written but by `started`.
-- locks: none but that on the key itself: who starts the same id meanwhile waits for the end of the transaction.
CREATE FUNCTION outlast.{start}(asked json, OUT outcome text, OUT existing text, OUT now_ms bigint) LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $function$
DECLARE
  v_docs text[];
  v_refused text;
BEGIN
  IF asked ->> 'store' <> (SELECT m.value || ' ' || current_database() FROM outlast.meta AS m WHERE m.name = 'identity')
  THEN
    outcome := 'elsewhere';
    RETURN;
  END IF;
  IF asked ->> 'caller' <> coalesce(current_setting('outlast.joined', true), '') THEN
    outcome := 'alone';
    RETURN;
  END IF;
  SELECT array_agg(d.rows ORDER BY d.n) INTO v_docs
  FROM json_array_elements_text(asked -> 'docs') WITH ORDINALITY AS d(rows, n);
  FOR chance IN 1..20 LOOP
    SELECT to_jsonb(x) || jsonb_build_object('input', CASE
        WHEN x.workflow = asked ->> 'workflow' AND x.input_digest = asked ->> 'input_digest' THEN NULL
        ELSE (SELECT encode(p.value, 'hex') FROM outlast.payload AS p
          WHERE p.partition = x.partition AND p.namespace = x.namespace AND p.execution = x.id
            AND p.generation = x.journal_generation AND p.role = asked ->> 'role') END)
      INTO existing FROM outlast.execution AS x
      WHERE x.partition = (asked ->> 'partition')::int
        AND x.namespace = asked ->> 'namespace' AND x.id = asked ->> 'id';
    IF existing IS NOT NULL THEN
      outcome := 'exists';
      RETURN;
    END IF;
    BEGIN
      SELECT c.refused_list, c.now_ms INTO v_refused, now_ms FROM outlast.{commit}(
        asked ->> 'anchors', asked ->> 'slots', v_docs,
        (asked ->> 'clock_ms')::bigint, coalesce((asked ->> 'floor_ms')::bigint, 0)) AS c;
      IF v_refused = '' THEN
        IF asked ->> 'heard' IS NOT NULL THEN
          PERFORM pg_notify('outlast', asked ->> 'heard');
        END IF;
        outcome := 'started';
        RETURN;
      END IF;
    EXCEPTION WHEN unique_violation THEN
      NULL;  -- somebody started it just now: look again
    END;
  END LOOP;
  RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'this id was started by another transaction, which this one cannot see: begin anew';
END
$function$

-- part: canonical
-- The one text of a JSON value: no spaces, keys in order. As Outlast's own encoder writes it.
CREATE FUNCTION outlast.{canonical}(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog AS $function$
BEGIN
  RETURN CASE jsonb_typeof(value)
    WHEN 'object' THEN '{' || coalesce((
      SELECT string_agg(to_json(e.key)::text || ':' || outlast.{canonical}(e.value), ',' ORDER BY e.key COLLATE "C")
      FROM jsonb_each(value) AS e), '') || '}'
    WHEN 'array' THEN '[' || coalesce((
      SELECT string_agg(outlast.{canonical}(e.value), ',' ORDER BY e.n)
      FROM jsonb_array_elements(value) WITH ORDINALITY AS e(value, n)), '') || ']'
    ELSE value::text END;
END
$function$

-- part: face
-- For people and programs that speak SQL; docs/postgres.md describes the arguments. The rows that it writes are those
-- that the machine answers to a start, as two samples that were taken when this text was made: one ready, one delayed.
CREATE OR REPLACE FUNCTION outlast.start(
  workflow text, input jsonb DEFAULT '{}', id text DEFAULT NULL, namespace text DEFAULT 'default',
  version text DEFAULT '1', lane text DEFAULT 'default', requires text[] DEFAULT '{}', priority int DEFAULT 0,
  delay interval DEFAULT '0', deadline interval DEFAULT NULL, timeout interval DEFAULT NULL, retry jsonb DEFAULT NULL,
  retention interval DEFAULT NULL, tags jsonb DEFAULT '{}', if_exists text DEFAULT 'same'
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog SET standard_conforming_strings = on
AS $function$
#variable_conflict use_variable
DECLARE
  v_id text := coalesce(id, gen_random_uuid()::text);
  v_change text := gen_random_uuid()::text;
  v_requires text[] := coalesce((SELECT array_agg(DISTINCT r.word COLLATE "C" ORDER BY r.word COLLATE "C")
    FROM unnest(requires) AS r(word)), '{}');
  v_delay_ms bigint;
  v_input text;
  v_digest text;
  v_partitions bigint;
  v_hash text;
  v_partition bigint;
  v_sample jsonb;
  v_row jsonb;
  v_more jsonb;
  v_slots text := '{slots}';
  v_docs jsonb;
  v_payload jsonb;
  v_started record;
  v_existing jsonb;
  v_wrong text;
BEGIN
  IF workflow IS NULL OR input IS NULL OR namespace IS NULL OR version IS NULL OR lane IS NULL OR requires IS NULL
    OR priority IS NULL OR delay IS NULL OR tags IS NULL OR if_exists IS NULL
  THEN
    v_wrong := 'only id, deadline, timeout, retry and retention may be null';
  ELSIF jsonb_typeof(input) <> 'object' THEN
    v_wrong := 'input must be an object: the arguments of the workflow by name';
  ELSIF starts_with(workflow, '{OWN_PREFIX}') THEN
    v_wrong := format('workflow %s: names that begin with {OWN_PREFIX} are reserved', to_json(workflow));
  ELSIF jsonb_typeof(tags) <> 'object' THEN
    v_wrong := 'tags must be an object with texts';
  ELSIF EXISTS (SELECT 1 FROM jsonb_each(tags) AS t WHERE jsonb_typeof(t.value) <> 'string') THEN
    v_wrong := 'tags must be an object with texts';
  ELSIF if_exists NOT IN ('same', 'error') THEN
    v_wrong := format('if_exists must be same or error here, not %s', if_exists);
  ELSIF priority NOT BETWEEN {PRIORITY_MIN} AND {PRIORITY_MAX} THEN
    v_wrong := format('priority must be between {PRIORITY_MIN} and {PRIORITY_MAX}, not %s', priority);
  ELSIF cardinality(v_requires) > {REQUIRES_MAX} OR (SELECT count(*) FROM jsonb_object_keys(tags)) > {TAGS_MAX} THEN
    v_wrong := 'there may be {REQUIRES_MAX} capabilities and {TAGS_MAX} tags';
  ELSE
    SELECT format('%s %s: it must be a name of at most %s printable characters%s', n.what, coalesce(to_json(n.name)::text, 'null'), n.most,
        CASE WHEN n.never <> '' THEN ', without ' || n.never ELSE '' END)
      INTO v_wrong
    FROM (
      SELECT 'id' AS what, v_id AS name, {ID_MAX_CHARS} AS most, '/' AS never
      UNION ALL SELECT 'namespace', namespace, {NAME_MAX_CHARS}, ''
      UNION ALL SELECT w.what, w.name, {NAME_MAX_CHARS}, ',| '
        FROM (VALUES ('workflow', workflow), ('version', version), ('lane', lane)) AS w(what, name)
      UNION ALL SELECT 'capability', r.word, {NAME_MAX_CHARS}, ',| ' FROM unnest(v_requires) AS r(word)
      UNION ALL SELECT 'tag', t.key, {TAG_KEY_MAX_CHARS}, '' FROM jsonb_each_text(tags) AS t
      UNION ALL SELECT 'value of tag', t.value, {TAG_VALUE_MAX_CHARS}, '' FROM jsonb_each_text(tags) AS t
    ) AS n
    WHERE n.name IS NULL OR length(n.name) NOT BETWEEN 1 AND n.most OR n.name <> btrim(n.name)
      -- The usual names first: a connection takes a while to read the other one.
      OR CASE WHEN n.name ~ '^[ -~]*$' THEN false ELSE n.name ~ {unprintable} END
      OR translate(n.name, n.never, '') <> n.name
    LIMIT 1;
  END IF;
  IF v_wrong IS NULL THEN
    SELECT format('%s must be %s and at most a hundred years, not %s', d.what,
        CASE WHEN d.zero THEN 'no less than nothing' ELSE 'longer than nothing' END, d.long)
      INTO v_wrong
    FROM (VALUES ('delay', delay, true), ('deadline', deadline, false), ('timeout', timeout, false),
      ('retention', retention, true)) AS d(what, long, zero)
    WHERE d.long IS NOT NULL AND (
      extract(epoch FROM d.long) * 1000 > {DURATION_MAX_MS}
      OR round(extract(epoch FROM d.long) * 1000) < CASE WHEN d.zero THEN 0 ELSE 1 END)
    LIMIT 1;
  END IF;
  IF v_wrong IS NULL AND retry IS NOT NULL THEN
    v_wrong := 'retry takes max_attempts, initial_ms, backoff (1 to 1000), max_delay_ms and jitter (0 to 1)';
    IF jsonb_typeof(retry) = 'object' THEN
      IF jsonb_typeof(retry -> 'initial_ms') = 'number' AND NOT retry ? 'max_delay_ms' THEN
        -- The default cuts no first delay, as with Retry in Python.
        retry := retry || jsonb_build_object('max_delay_ms',
          greatest((retry ->> 'initial_ms')::numeric, ('{retry}'::jsonb ->> 'max_delay_ms')::numeric));
      END IF;
      retry := '{retry}'::jsonb || retry;
      IF NOT EXISTS (SELECT 1 FROM jsonb_each(retry) AS r WHERE jsonb_typeof(r.value) <> 'number') THEN
        IF (SELECT count(*) FROM jsonb_object_keys(retry)) = 5
          AND (retry ->> 'max_attempts')::numeric BETWEEN 1 AND {ATTEMPTS_MAX}
          AND (retry ->> 'initial_ms')::numeric BETWEEN 0 AND {DURATION_MAX_MS}
          AND (retry ->> 'max_delay_ms')::numeric BETWEEN 0 AND {DURATION_MAX_MS}
          AND NOT EXISTS (SELECT 1 FROM jsonb_each_text(retry - '{backoff,jitter}'::text[]) AS r
            WHERE r.value::numeric % 1 <> 0)
          AND (retry ->> 'backoff')::numeric BETWEEN 1 AND 1000 AND (retry ->> 'jitter')::numeric BETWEEN 0 AND 1
        THEN
          v_wrong := NULL;
        END IF;
      END IF;
    END IF;
  END IF;
  v_input := outlast.{canonical}(input);
  IF v_wrong IS NULL AND octet_length(convert_to(v_input, 'UTF8')) > {PAYLOAD_MAX_BYTES} THEN
    v_wrong := 'input is longer than {PAYLOAD_MAX_BYTES} bytes';
  END IF;
  IF v_wrong IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = v_wrong;
  END IF;

  SELECT m.value::bigint INTO v_partitions FROM outlast.meta AS m WHERE m.name = 'partitions';
  v_delay_ms := extract(epoch FROM delay) * 1000;
  v_hash := encode(sha256(convert_to(length(namespace) || ':' || namespace || ':' || v_id, 'UTF8')), 'hex');
  v_partition := (('x' || substr(v_hash, 1, 8))::bit(32)::bigint % v_partitions * (4294967296 % v_partitions)
    + ('x' || substr(v_hash, 9, 8))::bit(32)::bigint % v_partitions) % v_partitions;
  v_digest := encode(sha256(convert_to(v_input, 'UTF8')), 'hex');

  v_sample := CASE WHEN v_delay_ms > 0 THEN '{delayed}'::jsonb ELSE '{ready}'::jsonb END;
  v_row := v_sample -> 'execution' || jsonb_build_object(
    'partition', v_partition, 'namespace', namespace, 'id', v_id, 'workflow', workflow, 'version', version,
    'lane', lane, 'priority', priority, 'tags', outlast.{canonical}(tags), 'input_digest', v_digest,
    'route', format(v_sample -> 'execution' ->> 'route', workflow, version, array_to_string(v_requires, ',')),
    'epoch', floor(random() * {FIRST_EPOCHS})::bigint, 'change_id', v_change);
  IF v_delay_ms > 0 THEN
    v_row := v_row || jsonb_build_object('wake_at', {RELATIVE} + v_delay_ms);
  END IF;
  IF deadline IS NOT NULL THEN
    v_row := v_row || jsonb_build_object('deadline_ms', (extract(epoch FROM deadline) * 1000)::bigint,
      'deadline_at', {RELATIVE} + (extract(epoch FROM deadline) * 1000)::bigint);
  END IF;
  IF timeout IS NOT NULL THEN
    v_row := v_row || jsonb_build_object('timeout_ms', (extract(epoch FROM timeout) * 1000)::bigint);
  END IF;
  IF retention IS NOT NULL THEN
    v_row := v_row || jsonb_build_object('retention_ms', (extract(epoch FROM retention) * 1000)::bigint);
  END IF;
  IF retry IS NOT NULL THEN
    v_row := v_row || jsonb_build_object('retry', format(
      '{"max_attempts":%s,"initial_ms":%s,"backoff":%s,"max_delay_ms":%s,"jitter":%s}',
      (retry ->> 'max_attempts')::numeric::bigint, (retry ->> 'initial_ms')::numeric::bigint,
      trim_scale((retry ->> 'backoff')::numeric) || CASE WHEN (retry ->> 'backoff')::numeric % 1 = 0 THEN '.0' ELSE '' END,
      (retry ->> 'max_delay_ms')::numeric::bigint,
      trim_scale((retry ->> 'jitter')::numeric) || CASE WHEN (retry ->> 'jitter')::numeric % 1 = 0 THEN '.0' ELSE '' END));
  END IF;

  v_payload := v_sample -> 'payload' || jsonb_build_object(
    'partition', v_partition, 'namespace', namespace, 'execution', v_id, 'change_id', v_change,
    'value', encode(convert_to(v_input, 'UTF8'), 'base64'));
  -- Each is a group of its own, and its only row.
  v_docs := jsonb_build_array(
    jsonb_build_array(v_row || jsonb_build_object('rows', jsonb_build_array(v_row))),
    jsonb_build_array(v_payload || jsonb_build_object('rows', jsonb_build_array(v_payload))));
  v_docs := v_docs || v_docs;  -- whether they are there, and then to be there
  SELECT jsonb_agg(jsonb_build_object('ix', 0, 'partition', v_partition, 'namespace', namespace, 'execution', v_id,
    'tag', t.key, 'value', t.value)) INTO v_more FROM jsonb_each_text(tags) AS t;
  IF v_more IS NOT NULL THEN
    v_docs := v_docs || jsonb_build_array(v_more);
    v_slots := v_slots || ',{slot_tag}';
  END IF;
  SELECT * INTO v_started FROM outlast.{start}(json_build_object(
    'anchors', jsonb_build_array(jsonb_build_object(
      'ix', 0, 'partition', v_partition, 'namespace', namespace, 'id', v_id)),
    'slots', v_slots, 'docs', v_docs, 'heard', format(v_sample ->> 'heard', namespace, lane),
    'partition', v_partition, 'namespace', namespace, 'id', v_id, 'workflow', workflow, 'input_digest', v_digest));
  IF v_started.outcome = 'exists' THEN
    v_existing := v_started.existing::jsonb;
    IF v_existing ->> 'workflow' <> workflow OR v_existing ->> 'input_digest' <> v_digest THEN
      RAISE EXCEPTION USING ERRCODE = 'OL002',
        MESSAGE = format('execution %s exists with other arguments and is %s', to_json(v_id), v_existing ->> 'status');
    ELSIF if_exists = 'error' THEN
      RAISE EXCEPTION USING ERRCODE = 'OL002',
        MESSAGE = format('execution %s exists and is %s', to_json(v_id), v_existing ->> 'status');
    END IF;
  END IF;
  RETURN v_id;
END
$function$
