"""What runs: engine, group commit, workers, attempts and their operations, outbox, flows."""
