-- claim_ready: the next ready executions of one route, in the order of claims; members of a flow that is not open
-- stay, unless they are cancelled and only left to undo what they did. inputs: namespace, lane, route, limit. index: outlast_execution_ready, no sort.
SELECT {columns} FROM outlast_execution INDEXED BY outlast_execution_ready
WHERE ready_at IS NOT NULL AND namespace = ? AND lane = ? AND route = ?
  AND (flow IS NULL OR cancel_requested OR NOT EXISTS (
    SELECT 1 FROM outlast_flow AS f
    WHERE f.namespace = outlast_execution.namespace AND f.id = outlast_execution.flow AND f.state <> 'open'
  ))
ORDER BY priority DESC, resumed DESC, ready_at, id LIMIT ?
