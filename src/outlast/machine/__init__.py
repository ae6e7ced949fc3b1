"""The verbs: a fact comes in, changes come out. Pure and total: no I/O, no clock, no randomness, no logging."""

from outlast.machine.changes import Changes, Refusal, View
from outlast.machine.decide import decide

__all__ = ["Changes", "Refusal", "View", "decide"]
