-- claim_routes: the distinct routes with ready work in a lane, by hopping from one to the next in the ready index:
-- its cost is the number of routes, not of executions. inputs: namespace, lane, the route to begin behind, limit.
WITH RECURSIVE hop (route) AS (
  SELECT min(route) FROM outlast_execution INDEXED BY outlast_execution_ready
  WHERE ready_at IS NOT NULL AND namespace = ?1 AND lane = ?2 AND route > ?3
  UNION ALL
  SELECT (
    SELECT min(route) FROM outlast_execution INDEXED BY outlast_execution_ready
    WHERE ready_at IS NOT NULL AND namespace = ?1 AND lane = ?2 AND route > hop.route
  ) FROM hop WHERE hop.route IS NOT NULL
)
SELECT route FROM hop WHERE route IS NOT NULL LIMIT ?4
