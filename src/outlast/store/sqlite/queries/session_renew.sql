-- session_renew: a worker is alive until then. inputs: worker, expires at, now.
INSERT INTO outlast_session (partition, worker, expires_at, started_at) VALUES (0, ?1, ?2, ?3)
ON CONFLICT (partition, worker) DO UPDATE SET expires_at = max(expires_at, ?2)
