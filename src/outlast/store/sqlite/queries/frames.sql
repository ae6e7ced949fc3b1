-- frames: a stream behind an offset. inputs: namespace, execution, after, limit.
SELECT seq, at, value FROM outlast_frame WHERE namespace = ? AND execution = ? AND seq > ? ORDER BY seq LIMIT ?
