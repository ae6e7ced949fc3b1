"""The one place where randomness comes from, so that a simulation can give its own."""

from __future__ import annotations

import random
from typing import Protocol

import uuid_utils


class Entropy(Protocol):
    def new_id(self) -> str:
        """A new unique id that sorts by time: of a change, a claim, an execution."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemEntropy:
    def __init__(self) -> None:
        self._random = random.Random()

    def new_id(self) -> str:
        return uuid_utils.uuid7().hex

    def random(self) -> float:
        return self._random.random()


class SeededEntropy:
    """The same sequence for the same seed, for tests and simulation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        return self._random.random()
