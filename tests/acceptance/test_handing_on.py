"""Ends in flows that hand on: the end, the answers and the claim of what follows in one commit, or in none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from outlast import App, FlowCancelled, FlowHandle, Status
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.outbox import Delivery
from outlast.opened import Opened
from outlast.runtime.flows import handing_on
from outlast.runtime.flows.carrying import Flows
from outlast.runtime.flows.downstream_cache import Behind, DownstreamCache, Known
from outlast.runtime.local_holder import LocalHolder
from tests.acceptance.conftest import Gate, Place, until
from tests.acceptance.flow_workflows import member_is, workflows
from tests.acceptance.test_fast_path import cannot_begin, with_room


@pytest.fixture
def debts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose answers were owed, and carried later."""
    owed: list[str] = []
    really = Flows.member_ended

    async def noted(self: Flows, delivery: Delivery, fact: facts.MemberEnded) -> bool:
        owed.append(delivery.target)
        return await really(self, delivery, fact)

    monkeypatch.setattr(Flows, "member_ended", noted)
    return owed


def chain(app: App, kit: Any, length: int = 5) -> Any:
    flow = app.flow("f", id="f")
    last = flow.add("m0", kit.number, 7)
    for n in range(1, length):
        last = flow.add(f"m{n}", kit.number, last.output)
    return flow


def meanwhile(monkeypatch: pytest.MonkeyPatch, then: Callable[[Execution], Awaitable[None]]) -> None:
    """Something happens between the first look at what follows and the commit."""
    really, told = handing_on._hand_on, set[str]()

    async def hand_on(holder: LocalHolder, e: Execution, fact: facts.Complete, behind: Behind) -> bool:
        if e.id not in told:
            told.add(e.id)
            await then(e)
        return await really(holder, e, fact, behind)

    monkeypatch.setattr(handing_on, "_hand_on", hand_on)


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing rings: the bell of its own start, heard late, would be a reason for a worker of one to look first."""

    async def heard(self: Opened, heard: frozenset[str], homes: dict[str, int]) -> None:
        pass

    monkeypatch.setattr(Opened, "_heard", heard)


async def is_handed_on(place: Place, concurrency: int) -> None:
    app = place.app()
    kit = workflows(app)
    async with app.worker(concurrency=concurrency) as worker:
        fh = await chain(app, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
        await until(lambda: worker._promised == 0 and worker.busy == 0, "promises are not kept")


async def test_a_chain_is_claimed_once_and_owes_nothing(place: Place, claims: list[str], debts: list[str]):
    await is_handed_on(place, concurrency=10)
    assert claims == ["f/m0"]
    assert debts == []


@pytest.mark.usefixtures("unheard")
async def test_a_worker_of_one_hands_on_too(place: Place, claims: list[str], debts: list[str]):
    await is_handed_on(place, concurrency=1)
    assert claims == ["f/m0"]
    assert debts == []


async def test_a_worker_of_one_looks_first_at_what_has_rung(place: Place, gate: Gate, claims: list[str]):
    app = place.app()
    kit = workflows(app)

    @app.workflow
    async def first() -> int:
        await gate()
        return 7

    async with app.worker(concurrency=1) as worker:
        flow = app.flow("f", id="f")
        m0 = flow.add("m0", first)
        flow.add("m1", kit.number, m0.output)
        fh = await flow.start()
        await gate.reached()
        urgent = await kit.number.options(id="urgent", priority=1).start(1)
        worker.kick()
        gate.open()
        assert await fh.result("20s") == {"m0": 7, "m1": 7}
        assert await urgent.result("20s") == 1
    assert claims[:2] == ["f/m0", "urgent"]


async def test_without_the_fast_path_what_follows_is_answered_and_left_to_a_claim(
    place: Place, claims: list[str], debts: list[str]
):
    app = place.app(fast_path=False)
    kit = workflows(app)
    async with app:
        fh = await chain(app, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
    assert claims == [f"f/m{n}" for n in range(5)]
    assert debts == ["f/m4"]


async def test_what_is_given_from_the_beginning_and_what_is_made_of_outputs_both_arrive(place: Place):
    app = place.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        a = flow.add("a", kit.number, 1)
        flow.add("plain", kit.number, 2).after(a)
        flow.add("made", kit.number, a.output)
        flow.add("text", kit.text, "x").after(a)
        fh = await flow.start()
        assert await fh.result("20s") == {"a": 1, "plain": 2, "made": 1, "text": "x"}


async def test_a_stop_that_is_accepted_first_lets_nothing_follow(
    place: Place, claims: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)
    handles: list[FlowHandle] = []

    async def stopped(execution: Execution) -> None:
        if execution.id == "f/m1":
            await handles[0].cancel(policy="cancel_pending", reason="enough")

    meanwhile(monkeypatch, stopped)
    async with app:
        handles.append(await chain(app, kit).start())
        with pytest.raises(FlowCancelled):
            await handles[0].result("20s")
        await member_is(handles[0], "m1", Status.SUCCEEDED)
        for n in range(2, 5):
            await member_is(handles[0], f"m{n}", Status.CANCELLED)
            assert (await app.execution(f"f/m{n}").info()).attempts == 0
    assert claims == ["f/m0"]


async def test_the_room_that_the_next_member_takes_over_is_given_to_nobody_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """One member hands on while another execution waits for room: two at once stay two."""
    app, gates = place.app(), {name: Gate() for name in ("first", "beside", "waiting")}
    now, most = 0, 0

    @app.workflow
    async def code(name: str, after: str = "") -> str:
        return await works(name)

    @app.step
    async def works(name: str) -> str:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if name in gates:
            await gates[name]()
        now -= 1
        return name

    async def waiting_begins(execution: Execution) -> None:
        if execution.id == "f/first":
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await gates["waiting"].reached()

    meanwhile(monkeypatch, waiting_begins)
    async with app.worker(concurrency=2):
        beside = await code.start("beside")
        flow = app.flow("f", id="f")
        flow.add("next", code, "next", flow.add("first", code, "first").output)
        fh = await flow.start()
        await gates["beside"].reached()
        await gates["first"].reached()
        waiting = await code.start("waiting")
        gates["first"].open()
        await gates["waiting"].reached()
        await asyncio.sleep(0.1)
        gates["waiting"].open()
        gates["beside"].open()
        assert await fh.result("20s") == {"first": "first", "next": "next"}
        assert [await one.result("20s") for one in (beside, waiting)] == ["beside", "waiting"]
    assert most == 2


async def test_one_that_cannot_begin_keeps_neither_the_others_nor_their_room(
    place: Place, claims: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app(lease_ttl="1s")
    kit = workflows(app)
    async with app.worker(concurrency=4) as worker:
        await with_room(app)
        cannot_begin(worker, monkeypatch, 3)
        flow = app.flow("f", id="f")
        first = flow.add("first", kit.number, 7)
        for n in range(3):
            flow.add(f"m{n}", kit.number, first.output)
        # It is held and does not run, until a renewal finds it and hands it back.
        assert await (await flow.start()).result("20s") == {"first": 7, "m0": 7, "m1": 7, "m2": 7}
        await until(lambda: worker.busy == 0, "what has begun does not end")
        assert worker._promised == 0
        assert worker._free() == 4
    assert claims == ["f/m1"]


async def test_a_count_that_comes_first_is_not_overlooked_by_the_last_end(
    place: Place, debts: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)

    async def counted(execution: Execution) -> None:
        if execution.id == "f/m4":
            assert app._opened is not None
            await app._opened._engine.flows.tally("default", "f")

    meanwhile(monkeypatch, counted)
    async with app:
        fh = await chain(app, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
        assert (await fh.status()).counts == {Status.SUCCEEDED: 5}
    assert debts == ["f/m4"]


@pytest.mark.parametrize("policy", ["cancel_pending", "flow_only"])
async def test_a_stop_that_is_accepted_before_the_last_end_stands(
    place: Place, policy: Any, monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)
    handles: list[FlowHandle] = []

    async def stopped(execution: Execution) -> None:
        if execution.id == "f/m4":
            await handles[0].cancel(policy=policy, reason="enough")

    meanwhile(monkeypatch, stopped)
    async with app:
        handles.append(await chain(app, kit).start())
        with pytest.raises(FlowCancelled):
            await handles[0].result("20s")
        await member_is(handles[0], "m4", Status.SUCCEEDED)


# ---- what is known ahead ------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Behind whom was looked in the store."""
    looked: list[str] = []
    really = Flows.behind

    async def behind(self: Flows, execution: Execution) -> Behind | None:
        looked.append(execution.id)
        return await really(self, execution)

    monkeypatch.setattr(Flows, "behind", behind)
    return looked


