-- clock_write: the time of this commit; it only grows.
UPDATE outlast_clock SET now_ms = ? WHERE id = 1
