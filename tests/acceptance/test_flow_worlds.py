"""Random flows with random joins, failures, crashes and cancels against a ten-line evaluator; and real kills."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct

import outlast
from outlast import App, FlowCancelled, FlowFailed, FlowHandle, FlowRefused
from outlast.app import store_for
from outlast.model.completion import Completion
from outlast.model.flow import EdgeAnswer, whole_of
from outlast.testing import Crash, ManualClock
from tests.acceptance import flow_killed
from tests.acceptance.conftest import Place
from tests.acceptance.flow_workflows import statuses
from tests.forks import forked


class Node(Struct, frozen=True):
    name: str
    upstreams: tuple[str, ...]
    needed: int
    runs_on_failure: bool
    fails: bool


def random_nodes(rng: random.Random, members: int) -> list[Node]:
    nodes: list[Node] = []
    for n in range(members):
        names = [node.name for node in nodes]
        upstreams = tuple(rng.sample(names, min(len(names), rng.choice((0, 1, 1, 2, 3, 6)))))
        needed = rng.choice((len(upstreams), len(upstreams), rng.randint(1, max(1, len(upstreams)))))
        nodes.append(Node(f"m{n}", upstreams, needed if upstreams else 0, rng.random() < 0.1, rng.random() < 0.15))
    return nodes


def evaluated(nodes: list[Node]) -> dict[str, str]:
    """What must become of every member, whatever happens on the way."""
    ends: dict[str, str] = {}
    for node in nodes:
        successes = sum(ends[upstream] == "succeeded" for upstream in node.upstreams)
        if successes < node.needed and not node.runs_on_failure:
            ends[node.name] = "skipped"
        else:
            ends[node.name] = "failed" if node.fails else "succeeded"
    return ends


def world(app: App) -> Any:
    @app.workflow
    async def member(name: str, fails: bool, given: list[str | None]) -> str:
        if fails:
            raise ValueError(name)
        return f"{name}({len([one for one in given if one])})"

    return member


def built(app: App, member: Any, nodes: list[Node], rng: random.Random) -> outlast.Flow:
    flow = app.flow("world", id="world")
    made: dict[str, Any] = {}
    for node in nodes:
        taken = [made[upstream].output for upstream in node.upstreams if rng.random() < 0.5]
        made[node.name] = flow.add(node.name, member, node.name, node.fails, taken)
        join = outlast.quorum(node.needed) if node.upstreams else None
        made[node.name].after(*node.upstreams, join=join, on_failure="run" if node.runs_on_failure else "skip")
    return flow


class Mortal:
    """An app whose store is gone from its n-th commit on, before or after it is applied."""

    def __init__(self, place: Place, clock: ManualClock, rng: random.Random, life: int) -> None:
        self.dead = asyncio.Event()
        self._left, self._late = life, rng.random() < 0.5
        self._store = store_for(place.url, clock=clock)
        commit = self._store.commit

        async def mortal(batch: Any) -> Any:
            self._left -= 1
            if self._left <= 0 and not (self._left == 0 and self._late):
                self._die()
            committed = await commit(batch)
            if self._left == 0:
                self._die()
            return committed

        self._store.commit = mortal
        self.app = App(place.url, store=lambda: self._store, lease_ttl="1d", reconcile_shared=False, resident=0)

    def _die(self) -> None:
        self.dead.set()
        raise Crash("the process is gone")

    async def live(self, nodes: list[Node], seed: int, clock: ManualClock, *, cancels: bool) -> FlowHandle | None:
        """The flow's handle once it has ended; None if this process died before."""
        member = world(self.app)
        async with self.app:
            opened = self.app._opened
            assert opened is not None
            ending = asyncio.create_task(self._end(member, nodes, seed, clock, cancels=cancels))
            dying = asyncio.create_task(self.dead.wait())
            await asyncio.wait((ending, dying), return_when=asyncio.FIRST_COMPLETED)
            for task in (ending, dying):
                task.cancel()
            await asyncio.gather(ending, dying, return_exceptions=True)
            if self.dead.is_set():
                self.app._opened = None
                await asyncio.gather(opened.abandon(), return_exceptions=True)
                return None
            return ending.result()

    async def _end(self, member: Any, nodes: list[Node], seed: int, clock: ManualClock, *, cancels: bool) -> FlowHandle:
        fh = await built(self.app, member, nodes, random.Random(seed)).start()
        opened = self.app._opened
        assert opened is not None
        assert opened.reconcilers is not None
        assert opened.worker is not None
        clock.advance("2d")
        for row in ("lease_expiry", "outbox", "cancel_backlog", "dependency", "flow_summary", "sibling_cancel"):
            await opened.reconcilers.cycle(row)
        opened.worker.kick()
        if cancels:
            await asyncio.sleep(random.Random(seed).random() * 0.05)
            with suppress(FlowRefused):  # it has ended
                await fh.cancel()
        with suppress(FlowFailed, FlowCancelled):
            await fh.result("60s")
        return fh


