-- frames: a stream behind an offset.
SELECT seq, at, value FROM outlast.frame
WHERE partition = :partition AND namespace = :namespace AND execution = :execution AND seq > :after
ORDER BY seq LIMIT :limit
