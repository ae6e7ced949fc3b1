-- claim_again: what a claim took whose reply was lost.
-- inputs: worker, claim id. index: outlast_execution_lease.
SELECT {columns} FROM outlast_execution INDEXED BY outlast_execution_lease
WHERE worker = ? AND claim_id = ?
ORDER BY priority DESC, resumed DESC, id
