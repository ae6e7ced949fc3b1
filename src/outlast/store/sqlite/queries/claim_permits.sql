-- claim_permits: permits that a claim took. inputs: how many, namespace, quota.
UPDATE outlast_quota SET free = free - ? WHERE partition = 0 AND namespace = ? AND name = ?
