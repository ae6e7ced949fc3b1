"""Random operations on a store and on the oracle, answers and states compared after each. Needs Hypothesis."""

from outlast.testing.differential.pair import Disagreement, Pair, Position
from outlast.testing.differential.properties import Broken
from outlast.testing.differential.rules import StoreMachine

__all__ = ["Broken", "Disagreement", "Pair", "Position", "StoreMachine"]