async def played(place: Place, seed: int, members: int, crashes: int, *, cancels: bool = False) -> dict[str, str]:
    rng, clock = random.Random(seed), ManualClock()
    nodes = random_nodes(rng, members)
    wanted = evaluated(nodes)
    for crash in range(crashes + 1):
        life = rng.randint(1, members * 4) if crash < crashes else 1_000_000
        mortal = Mortal(place, clock, rng, life)
        fh = await mortal.live(nodes, seed, clock, cancels=cancels and crash >= crashes // 2)
        if fh is not None:
            break
    reader = place.app(store=lambda: store_for(place.url, clock=clock))
    world(reader)
    async with reader.client():
        found = await statuses(reader.flow_handle("world"))
        store = reader.opened()._engine.store
        ends = Counter(
            one.execution
            for one in await store.scan(Completion.KIND, ("default",), limit=10_000)
            if isinstance(one, Completion)
        )
        assert set(ends.values()) == {1}, "everybody ended once"
        told = [
            one.upstream
            for one in await store.scan(EdgeAnswer.KIND, ("default", whole_of("world")), limit=10_000)
            if isinstance(one, EdgeAnswer)
        ]
        assert len(told) == len(set(told)) == members, "the flow was told of every end, once"
        status = await reader.flow_handle("world").status()
        assert status.status is not None
    if not cancels:
        assert found == wanted
    return {name: end for name, end in found.items() if end != wanted[name]}


@pytest.mark.parametrize("seed", range(4))
async def test_random_flows_end_as_the_evaluator_says_whatever_crashes(place: Place, seed: int):
    await played(place, seed, members=random.Random(seed).randint(5, 40), crashes=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101])
async def test_large_random_flows_end_as_the_evaluator_says_whatever_crashes(place: Place, seed: int):
    await played(place, seed, members=200, crashes=6)


@pytest.mark.parametrize("seed", [7, 8])
async def test_random_flows_that_are_cancelled_end_completely(place: Place, seed: int):
    differ = await played(place, seed, members=30, crashes=2, cancels=True)
    assert set(differ.values()) <= {"cancelled", "skipped"}


# ---- real processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("nth", [3, 6, 9, 13, 18])
def test_a_worker_that_is_killed_between_an_end_and_its_edges_loses_nothing(place: Place, nth: int):
    """After any reply of the store in turn: also after the commit that ends a member, before its edges are answered."""
    died = forked("tests.acceptance.flow_killed", place.url, str(nth))
    assert died.wait(60) in (0, -signal.SIGKILL)

    async def finish() -> None:
        app = place.app(lease_ttl="1s")
        flow_killed.build(app)
        async with app:
            outputs = await (await flow_killed.build(app, again=True).start()).result("60s")
            assert outputs == flow_killed.OUTPUTS
            store = app.opened()._engine.store
            ends = [one for one in await store.scan(Completion.KIND, ("default",)) if isinstance(one, Completion)]
            assert Counter(one.execution for one in ends) == {f"killed/{name}": 1 for name in flow_killed.OUTPUTS}
            for name in flow_killed.OUTPUTS:
                edges = await store.scan(EdgeAnswer.KIND, ("default", f"killed/{name}"))
                assert len(edges) == flow_killed.UPSTREAMS[name]

    asyncio.run(finish())
