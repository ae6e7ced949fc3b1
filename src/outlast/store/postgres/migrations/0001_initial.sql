-- Schema 1 of the PostgreSQL store. One table per kind of `model/kinds.py`: its fields, behind the partition.
--
-- Every primary key begins with the partition: all that one change touches can live in one shard, and a table can be
-- split by it (docs/postgres.md). Text is compared byte by byte (COLLATE "C"), on every server the same way.
-- Wide values are off the execution's row: a step inserts into the journal and touches nothing else. Rows that are
-- updated in place leave room on their page (fillfactor), so that most updates move no index entry.

CREATE SCHEMA outlast;
SET LOCAL search_path = outlast, pg_catalog;

CREATE TABLE meta (
  name  text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);

-- The newest time that any commit used: the clock never goes back, whatever the server's does. A sequence, because
-- it is written by every commit: no row to lock, nothing to vacuum.
CREATE SEQUENCE clock MINVALUE 0 START 0;

CREATE TABLE execution (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  workflow text COLLATE "C" NOT NULL, version text COLLATE "C" NOT NULL, signature text COLLATE "C" NOT NULL,
  lane text COLLATE "C" NOT NULL, route text COLLATE "C" NOT NULL,
  parent text COLLATE "C", flow text COLLATE "C", quota text COLLATE "C",
  tags text COLLATE "C" NOT NULL, input_digest text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL, reason text COLLATE "C", waits text COLLATE "C" NOT NULL,
  awaits text COLLATE "C" NOT NULL, cause text COLLATE "C",
  generation bigint NOT NULL, journal_generation bigint NOT NULL,
  epoch bigint NOT NULL, inbox bigint NOT NULL,
  priority bigint NOT NULL, resumed boolean NOT NULL, ready_at bigint,
  worker text COLLATE "C", claim_id text COLLATE "C", claimed_at bigint,
  wake_at bigint, deadline_at bigint, attempt_deadline_at bigint, purge_at bigint,
  attempt bigint NOT NULL, attempt_open boolean NOT NULL,
  failures bigint NOT NULL, crashes bigint NOT NULL, crashes_since_progress bigint NOT NULL,
  crashes_since_suspension bigint NOT NULL, ran_ms bigint NOT NULL,
  timeout_ms bigint, deadline_ms bigint, retry text COLLATE "C" NOT NULL, crash_cap bigint NOT NULL,
  life_crash_cap bigint NOT NULL,
  retention_ms bigint,
  cancel_requested boolean NOT NULL, held boolean NOT NULL, unwinds boolean NOT NULL,
  has_children boolean NOT NULL,
  created_at bigint NOT NULL, finished_at bigint, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, id)
) WITH (fillfactor = 80);

-- Claim: only ready rows, by route, in the order of claims. Finished work is not in it, however much there is.
CREATE INDEX execution_ready ON execution
  (namespace, lane, route, priority DESC, resumed DESC, ready_at, id) WHERE ready_at IS NOT NULL;
-- Leases by holder: renew, lease expiry, and a claim whose reply was lost.
CREATE INDEX execution_lease ON execution (worker, partition, claim_id) WHERE worker IS NOT NULL;
-- Due, one small index each.
CREATE INDEX execution_timer ON execution (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX execution_deadline ON execution (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX execution_timeout ON execution (attempt_deadline_at) WHERE attempt_deadline_at IS NOT NULL;
CREATE INDEX execution_retention ON execution (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX execution_finished ON execution (finished_at) WHERE finished_at IS NOT NULL AND flow IS NULL;
-- Find, newest first. In the collation "POSIX", which orders as "C" does but is another: a look-up by key can't match
-- these, so the primary key is its only way, also in a plan that was made while the table was empty and all ways seemed
-- equally short. Queries that are meant for these say COLLATE "POSIX".
CREATE INDEX execution_created ON execution
  (namespace COLLATE "POSIX", created_at DESC, id COLLATE "POSIX" DESC);
CREATE INDEX execution_status ON execution
  (namespace COLLATE "POSIX", status COLLATE "POSIX", created_at DESC, id COLLATE "POSIX" DESC);
CREATE INDEX execution_workflow ON execution
  (namespace COLLATE "POSIX", workflow COLLATE "POSIX", created_at DESC, id COLLATE "POSIX" DESC);

CREATE TABLE payload (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, generation bigint NOT NULL,
  role text COLLATE "C" NOT NULL, value bytea NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, generation, role)
);

-- Each is updated once, when it ends: with room for that on its page, its key is not indexed a second time.
CREATE TABLE attempt (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, generation bigint NOT NULL,
  number bigint NOT NULL, epoch bigint NOT NULL, worker text COLLATE "C" NOT NULL, started_at bigint NOT NULL,
  ended_at bigint, outcome text COLLATE "C", failure bytea, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, generation, number)
) WITH (fillfactor = 50);

CREATE TABLE journal (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, generation bigint NOT NULL,
  scope text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, occurrence bigint NOT NULL,
  op text COLLATE "C" NOT NULL, outcome text COLLATE "C" NOT NULL, value bytea, tries bigint NOT NULL,
  epoch bigint NOT NULL, position bigint NOT NULL, recorded_at bigint NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, generation, scope, name, occurrence)
);

