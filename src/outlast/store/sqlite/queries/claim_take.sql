-- claim_take: what `decide(view, Claim)` writes into the execution.
-- inputs: worker, claim id, now, attempt deadline, leap of the epoch, namespace, id.
UPDATE outlast_execution
SET status = 'active', reason = NULL, epoch = epoch + ?5, worker = ?1, claim_id = ?2, claimed_at = ?3,
    attempt_deadline_at = ?4, ready_at = NULL, attempt_open = 1, change_id = ?2
WHERE namespace = ?6 AND id = ?7
