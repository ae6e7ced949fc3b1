-- claim_attempt_new: the record of a new attempt. inputs: namespace, execution, generation, number, epoch, worker, now, claim id.
INSERT INTO outlast_attempt
  (namespace, execution, generation, number, epoch, worker, started_at, ended_at, outcome, failure, change_id)
VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, ?)
