-- append_fence: who holds the execution.
SELECT status, epoch FROM outlast_execution WHERE namespace = ? AND id = ?
