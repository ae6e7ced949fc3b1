-- clock_read: the newest time that any commit used.
SELECT now_ms FROM outlast_clock WHERE id = 1
