"""Tools for tests: a harness for your own workflows, a clock to turn, points to crash at, and the conformance suite."""

from outlast.testing.clock import ManualClock
from outlast.testing.everywhere import EveryAwait, replay_every_await
from outlast.testing.harness import Harness, Stub, harness
from outlast.testing.journal import Entry, Journal
from outlast.testing.points import Crash, CrashPoints
from outlast.testing.virtual import VirtualClock
from outlast.testing.world import Stuck

__all__ = [
    "Crash",
    "CrashPoints",
    "Entry",
    "EveryAwait",
    "Harness",
    "Journal",
    "ManualClock",
    "Stub",
    "Stuck",
    "VirtualClock",
    "harness",
    "replay_every_await",
]
