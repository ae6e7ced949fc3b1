"""What a store author writes (`StoreHarness`), and what the suite makes of it (`World`, `Conformance`).

A harness has one database at a time. Each `new` is another store object on it: as far as a store may tell, another
process. The suite turns the clock, and never sleeps to let time pass.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
import pytest_asyncio
from msgspec import Struct

from outlast.store.port import Clock, Points, Store
from outlast.testing.clock import ManualClock
from outlast.testing.conformance.actors import number_from_one
from outlast.testing.points import CrashPoints

T = TypeVar("T")


class OwnTable(Struct, frozen=True, kw_only=True):
    """Statements on a table of the user's own in the store's database, for a store that has transactions."""

    create: str
    """… unless it is there."""
    add: str
    """One row more."""
    read: str
    """Its rows."""
    endless: str
    """One that does not end by itself."""
    reach_in: str
    """One that changes a table of Outlast's."""


class StoreHarness(Protocol):
    """How the suite reaches one kind of store. One whose store has transactions also has `own_table: OwnTable`."""

    def new(self, *, clock: Clock, points: Points | None = None) -> Store:
        """A store object on the current database, not yet open: another process, as far as it can tell."""
        ...

    async def fresh(self) -> None:
        """From now on `new` is on another database: private, empty, without a schema."""
        ...

    async def cleanup(self) -> None:
        """Remove every database that `fresh` made. All stores are closed by then."""
        ...


class World:
    """A database, the clock that its stores read, and every store that was opened on it."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.clock = ManualClock()
        self._open: list[Store] = []
        self._migrated = False

    @property
    def own_table(self) -> OwnTable | None:
        return getattr(self.harness, "own_table", None)

    async def begin(self) -> None:
        """Begin again, on an empty database at the same time of day."""
        await self.close()
        await self.harness.fresh()
        self.clock = ManualClock()
        self._migrated = False
        number_from_one()

    async def store(self, *, points: Points | None = None, clock: Clock | None = None) -> Store:
        """Another process on this database."""
        store = self.harness.new(clock=clock or self.clock, points=points)
        if not self._migrated:
            await store.migrate()
            self._migrated = True
        self._open.append(store)
        await store.open()
        return store

    async def stores(self, number: int) -> list[Store]:
        return [await self.store() for _ in range(number)]

    async def with_points(self) -> tuple[Store, CrashPoints]:
        """A store that can be stopped, and its crash points (what opening passes is forgotten)."""
        points = CrashPoints()
        store = await self.store(points=points)
        points.passed.clear()
        return store, points

    async def close(self) -> None:
        stores, self._open = self._open, []
        for store in stores:
            await store.close()


class Conformance:
    """The base of every part of the suite. A store's tests provide the fixture `harness`."""

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def world(self, harness: StoreHarness) -> AsyncIterator[World]:
        world = World(harness)
        try:
            await world.begin()
            yield world
        finally:
            await world.close()
            await harness.cleanup()

    @pytest_asyncio.fixture
    async def store(self, world: World) -> Store:
        return await world.store()


async def refused(call: Awaitable[T], error: type[BaseException]) -> BaseException:
    """The error that the call must raise."""
    with pytest.raises(error) as caught:
        await call
    return caught.value


def suite() -> dict[str, type[Conformance]]:
    """A test class for every part of the suite, for a store's test module to collect: `globals().update(suite())`."""
    named = {f"Test{part.__name__.removesuffix('Conformance')}": part for part in parts()}
    return {name: type(name, (named[name],), {}) for name in sorted(named)}


def parts() -> set[type[Conformance]]:
    """Every part of the suite."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{package}.{module.name}")
    found: set[type[Conformance]] = set()
    for part in Conformance.__subclasses__():
        if part.__module__.startswith(f"{package}."):
            found.add(part)
    return found
