"""What runs: group commit, the engine that carries facts to the store, later workers and their executions."""
