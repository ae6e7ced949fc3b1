-- claim_gate_lane: 1 if the lane is paused. inputs: namespace, lane.
SELECT paused FROM outlast_lane WHERE partition = 0 AND namespace = ? AND lane = ?
