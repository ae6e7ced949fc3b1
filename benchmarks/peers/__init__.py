"""Other systems, measured beside Outlast: each in an environment of its own, run as a process that prints JSON."""
