"""The caller's side: start executions, wait for them, look at them, tell them things."""
