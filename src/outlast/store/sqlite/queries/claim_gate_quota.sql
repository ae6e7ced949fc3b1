-- claim_gate_quota: how many permits are free. No row: the quota is not set up, so nothing may pass.
SELECT free FROM outlast_quota WHERE partition = 0 AND namespace = ? AND name = ?
