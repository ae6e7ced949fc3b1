-- claim_held: the leases that hang on a worker's session.
SELECT namespace, id, epoch, inbox FROM outlast_execution INDEXED BY outlast_execution_lease
WHERE worker = ?