CREATE TABLE event (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  dedup text COLLATE "C" NOT NULL, value bytea, consumed boolean NOT NULL, sent_at bigint NOT NULL,
  seq bigint GENERATED BY DEFAULT AS IDENTITY, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, name, dedup)
) WITH (fillfactor = 90);

CREATE TABLE deferred (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, generation bigint NOT NULL,
  name text COLLATE "C" NOT NULL, resolution text COLLATE "C" NOT NULL, value bytea, resolved_at bigint NOT NULL,
  change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, generation, name)
);

-- `tx` is the transaction that wrote it: a feed is read up to the oldest transaction that is still under way, so that
-- a late commit is never skipped.
CREATE TABLE completion (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, generation bigint NOT NULL,
  status text COLLATE "C" NOT NULL, cause text COLLATE "C", workflow text COLLATE "C" NOT NULL,
  tags text COLLATE "C" NOT NULL, finished_at bigint NOT NULL, seq bigint GENERATED BY DEFAULT AS IDENTITY,
  change_id text COLLATE "C" NOT NULL, tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (partition, namespace, execution, generation)
);
CREATE INDEX completion_feed ON completion (tx, seq);

-- No index on `expires_at`: a worker has a handful of sessions, and renewing them must stay an update in place.
CREATE TABLE session (
  partition int NOT NULL, worker text COLLATE "C" NOT NULL, expires_at bigint NOT NULL, started_at bigint NOT NULL,
  offers text COLLATE "C" NOT NULL DEFAULT '',
  PRIMARY KEY (partition, worker)
) WITH (fillfactor = 50);

CREATE TABLE outbox (
  partition int NOT NULL, id text COLLATE "C" NOT NULL, namespace text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL, source text COLLATE "C" NOT NULL, fact bytea NOT NULL, due_at bigint NOT NULL, tries bigint NOT NULL,
  error text COLLATE "C", created_at bigint NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, id)
);
CREATE INDEX outbox_due ON outbox (due_at);

CREATE TABLE lane (
  partition int NOT NULL, namespace text COLLATE "C" NOT NULL, lane text COLLATE "C" NOT NULL, paused boolean NOT NULL,
  PRIMARY KEY (partition, namespace, lane)
);
-- Whether a lane is paused everywhere: asked with every claim.
CREATE INDEX lane_paused ON lane (namespace, lane) WHERE paused;

CREATE TABLE quota (
  partition int NOT NULL, namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, free bigint NOT NULL,
  PRIMARY KEY (partition, namespace, name)
) WITH (fillfactor = 50);

