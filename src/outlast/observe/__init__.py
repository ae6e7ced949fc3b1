"""What can be seen from outside: the names of metrics, in one place."""
