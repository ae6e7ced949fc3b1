-- claim_input: the input that a claimed execution runs with: that of the generation whose journal it goes on with.
SELECT value FROM outlast_payload WHERE namespace = ? AND execution = ? AND generation = ? AND role = 'input'
