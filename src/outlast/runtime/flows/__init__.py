"""Flows, as a process carries them: ends to those that wait for them, cancels, retries, what goes at last."""