CREATE TABLE flow (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL, policy text COLLATE "C", reason text COLLATE "C",
  parent text COLLATE "C", revision bigint NOT NULL,
  digest text COLLATE "C" NOT NULL, retention_ms bigint, created_at bigint NOT NULL,
  staged_at bigint, cancel_at bigint, purge_at bigint, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, id)
) WITH (fillfactor = 80);
CREATE INDEX flow_retention ON flow (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX flow_staging ON flow (namespace) WHERE staged_at IS NOT NULL;
CREATE INDEX flow_cancel ON flow (cancel_at) WHERE cancel_at IS NOT NULL;

-- Apart from the flow, which claims lock: this one is written all the time.
CREATE TABLE summary (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, members bigint NOT NULL,
  succeeded bigint NOT NULL, failed bigint NOT NULL, cancelled bigint NOT NULL, expired bigint NOT NULL,
  skipped bigint NOT NULL, drained text COLLATE "C" NOT NULL, outcome text COLLATE "C", finished_at bigint,
  check_at bigint, depend_at bigint, checks bigint NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, id)
) WITH (fillfactor = 50);
CREATE INDEX summary_check ON summary (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX summary_depend ON summary (depend_at) WHERE depend_at IS NOT NULL;

CREATE TABLE member (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, flow text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL, position bigint NOT NULL, upstreams bigint NOT NULL, needed bigint NOT NULL,
  after bytea NOT NULL, on_satisfied text COLLATE "C" NOT NULL, on_failure text COLLATE "C" NOT NULL,
  binds boolean NOT NULL, answered bigint NOT NULL, succeeded bigint NOT NULL, drained text COLLATE "C" NOT NULL,
  settled text COLLATE "C" NOT NULL, siblings_at bigint, acknowledged boolean NOT NULL,
  change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution)
) WITH (fillfactor = 80);
CREATE INDEX member_siblings ON member (siblings_at) WHERE siblings_at IS NOT NULL;

CREATE TABLE dependency (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, downstream text COLLATE "C" NOT NULL,
  alone boolean NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, downstream)
);

CREATE TABLE edge (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, upstream text COLLATE "C" NOT NULL,
  answer text COLLATE "C" NOT NULL, generation bigint NOT NULL, answered_at bigint NOT NULL, seq bigint GENERATED BY DEFAULT AS IDENTITY,
  change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, upstream)
);
-- Only who asks for the order says so (`scan`): of two indexes that begin alike, the planner of a table that was small
-- takes this one for a key, too, and reads all answers to a member for each.
CREATE INDEX edge_order ON edge (partition, namespace, execution, seq) WHERE seq >= 0;

CREATE TABLE tag (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, tag text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, tag)
);
CREATE INDEX tag_value ON tag
  (namespace COLLATE "POSIX", tag COLLATE "POSIX", value COLLATE "POSIX", execution COLLATE "POSIX");

CREATE TABLE frame (
  partition int NOT NULL,
  namespace text COLLATE "C" NOT NULL, execution text COLLATE "C" NOT NULL, seq bigint NOT NULL,
  at bigint NOT NULL, value bytea NOT NULL, change_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (partition, namespace, execution, seq)
);

-- A time in a change is absolute, or relative to its commit: then it lies this far below every real one.
CREATE FUNCTION settled(time_ms bigint, now_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN time_ms < -2305843009213693952 THEN time_ms + 4611686018427387904 + now_ms ELSE time_ms END
$$;

-- For people who prefer psql.
CREATE VIEW waiting AS
  SELECT namespace, id, workflow, version, lane, status, reason, priority, attempt, failures, crashes, worker,
    to_timestamp(created_at / 1000.0) AS created, to_timestamp(wake_at / 1000.0) AS wakes,
    to_timestamp(deadline_at / 1000.0) AS deadline
  FROM execution WHERE finished_at IS NULL;
CREATE VIEW finished AS
  SELECT namespace, id, workflow, version, status, cause, attempt, failures, crashes,
    to_timestamp(created_at / 1000.0) AS created, to_timestamp(finished_at / 1000.0) AS finished
  FROM execution WHERE finished_at IS NOT NULL;
CREATE VIEW lanes AS
  SELECT namespace, lane, route, count(*) AS ready, to_timestamp(min(ready_at) / 1000.0) AS oldest
  FROM execution WHERE ready_at IS NOT NULL GROUP BY namespace, lane, route;
CREATE VIEW workers AS
  SELECT worker, count(*) AS partitions, to_timestamp(min(started_at) / 1000.0) AS started,
    to_timestamp(max(expires_at) / 1000.0) AS expires,
    (SELECT count(*) FROM execution AS e WHERE e.worker = s.worker) AS leases
  FROM session AS s GROUP BY worker;
