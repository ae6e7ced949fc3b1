-- claim_attempt_resumed: an open attempt goes on under a new holder.
-- inputs: epoch, worker, claim id, namespace, execution, generation, number.
-- result: when it began.
UPDATE outlast_attempt SET epoch = ?, worker = ?, change_id = ?
WHERE namespace = ? AND execution = ? AND generation = ? AND number = ?
RETURNING started_at
