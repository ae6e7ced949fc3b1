-- health_ready: what waits in each lane for a worker, and since when. Reads the index of ready work only.
SELECT namespace, lane, count(*), min(ready_at) FROM outlast.execution
WHERE ready_at IS NOT NULL GROUP BY namespace, lane ORDER BY namespace, lane
