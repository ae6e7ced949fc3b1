-- claim: the function that takes the next ready executions, created by migrate; it writes exactly what
-- `decide(view, Claim)` gives.
--
-- Settings come from who calls, as with commits. Each statement costs as much as several rows: hence plain expressions.
-- First it looks, without locks, at the heads of the routes that the worker serves (index execution_ready, one short
-- scan each). Rows that it has seen are found by their place: whoever changed one since has moved it, and what has come to
-- a place instead has another key. Then it locks the flows of what it saw (share: a cancel waits, or is seen) and the rows
-- themselves, passing over those that somebody else has locked or moved. If too many were passed over it looks further.
-- Without work it writes nothing, unless the worker's sessions are to be renewed.
-- result: a row per execution with its input, when its first attempt began if it was begun before, its journal and its events as JSON (arrays of their fields; asyncpg would look up every type of array on each new connection) if they are short, and whether there was more that it could have taken;
-- or one row without any, which tells the time and whether work was passed over because it was locked (a moment later it may be free).

-- part: function
CREATE FUNCTION outlast.{name}(
  _namespace text, _lanes text[], _serves text[], _offers text[], _worker text, _claim text, _leap bigint, _most int,
  _ttl_ms bigint, _suspects int, _partitions int, _renew boolean, _first boolean, clock_ms bigint, floor_ms bigint
) RETURNS TABLE (now_ms bigint, passed_over boolean, more boolean, input bytea, began_at bigint, entries text, events text, {types})
LANGUAGE plpgsql AS $function$
#variable_conflict use_column
DECLARE
  v_now bigint; v_newest bigint;
  v_lanes text[]; v_routes text[]; v_suspect boolean[];
  v_depth int := _most + 1;
  v_seen int;
  c_partition int[]; c_id text[]; c_place tid[]; c_home oid[]; c_flow text[]; c_suspect boolean[];
  c_lane text[]; c_route text[];
  k_partition int[]; k_id text[]; k_place tid[]; k_home oid[]; k_lane text[]; k_route text[];
  t_partition int[]; t_id text[]; t_place tid[]; t_home oid[]; t_open boolean[]; t_past boolean;
  v_left int;
  v_found boolean;
