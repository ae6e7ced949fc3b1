"""Where the acceptance tests live: a store of each test's own, and any number of apps on it.

This is the one place that knows which stores there are; a new store is a line in `STORES`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outlast import App, Duration
from outlast.app import store_for
from outlast.codec.values import Values
from outlast.machine.changes import Changes, Patch
from outlast.model.lease import Claimed, ClaimRequest
from outlast.model.session import Session
from outlast.runtime.local_holder import LocalHolder, local_parts
from outlast.runtime.parts import Parts
from outlast.testing import ManualClock
from tests import postgres
from tests.acceptance.carried import CarriedHolder
from tests.conformance.valkey_harness import check_leaks, cluster_url, valkey_url
from tests.waiting import until

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/acceptance.db",
    "postgres": lambda _: asyncio.run(postgres.empty()),
    "valkey": valkey_url,
    "cluster": cluster_url,
    "carried": lambda folder: f"sqlite:///{folder}/acceptance.db",
}
EVERYTHING_ON_A_CLUSTER = bool(os.environ.get("OUTLAST_TEST_CLUSTER"))
"""A cluster is a Valkey store with its partitions on several servers: tests marked `on_cluster` run there too, and all
of them if this is set."""
EVERYTHING_CARRIED = bool(os.environ.get("OUTLAST_TEST_CARRIED"))
"""Carried is a SQLite store whose attempts reach it over a wire (`carried.py`): files marked `on_carried` run there
too, and all of them if this is set."""


class Place:
    """One store. Each app on it stands for a process: same data, code of its own."""

    def __init__(self, url: str, clock: ManualClock | None = None) -> None:
        self.url = url
        self._clock = clock

    def app(self, **options: Any) -> App:
        clock = self._clock
        if clock is None:
            return App(self.url, **options)
        # The longest lease: a worker of this process can't renew while the test turns the clock.
        # Not resident: what waits is suspended at once, and the reconcilers wake it when the clock is turned.
        options = {"lease_ttl": "1d", "reconcile_shared": False, "resident": 0, **options}
        return App(self.url, store=lambda: store_for(self.url, clock=clock), **options)

    async def pass_time(self, app: App, duration: Duration) -> None:
        """Turn the store's clock, and let the app do what became due. For `clocked` places."""
        assert self._clock is not None
        self._clock.advance(duration)
        assert app._opened is not None
        assert app._opened.reconcilers is not None
        for name in ("lease_expiry", "attempt_timeout", "execution_deadline", "timer"):
            await app._opened.reconcilers.cycle(name)
        assert app._opened.parts is not None
        await app._opened.parts.timers.look()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    also = {
        "cluster": (EVERYTHING_ON_A_CLUSTER, "on_cluster"),
        "carried": (EVERYTHING_CARRIED, "on_carried"),
    }
    left = [item for item in items if not runs(item, *also.get(store_of(item), (True, "")))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def store_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else callspec.params.get("place", "")


def runs(item: pytest.Item, everything: bool, mark: str) -> bool:
    return everything or item.get_closest_marker(mark) is not None


ONE_CLUSTER = (pytest.mark.slow, pytest.mark.xdist_group("valkey cluster"))


@pytest.fixture(params=[pytest.param(name, marks=ONE_CLUSTER if name == "cluster" else ()) for name in STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A store with real time."""
    url = STORES[request.param](tmp_path)
    if request.param == "carried":
        monkeypatch.setattr("outlast.opened.local_parts", parts_over_a_wire)
    yield Place(url)
    if request.param in ("valkey", "cluster"):
        check_leaks(url)


def parts_over_a_wire(holder: LocalHolder, values: Values, **options: Any) -> Parts:
    parts = local_parts(holder, values, **options)
    parts.holder = CarriedHolder(holder)
    return parts


@pytest.fixture
def clocked(place: Place) -> Place:
    """A store whose time stands still until the test turns it."""
    return Place(place.url, ManualClock())


@pytest.fixture
def app(place: Place) -> App:
    return place.app()


class Gate:
    """A place inside of a step where it waits for the test: `await gate()` there, `await gate.reached()` here."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self) -> None:
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(20):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        """Who comes from now on waits again."""
        self._reached.clear()
        self._opened.clear()


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def status_is(handle: Any, status: str) -> None:
    async def reached() -> bool:
        return (await handle.info()).status == status

    await until(reached, f"{handle} is not {status}")


async def sessions_run_out(url: str) -> None:
    """The workers of this store are dead, and their leases over. So these may be long: no machine is so slow that a
    living worker loses them."""
    store = store_for(url)
    await store.open()
    sessions = [record for record in await store.scan(Session.KIND, ()) if isinstance(record, Session)]
    over = [
        Changes(
            id=uuid4().hex,
            partition=session.partition,
            anchors=(session.key,),
            writes=(Patch(session.key, {"expires_at": 1}),),
        )
        for session in sessions
    ]
    assert all(verdict.applied for verdict in (await store.commit(over)).verdicts)
    await store.close()


def claims_no_more(app: App) -> None:
    """Its worker goes on with what it runs, and leaves all else to others: so it can become a zombie."""
    assert app._opened is not None
    assert app._opened.worker is not None
    app._opened.worker._serves = lambda: frozenset()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers claimed by looking for it."""
    taken: list[str] = []
    really = LocalHolder.claim

    async def noted(self: LocalHolder, request: ClaimRequest) -> Claimed:
        claimed = await really(self, request)
        taken.extend(one.execution.id for one in claimed.executions)
        return claimed

    monkeypatch.setattr(LocalHolder, "claim", noted)
    return taken
