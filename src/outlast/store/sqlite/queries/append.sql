-- append: one frame. inputs: namespace, execution, seq, now, value, change id.
INSERT INTO outlast_frame (namespace, execution, seq, at, value, change_id) VALUES (?, ?, ?, ?, ?, ?)