BEGIN
  -- Who holds what need not be on the disk before its holder knows: whatever it writes waits for all that stands before.
  -- A server that dies with a claim forgets it, and whoever claims the same has another epoch.
  PERFORM set_config('synchronous_commit', 'off', true);
  -- A claim whose reply was lost: the same id finds what it took. The first time there is nothing to be found, and to look
  -- for it would go over all that the worker holds, and over what it held since the last vacuum.
  IF NOT _first THEN
    v_found := EXISTS (SELECT 1 FROM outlast.execution AS x WHERE x.worker = _worker AND x.claim_id = _claim);
  END IF;
  IF v_found THEN
    SELECT array_agg(x.partition ORDER BY x.priority DESC, x.resumed DESC, x.id),
        array_agg(x.id ORDER BY x.priority DESC, x.resumed DESC, x.id), bool_or(x.resumed OR x.generation > 1)
      INTO t_partition, t_id, t_past
    FROM outlast.execution AS x WHERE x.worker = _worker AND x.claim_id = _claim;
  ELSE
    -- Routes with ready work, by hopping from one to the next in the index: its cost is the number of routes.
    WITH RECURSIVE open_lane AS (
      SELECT DISTINCT l.lane FROM unnest(_lanes) AS l(lane)
      WHERE (SELECT count(*) FROM outlast.lane AS p
             WHERE p.namespace = _namespace AND p.lane = l.lane AND p.paused) < _partitions
    ), hop AS (
      SELECT l.lane, (
        SELECT x.route FROM outlast.execution AS x
        WHERE x.ready_at IS NOT NULL AND x.namespace = _namespace AND x.lane = l.lane
        ORDER BY x.route LIMIT 1
      ) AS route FROM open_lane AS l
      UNION ALL
      SELECT h.lane, (
        SELECT x.route FROM outlast.execution AS x
        WHERE x.ready_at IS NOT NULL AND x.namespace = _namespace AND x.lane = h.lane AND x.route > h.route
        ORDER BY x.route LIMIT 1
      ) FROM hop AS h WHERE h.route IS NOT NULL
    )
    SELECT array_agg(h.lane), array_agg(h.route), array_agg(split_part(h.route, '|', 4) = 'suspect')
      INTO v_lanes, v_routes, v_suspect
    FROM hop AS h
    WHERE h.route IS NOT NULL
      AND split_part(h.route, '|', 1) || '|' || split_part(h.route, '|', 2) = ANY (_serves)
      AND (split_part(h.route, '|', 3) = '' OR string_to_array(split_part(h.route, '|', 3), ',') <@ _offers)
      AND (coalesce(_suspects, 1) > 0 OR split_part(h.route, '|', 4) <> 'suspect');

    WHILE v_routes IS NOT NULL LOOP
      SELECT array_agg(s.partition), array_agg(s.id), array_agg(s.place), array_agg(s.home), array_agg(s.flow),
          array_agg(s.suspect), array_agg(s.lane), array_agg(s.route), count(*)
        INTO c_partition, c_id, c_place, c_home, c_flow, c_suspect, c_lane, c_route, v_seen
      FROM (
        SELECT h.*, r.suspect
        FROM unnest(v_lanes, v_routes, v_suspect) AS r(lane, route, suspect)
        CROSS JOIN LATERAL (
          SELECT x.partition, x.id, x.ctid AS place, x.tableoid AS home, CASE WHEN NOT x.cancel_requested THEN x.flow END AS flow, x.lane, x.route, x.priority, x.resumed, x.ready_at
          FROM outlast.execution AS x
          WHERE x.ready_at IS NOT NULL AND x.namespace = _namespace AND x.lane = r.lane AND x.route = r.route
            -- What is cancelled is only left to undo what it did: its flow may be shut.
            AND (x.flow IS NULL OR x.cancel_requested OR coalesce((
              SELECT f.state FROM outlast.flow AS f
              WHERE f.partition = x.partition AND f.namespace = x.namespace AND f.id = x.flow), 'open') = 'open')
            AND coalesce((
              SELECT NOT p.paused FROM outlast.lane AS p
              WHERE p.partition = x.partition AND p.namespace = x.namespace AND p.lane = x.lane), true)
          ORDER BY x.priority DESC, x.resumed DESC, x.ready_at, x.id
          LIMIT CASE WHEN r.suspect AND _suspects IS NOT NULL THEN least(v_depth, _suspects * 8) ELSE v_depth END
        ) AS h
        ORDER BY h.priority DESC, h.resumed DESC, h.ready_at, h.id LIMIT v_depth
      ) AS s;
      EXIT WHEN v_seen = 0;

      -- Flows: a share lock, then a new look at them.
      IF cardinality(array_remove(c_flow, NULL)) > 0 THEN
        PERFORM 1 FROM (
          SELECT DISTINCT q.partition, q.id FROM unnest(c_partition, c_flow) AS q(partition, id)
          WHERE q.id IS NOT NULL ORDER BY q.partition, q.id
        ) AS q CROSS JOIN LATERAL (
          SELECT 1 FROM outlast.flow AS f
          WHERE f.partition = q.partition AND f.namespace = _namespace AND f.id = q.id FOR SHARE
        ) AS l;
        SELECT array_agg(q.partition ORDER BY q.n), array_agg(q.id ORDER BY q.n), array_agg(q.place ORDER BY q.n),
            array_agg(q.home ORDER BY q.n), array_agg(q.flow ORDER BY q.n),
            array_agg(q.suspect ORDER BY q.n), array_agg(q.lane ORDER BY q.n), array_agg(q.route ORDER BY q.n)
          INTO c_partition, c_id, c_place, c_home, c_flow, c_suspect, c_lane, c_route
        FROM unnest(c_partition, c_id, c_place, c_home, c_flow, c_suspect, c_lane, c_route) WITH ORDINALITY
          AS q(partition, id, place, home, flow, suspect, lane, route, n)
        WHERE q.flow IS NULL OR coalesce((
          SELECT f.state FROM outlast.flow AS f
          WHERE f.partition = q.partition AND f.namespace = _namespace AND f.id = q.flow), 'open') = 'open';
      END IF;

      -- Suspects: counted in the order of claims.
      k_partition := c_partition; k_id := c_id; k_place := c_place; k_home := c_home; k_lane := c_lane; k_route := c_route;
      IF true = ANY (c_suspect) THEN
        k_partition := NULL; k_id := NULL; k_place := NULL; k_home := NULL; k_lane := NULL; k_route := NULL;
        v_left := coalesce(_suspects, _most);
        FOR i IN 1 .. coalesce(cardinality(c_id), 0) LOOP
          CONTINUE WHEN c_suspect[i] AND v_left <= 0;
          IF c_suspect[i] THEN
            v_left := v_left - 1;
          END IF;
          k_partition := k_partition || c_partition[i]; k_id := k_id || c_id[i];
          k_place := k_place || c_place[i]; k_home := k_home || c_home[i];
          k_lane := k_lane || c_lane[i]; k_route := k_route || c_route[i];
        END LOOP;
      END IF;

      SELECT array_agg(q.partition), array_agg(q.id), array_agg(q.place), array_agg(q.home), array_agg(q.attempt_open),
          bool_or(q.past)
        INTO t_partition, t_id, t_place, t_home, t_open, t_past
      FROM (
        -- Of a row that moved meanwhile, older servers lock what it has become: so the place is that of the locked row.
        SELECT q.partition, q.id, l.*
        FROM unnest(k_partition, k_id, k_place, k_home, k_lane, k_route) AS q(partition, id, place, home, lane, route)
        CROSS JOIN LATERAL (
          SELECT x.ctid AS place, x.tableoid AS home, x.attempt_open, x.resumed OR x.generation > 1 AS past
          FROM outlast.execution AS x
          WHERE x.ctid = q.place AND x.tableoid = q.home AND x.partition = q.partition AND x.namespace = _namespace
            AND x.id = q.id AND x.status = 'ready' AND x.lane = q.lane AND x.route = q.route
          FOR UPDATE SKIP LOCKED
        ) AS l LIMIT _most
      ) AS q;
      EXIT WHEN cardinality(t_id) = _most OR v_seen < v_depth OR v_depth > 100000;
      v_depth := v_depth * 4;
    END LOOP;
  END IF;

  v_newest := pg_sequence_last_value('outlast.clock');
  v_now := greatest(coalesce(clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), floor_ms, v_newest);
  IF _renew THEN
    -- The worker lives in every partition: a start that claims needs a session where it is placed.
    INSERT INTO outlast.session AS s (partition, worker, expires_at, started_at)
    SELECT q.partition, _worker, v_now + _ttl_ms, v_now FROM generate_series(0, _partitions - 1) AS q(partition)
    ON CONFLICT (partition, worker) DO UPDATE SET expires_at = greatest(s.expires_at, excluded.expires_at);
  END IF;
  -- Without work the time goes on only if something is written.
  IF (_renew OR t_id IS NOT NULL) AND (v_newest IS NULL OR v_newest < v_now) THEN
    v_newest := setval('outlast.clock', v_now);
  END IF;
  IF t_id IS NULL THEN
    now_ms := v_now;
    passed_over := coalesce(cardinality(k_id), 0) > 0;
    more := passed_over;
    RETURN NEXT;
    RETURN;
  END IF;

  INSERT INTO outlast.session AS s (partition, worker, expires_at, started_at)
  SELECT q.partition, _worker, v_now + _ttl_ms, v_now
  FROM (SELECT DISTINCT q.partition FROM unnest(t_partition) AS q(partition) ORDER BY 1) AS q
  ON CONFLICT (partition, worker) DO UPDATE SET expires_at = greatest(s.expires_at, excluded.expires_at);
  -- What is found again was written before: it has no place here.
  IF t_place IS NOT NULL AND t_past IS NOT TRUE THEN
    -- What nothing has happened to yet is written and told in one go, without what it does not have.
    RETURN QUERY
    WITH {taken}, made AS ({made})
    SELECT v_now, false, v_seen > cardinality(t_id), p.value, NULL::bigint, NULL, NULL, {columns}
    FROM taken AS x
    CROSS JOIN LATERAL (
      SELECT p.value FROM outlast.payload AS p
      WHERE p.partition = x.partition AND p.namespace = x.namespace AND p.execution = x.id
        AND p.generation = x.journal_generation AND p.role = 'input' OFFSET 0) AS p
    ORDER BY x.nth;
  ELSIF t_place IS NOT NULL THEN
    WITH {taken} {made};
  END IF;
  IF true = ANY (t_open) THEN
    UPDATE outlast.attempt AS a SET epoch = o.epoch, worker = _worker, change_id = _claim
    FROM unnest(t_partition, t_id, t_open) AS q(partition, id, open)
    CROSS JOIN LATERAL (
      SELECT * FROM outlast.execution AS x
      WHERE q.open AND x.partition = q.partition AND x.namespace = _namespace AND x.id = q.id OFFSET 0) AS o
    CROSS JOIN LATERAL (
      SELECT b.ctid AS place, b.tableoid AS home FROM outlast.attempt AS b
      WHERE b.partition = o.partition AND b.namespace = o.namespace AND b.execution = o.id
        AND b.generation = o.generation AND b.number = o.attempt OFFSET 0) AS b
    WHERE a.ctid = b.place AND a.tableoid = b.home;
  END IF;

  IF t_place IS NOT NULL AND t_past IS NOT TRUE THEN
    RETURN;
  END IF;
  RETURN QUERY
  SELECT v_now, false, coalesce(v_seen > cardinality(t_id), true), p.value,
    CASE WHEN x.resumed OR x.generation > 1 THEN (
      SELECT a.started_at FROM outlast.attempt AS a
      WHERE a.partition = x.partition AND a.namespace = x.namespace AND a.execution = x.id
        AND a.generation = x.journal_generation AND a.number = 1) END,
    j.entries, e.events, {columns}
  FROM unnest(t_partition, t_id) WITH ORDINALITY AS q(partition, id, n)
  CROSS JOIN LATERAL (
    SELECT * FROM outlast.execution AS x
    WHERE x.partition = q.partition AND x.namespace = _namespace AND x.id = q.id OFFSET 0) AS x
  CROSS JOIN LATERAL (
    SELECT p.value FROM outlast.payload AS p
    WHERE p.partition = x.partition AND p.namespace = x.namespace AND p.execution = x.id
      AND p.generation = x.journal_generation AND p.role = 'input' OFFSET 0) AS p
  LEFT JOIN LATERAL (
    SELECT coalesce(json_agg(json_build_array({entry}))::text, '[]') AS entries FROM (
      SELECT * FROM outlast.journal AS j
      WHERE j.partition = x.partition AND j.namespace = x.namespace AND j.execution = x.id
        AND j.generation = x.journal_generation LIMIT {entries_max} + 1
    ) AS r HAVING count(*) <= {entries_max} AND coalesce(sum(octet_length(r.value)), 0) <= {bytes_max}
  ) AS j ON x.resumed OR x.generation > 1
  LEFT JOIN LATERAL (
    SELECT coalesce(json_agg(json_build_array({event}))::text, '[]') AS events FROM (
      SELECT * FROM outlast.event AS r
      WHERE r.partition = x.partition AND r.namespace = x.namespace AND r.execution = x.id LIMIT {events_max} + 1
    ) AS r HAVING count(*) <= {events_max} AND coalesce(sum(octet_length(r.value)), 0) <= {bytes_max}
  ) AS e ON x.inbox > 0 AND (x.resumed OR x.generation > 1)
  ORDER BY q.n;
