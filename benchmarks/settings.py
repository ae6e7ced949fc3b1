"""What every scenario is told: where to work, how long, how often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
"""Beside the repository and not in /tmp, which may be memory: a commit has to reach a disk to be measured."""


class Settings(Struct, frozen=True, kw_only=True):
    store: str
    version: str
    quick: bool
    profile: bool
    systems: frozenset[str] | None = None
    """Only these beside Outlast and the yardstick; all, if None."""
    repeats: int
    seconds: float
    finished: int
    """History in the scale scenario."""
    ready: int
    rounds: int
    """How many calls of each kind the scale scenario times."""

    def wants(self, system: str) -> bool:
        return self.systems is None or system in self.systems


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory of its own for the files of one measurement."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as folder:
        yield Path(folder)
