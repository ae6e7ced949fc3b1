"""Tools for tests: a clock to turn, points to crash at, the conformance suite that every store must pass."""

from outlast.testing.clock import ManualClock
from outlast.testing.points import Crash, CrashPoints

__all__ = ["Crash", "CrashPoints", "ManualClock"]