@pytest.fixture
def knew(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Of whose end it was known ahead what waits for it."""
    known: dict[str, bool] = {}
    really = DownstreamCache.take

    async def take(self: DownstreamCache, execution: Execution) -> Known | None:
        found = await really(self, execution)
        known[execution.id] = found is not None
        return found

    monkeypatch.setattr(DownstreamCache, "take", take)
    return known


async def test_who_started_a_flow_need_not_read_what_follows(place: Place, reads: list[str], debts: list[str]):
    app = place.app()
    kit = workflows(app)
    async with app:
        fh = await chain(app, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
    assert reads == []
    assert debts == []


async def test_who_did_not_start_it_reads_ahead_while_a_member_is_about_to_begin(place: Place, knew: dict[str, bool]):
    starter, app = place.app(), place.app()
    kit = workflows(starter)
    workflows(app)
    async with starter.client(), app:
        fh = await chain(starter, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
    assert knew == {"f/m0": False, **{f"f/m{n}": True for n in range(1, 5)}}


async def test_what_has_changed_since_it_was_known_is_read_anew(
    place: Place, reads: list[str], debts: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)

    async def held(execution: Execution) -> None:
        if execution.id == "f/m1":
            await app.execution("f/m2").hold()

    meanwhile(monkeypatch, held)
    async with app:
        fh = await chain(app, kit).start()
        await member_is(fh, "m1", Status.SUCCEEDED)
        assert (await app.execution("f/m2").info()).reason == "operator"
        await app.execution("f/m2").release()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(5)}
    assert reads == ["f/m1"]
    assert debts == []


async def test_large_inputs_are_not_remembered(place: Place, reads: list[str], debts: list[str]):
    app = place.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        first = flow.add("m0", kit.text, "x")
        flow.add("m1", kit.text, "x" * 20_000).after(first)
        fh = await flow.start()
        assert (await fh.result("20s"))["m0"] == "x"
    assert reads == ["f/m0"]
    assert debts == []


async def test_what_is_known_of_a_flow_that_was_purged_is_not_taken_for_another_of_its_id(place: Place):
    app, other = place.app(), place.app()
    kit, others = workflows(app), workflows(other)

    def pair(of: App, its: Any, number: int, lane: str) -> Any:
        flow = of.flow("f", id="f")
        first = flow.add("m0", its.number.options(lane=lane), 0)
        flow.add("m1", its.number, number).after(first)
        return flow

    async with app, other.client():
        old = await pair(app, kit, 1, "nobody-serves-it").start()
        await old.cancel(wait=True)

        async def purged() -> bool:
            return await app.purge("0s") == 2

        await until(purged, "it is not purged")
        new = await pair(other, others, 2, "default").start()
        assert await new.result("20s") == {"m0": 0, "m1": 2}
