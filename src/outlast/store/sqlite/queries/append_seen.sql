-- append_seen: whether a repeated append was applied before: its frames are among the newest.
SELECT count(*) FROM (
  SELECT change_id FROM outlast_frame WHERE namespace = ? AND execution = ? ORDER BY seq DESC LIMIT 10000
) WHERE change_id = ?
