-- Schema 1 of the SQLite store. One table per kind of `model/kinds.py`, columns in the order of its fields.
--
-- Tables are STRICT, so a wrong type is an error and not a surprise. Records found by key live in WITHOUT ROWID tables:
-- one search instead of two. Records that the store numbers have `seq` as their rowid.
-- Wide values are off the execution's row: a step inserts into the journal and touches nothing else.

CREATE TABLE outlast_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The newest time that any commit used: the clock never goes back, whatever the machine's does.
CREATE TABLE outlast_clock (
  id     INTEGER PRIMARY KEY CHECK (id = 1),
  now_ms INTEGER NOT NULL
) STRICT;
INSERT INTO outlast_clock (id, now_ms) VALUES (1, 0);

CREATE TABLE outlast_execution (
  namespace TEXT NOT NULL, id TEXT NOT NULL,
  workflow TEXT NOT NULL, version TEXT NOT NULL, signature TEXT NOT NULL,
  lane TEXT NOT NULL, route TEXT NOT NULL,
  parent TEXT, flow TEXT, quota TEXT, tags TEXT NOT NULL, input_digest TEXT NOT NULL,
  status TEXT NOT NULL, reason TEXT, waits TEXT NOT NULL, awaits TEXT NOT NULL, cause TEXT,
  generation INTEGER NOT NULL, journal_generation INTEGER NOT NULL,
  epoch INTEGER NOT NULL, inbox INTEGER NOT NULL,
  priority INTEGER NOT NULL, resumed INTEGER NOT NULL, ready_at INTEGER,
  worker TEXT, claim_id TEXT, claimed_at INTEGER,
  wake_at INTEGER, deadline_at INTEGER, attempt_deadline_at INTEGER, purge_at INTEGER,
  attempt INTEGER NOT NULL, attempt_open INTEGER NOT NULL,
  failures INTEGER NOT NULL, crashes INTEGER NOT NULL, crashes_since_progress INTEGER NOT NULL,
  crashes_since_suspension INTEGER NOT NULL, ran_ms INTEGER NOT NULL,
  timeout_ms INTEGER, deadline_ms INTEGER, retry TEXT NOT NULL, crash_cap INTEGER NOT NULL,
  life_crash_cap INTEGER NOT NULL, retention_ms INTEGER,
  cancel_requested INTEGER NOT NULL, held INTEGER NOT NULL, unwinds INTEGER NOT NULL,
  has_children INTEGER NOT NULL,
  created_at INTEGER NOT NULL, finished_at INTEGER, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

-- Claim: only ready rows, by route, in the order of claims. Finished work is not in it, however much there is.
CREATE INDEX outlast_execution_ready ON outlast_execution
  (namespace, lane, route, priority DESC, resumed DESC, ready_at, id) WHERE ready_at IS NOT NULL;
-- Leases by holder: renew, lease expiry, and a claim whose reply was lost.
CREATE INDEX outlast_execution_lease ON outlast_execution (worker, claim_id) WHERE worker IS NOT NULL;
-- Due, one small index each.
CREATE INDEX outlast_execution_timer ON outlast_execution (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX outlast_execution_deadline ON outlast_execution (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX outlast_execution_timeout ON outlast_execution (attempt_deadline_at) WHERE attempt_deadline_at IS NOT NULL;
CREATE INDEX outlast_execution_retention ON outlast_execution (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX outlast_execution_finished ON outlast_execution (finished_at)
WHERE finished_at IS NOT NULL AND flow IS NULL;
-- Find, newest first: read backwards, because what is new is then added at an index's end, where SQLite fills its pages.
CREATE INDEX outlast_execution_created ON outlast_execution (namespace, created_at, id);
CREATE INDEX outlast_execution_workflow ON outlast_execution (namespace, workflow, created_at, id);
-- By status: all but those that somebody holds. They are few, come and go, and are found by their leases. The worker
-- that none of them has is in it, so that counting them reads nothing but the index.
CREATE INDEX outlast_execution_status ON outlast_execution (namespace, status, created_at, id, worker)
WHERE worker IS NULL;

CREATE TABLE outlast_payload (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL, role TEXT NOT NULL,
  value BLOB NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, role)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_attempt (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL, number INTEGER NOT NULL,
  epoch INTEGER NOT NULL, worker TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER,
  outcome TEXT, failure BLOB, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_journal (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL,
  scope TEXT NOT NULL, name TEXT NOT NULL, occurrence INTEGER NOT NULL,
  op TEXT NOT NULL, outcome TEXT NOT NULL, value BLOB, tries INTEGER NOT NULL, epoch INTEGER NOT NULL,
  position INTEGER NOT NULL, recorded_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, scope, name, occurrence)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_event (
  seq INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL, execution TEXT NOT NULL, name TEXT NOT NULL, dedup TEXT NOT NULL,
  value BLOB, consumed INTEGER NOT NULL, sent_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  UNIQUE (namespace, execution, name, dedup)
) STRICT;

CREATE TABLE outlast_deferred (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL, name TEXT NOT NULL,
  resolution TEXT NOT NULL, value BLOB, resolved_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, name)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a purged completion's number is never given again, so a feed's cursor can't skip.
CREATE TABLE outlast_completion (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL,
  status TEXT NOT NULL, cause TEXT, workflow TEXT NOT NULL, tags TEXT NOT NULL,
  finished_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  UNIQUE (namespace, execution, generation)
) STRICT;

CREATE TABLE outlast_session (
  partition INTEGER NOT NULL, worker TEXT NOT NULL, expires_at INTEGER NOT NULL, started_at INTEGER NOT NULL,
  offers TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (partition, worker)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_session_expiry ON outlast_session (expires_at);

CREATE TABLE outlast_outbox (
  partition INTEGER NOT NULL, id TEXT NOT NULL, namespace TEXT NOT NULL, target TEXT NOT NULL,
  source TEXT NOT NULL, fact BLOB NOT NULL,
  due_at INTEGER NOT NULL, tries INTEGER NOT NULL, error TEXT, created_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (partition, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_outbox_due ON outlast_outbox (due_at);

CREATE TABLE outlast_lane (
  partition INTEGER NOT NULL, namespace TEXT NOT NULL, lane TEXT NOT NULL, paused INTEGER NOT NULL,
  PRIMARY KEY (partition, namespace, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_quota (
  partition INTEGER NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, free INTEGER NOT NULL,
  PRIMARY KEY (partition, namespace, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_flow (
  namespace TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, policy TEXT, reason TEXT,
  parent TEXT, revision INTEGER NOT NULL, digest TEXT NOT NULL, retention_ms INTEGER, created_at INTEGER NOT NULL,
  staged_at INTEGER, cancel_at INTEGER, purge_at INTEGER, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_flow_retention ON outlast_flow (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX outlast_flow_staging ON outlast_flow (namespace) WHERE staged_at IS NOT NULL;
CREATE INDEX outlast_flow_cancel ON outlast_flow (cancel_at) WHERE cancel_at IS NOT NULL;

CREATE TABLE outlast_summary (
  namespace TEXT NOT NULL, id TEXT NOT NULL, members INTEGER NOT NULL, succeeded INTEGER NOT NULL,
  failed INTEGER NOT NULL, cancelled INTEGER NOT NULL, expired INTEGER NOT NULL, skipped INTEGER NOT NULL,
  drained TEXT NOT NULL, outcome TEXT, finished_at INTEGER, check_at INTEGER, depend_at INTEGER,
  checks INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_summary_check ON outlast_summary (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX outlast_summary_depend ON outlast_summary (depend_at) WHERE depend_at IS NOT NULL;

CREATE TABLE outlast_member (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, flow TEXT NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL,
  upstreams INTEGER NOT NULL, needed INTEGER NOT NULL, after BLOB NOT NULL,
  on_satisfied TEXT NOT NULL, on_failure TEXT NOT NULL, binds INTEGER NOT NULL,
  answered INTEGER NOT NULL, succeeded INTEGER NOT NULL, drained TEXT NOT NULL, settled TEXT NOT NULL,
  siblings_at INTEGER, acknowledged INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_member_siblings ON outlast_member (siblings_at) WHERE siblings_at IS NOT NULL;

CREATE TABLE outlast_dependency (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, downstream TEXT NOT NULL, alone INTEGER NOT NULL,
  change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, downstream)
) STRICT, WITHOUT ROWID;

CREATE TABLE outlast_edge (
  seq INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL, execution TEXT NOT NULL, upstream TEXT NOT NULL, answer TEXT NOT NULL,
  generation INTEGER NOT NULL, answered_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  UNIQUE (namespace, execution, upstream)
) STRICT;
CREATE INDEX outlast_edge_order ON outlast_edge (namespace, execution, seq);

CREATE TABLE outlast_tag (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, tag TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX outlast_tag_value ON outlast_tag (namespace, tag, value, execution);

CREATE TABLE outlast_frame (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, seq INTEGER NOT NULL,
  at INTEGER NOT NULL, value BLOB NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, seq)
) STRICT, WITHOUT ROWID;