END
$function$

-- part: taken
-- A row under its lock stays where it is: it is changed by its place, whatever the size of the table when this was
-- planned. In a partitioned table places repeat: hence the part as well.
taken AS (
    UPDATE outlast.execution AS t
    SET status = 'active', reason = NULL, epoch = t.epoch + _leap, worker = _worker, claim_id = _claim, claimed_at = v_now,
      attempt_deadline_at = CASE WHEN t.timeout_ms IS NULL THEN NULL ELSE v_now + greatest(0, t.timeout_ms - t.ran_ms) END,
      ready_at = NULL, attempt_open = true, change_id = _claim
    FROM unnest(t_place, t_home, t_open) WITH ORDINALITY AS q(place, home, was_open, nth)
    WHERE t.ctid = q.place AND t.tableoid = q.home
    RETURNING t.*, q.was_open, q.nth
  )

-- part: made
INSERT INTO outlast.attempt (partition, namespace, execution, generation, number, epoch, worker, started_at, change_id)
  SELECT t.partition, _namespace, t.id, t.generation, t.attempt, t.epoch, _worker, v_now, _claim
  FROM taken AS t WHERE NOT t.was_open

-- part: call
SELECT * FROM outlast.{name}(
  :namespace, :lanes, :serves, :offers, :worker, :claim, :leap, :most, :ttl_ms, :suspects, :partitions, :renew, :first, :clock_ms, :floor_ms
)
