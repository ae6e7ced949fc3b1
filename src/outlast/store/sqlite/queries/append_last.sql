-- append_last: the newest frame of a stream, and who wrote it.
SELECT seq, change_id FROM outlast_frame WHERE namespace = ? AND execution = ? ORDER BY seq DESC LIMIT 1
