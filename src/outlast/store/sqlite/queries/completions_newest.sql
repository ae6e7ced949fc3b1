-- completions_newest: where a filtered feed stands when it found less than its limit.
SELECT coalesce(max(seq), 0) FROM outlast_completion
