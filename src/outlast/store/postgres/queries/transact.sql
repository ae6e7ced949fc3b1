-- transact: the statements around a user's function, in one transaction with it.

-- part: begin
-- Whatever becomes of the process, the server ends a statement after this long, and a transaction in which nothing
-- happens; earlier if the role says so.
SELECT set_config(s.name, CASE
    WHEN current_setting(s.name) = '0' THEN '{limit_ms}ms'
    ELSE (extract(epoch FROM least(current_setting(s.name)::interval, '{limit_ms}ms'::interval)) * 1000)::bigint || 'ms'
  END, true)
FROM unnest(ARRAY['statement_timeout', 'idle_in_transaction_session_timeout']) AS s(name)

-- part: function
-- Applies one change, or raises OL003 if it is refused.
-- inputs: asked, a document with the arguments of `commit`. locks: those of `commit`.
CREATE FUNCTION outlast.{name}(asked json) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $function$
DECLARE
  v_docs text[];
  v_refused text;
BEGIN
  SELECT array_agg(d.rows ORDER BY d.n) INTO v_docs
  FROM json_array_elements_text(asked -> 'docs') WITH ORDINALITY AS d(rows, n);
  SELECT c.refused_list INTO v_refused FROM outlast.{commit}(
    asked ->> 'anchors', asked ->> 'slots', v_docs,
    (asked ->> 'clock_ms')::bigint, (asked ->> 'floor_ms')::bigint) AS c;
  IF v_refused <> '' THEN
    RAISE EXCEPTION USING ERRCODE = 'OL003', MESSAGE = 'the change was refused';
  END IF;
END
$function$

-- part: call
-- One message to the server, so that a process that stops between the two holds no locks that others wait for. As hex:
-- a text of several statements has no parameters.
SELECT outlast.{name}(convert_from(decode('{asked}', 'hex'), 'UTF8')::json); COMMIT

-- part: reset
-- Behind a COMMIT or ROLLBACK, in the same message: the session as it was when it began, for who comes next. Prepared
-- statements stay, since they are the driver's own.
; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all();
DISCARD TEMP; DISCARD SEQUENCES

-- part: after
-- What a holder hears of a commit: its execution's inbox, and when the step was recorded.
SELECT x.inbox, j.recorded_at FROM outlast.execution AS x, outlast.journal AS j
WHERE x.partition = :partition AND x.namespace = :namespace AND x.id = :execution
  AND j.partition = :partition AND j.namespace = :namespace AND j.execution = :execution
  AND j.generation = :generation AND j.scope = :scope AND j.name = :name AND j.occurrence = :occurrence
