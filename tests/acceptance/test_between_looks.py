"""Answers that are put together from more than one look: what happens between two of them is seen as what it is.

Each test lets one thing happen at such a moment, where a slow store would only sometimes (`tests/faults`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import outlast
from outlast import App, ExecutionConflict, ExecutionRefused, FlowConflict, FlowFailed, FlowNotFound, Status
from outlast.cli import replay
from outlast.machine import facts
from outlast.machine.changes import Changes, Insert
from outlast.model.event import Event, ended_name
from outlast.model.execution import execution_key
from outlast.model.flow import flow_key
from outlast.model.journal import UPDATE, JournalEntry
from outlast.model.payload import Payload
from outlast.runtime import inbox_reader
from outlast.runtime.attempts import inquiry
from outlast.runtime.attempts.mail import Mail
from outlast.runtime.engine import Engine
from tests.acceptance.conftest import STORES, Place, status_is, until
from tests.acceptance.flow_workflows import FAILS, workflows
from tests.acceptance.test_flow_cancels import engine_of
from tests.conformance.valkey_harness import check_leaks

HERE = [
    pytest.param(name, marks=pytest.mark.slow if name == "postgres" else ())
    for name in STORES
    if name not in ("cluster", "carried")
]
"""What happens between two looks is the same on every store; the slowest one is not asked every time."""
Then = Callable[[], Awaitable[Any]]


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, then: Then, *, when: Literal["before", "behind"] = "behind"
) -> list[int]:
    """Once, with the next call of a method: right before what it does, or behind it. Its calls, to be counted."""
    method, calls = getattr(where, name), list[int]()

    async def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        first = len(calls) == 1
        if first and when == "before":
            await then()
        found = await method(*args, **kwargs)
        if first and when == "behind":
            await then()
        return found

    monkeypatch.setattr(where, name, called)
    return calls


@pytest.fixture(params=HERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = STORES[request.param](tmp_path)
    yield Place(url)
    if request.param == "valkey":
        check_leaks(url)


def client_of(app: App) -> Any:
    assert app._opened is not None
    return app._opened.client


# ---- begun anew -----------------------------------------------------------------------------------------------------


def rounds(app: App) -> Any:
    @app.workflow
    async def rounds(total: int = 0) -> int:
        count = total

        @outlast.query("count")
        def shows() -> int:
            return count

        for _ in range(2):
            count += await outlast.receive("n", int)
        return count if count >= 4 else outlast.continue_as_new(count)

    return rounds


async def in_its_first_round(app: App) -> tuple[outlast.Handle[int], Then]:
    """One event is received; and what brings it into the second round, and forgets the first."""
    handle = await rounds(app).options(id="rounds").start()
    await handle.send("n", 1)

    async def received(count: int) -> bool:
        return await handle.query("count") == count

    await until(lambda: received(1), "the first is not received")
    await status_is(handle, Status.SUSPENDED)

    async def goes_on() -> None:
        await handle.send("n", 1)
        store = engine_of(app).store

        async def forgotten() -> bool:
            old = [*await store.scan(JournalEntry.KIND, ("default", "rounds", 1))]
            old += await store.scan(Payload.KIND, ("default", "rounds", 1))
            return not old

        await until(forgotten, "the first round is not forgotten")
        await handle.send("n", 1)
        await until(lambda: _recorded(app, 2), "the second round does not go on")

    return handle, goes_on


async def _recorded(app: App, generation: int) -> bool:
    return bool(await engine_of(app).store.scan(JournalEntry.KIND, ("default", "rounds", generation)))


@pytest.mark.parametrize("moment", ["before its input", "before its journal"])
async def test_a_query_of_what_begins_anew_meanwhile_is_answered_by_the_new(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, moment: str
):
    app = clocked.app()
    async with app:
        handle, goes_on = await in_its_first_round(app)
        when: Any = "before" if moment == "before its input" else "behind"
        calls = meanwhile(monkeypatch, inquiry, "as_claimed", goes_on, when=when)
        assert await handle.query("count") == 3
        assert len(calls) == 2


async def test_a_query_shows_what_is_recorded_though_its_holder_has_not_heard_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    app = place.app()

    @app.workflow
    async def counts() -> int:
        count, done = 0, asyncio.Event()

        @outlast.query("count")
        def shows() -> int:
            return count

        @outlast.update("add")
        def add() -> int:
            nonlocal count
            count += 1
            done.set()
            return count

        await asyncio.wait([asyncio.ensure_future(done.wait()), asyncio.ensure_future(outlast.sleep("300ms"))])
        return count

    async with app:
        engine, shown = engine_of(app), list[int]()
        commit_timed = engine.group.commit_timed

        async def then_asked(changes: Changes) -> Any:
            committed = await commit_timed(changes)
            if any(isinstance(one, Insert) and getattr(one.record, "op", None) == UPDATE for one in changes.writes):
                shown.append(await asyncio.create_task(handle.query("count"), context=contextvars.Context()))
            return committed

        monkeypatch.setattr(engine.group, "commit_timed", then_asked)
        handle = await counts.options(id="counts").start()
        assert await handle.update("add") == 1
        assert shown == [1]


async def test_a_fork_of_what_begins_anew_meanwhile_is_one_of_the_new(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        handle, goes_on = await in_its_first_round(app)
        meanwhile(monkeypatch, client_of(app), "_look", goes_on)
        fork = await handle.fork(from_step="n", id="fork")
        for _ in range(2):
            await fork.send("n", 1)
        assert await fork.result(timeout=20) == 4


async def test_a_journal_that_is_forgotten_while_it_is_read_is_not_shown(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    async with app:
        handle, goes_on = await in_its_first_round(app)
        meanwhile(monkeypatch, client_of(app), "_look", goes_on)
        assert [entry.name for entry in await handle.journal()] == ["n"]


async def test_a_replay_of_what_begins_anew_or_is_purged_meanwhile_finds_nothing_wrong(clocked: Place):
    app = clocked.app()
    async with app:
        handle, goes_on = await in_its_first_round(app)
        parts, listed = client_of(app)._inquiries._parts, await engine_of(app).look("default", "rounds")
        assert listed is not None
        await goes_on()
        assert await replay._replayed(app, parts, listed) == []
        await handle.send("n", 1)
        assert await handle.result(timeout=20) == 4
        await purged(app, clocked)
        assert await replay._replayed(app, parts, listed) == []


async def test_a_token_does_not_resolve_for_a_generation_that_begins_meanwhile(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app(token_keys="new:" + "bmV3" * 8)
    made: list[str] = []

    @app.step
    async def post(token: str) -> None:
        made.append(token)

    @app.workflow
    async def asks(first: bool = True) -> bool:
        approval = outlast.deferred("approval", bool)
        if first:
            await post(await approval.token())
            await outlast.receive("go")
            outlast.continue_as_new(False)
        return await approval

    async with app:
        handle = await asks.options(id="asks").start()
        await until(lambda: made, "no token is made")
        await status_is(handle, Status.SUSPENDED)

        async def goes_on() -> None:
            await handle.send("go")
            await until(waits, "it does not begin anew")

        async def waits() -> bool:
            return (await handle.info()).reason == "deferred:approval"

        meanwhile(monkeypatch, engine_of(app), "look", goes_on)
        with pytest.raises(ExecutionRefused, match="begun anew since the token was made"):
            await app.resolve_token(made[0], True)
        assert (await handle.info()).status is Status.SUSPENDED


# ---- retried --------------------------------------------------------------------------------------------------------


async def test_a_retry_from_a_step_takes_all_that_was_recorded_meanwhile(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    called: list[str] = []

    @app.step
    async def goes(name: str) -> None:
        called.append(name)
        if called.count(name) == 1 and name in ("b", "d"):
            raise ValueError(name)

    @app.workflow
    async def walks() -> int:
        for name in "abcd":
            await app.step(goes.fn, name=name)(name)
        return 1

    async with app:
        handle = await walks.options(id="walks").start()
        with pytest.raises(ValueError, match="b"):
            await handle.result(timeout=20)

        async def retried() -> None:
            await app.execution("walks").retry()
            with pytest.raises(ValueError, match="d"):
                await app.execution("walks").result(timeout=20)

        engine = engine_of(app)
        tell = engine.tell

        async def then_told(namespace: str, execution_id: str, fact: facts.AnyFact, **given: Any) -> Any:
            if isinstance(fact, facts.Retry) and fact.supersedes == (("", "b", 1),):
                monkeypatch.setattr(engine, "tell", tell)
                await retried()
            return await tell(namespace, execution_id, fact, **given)

        monkeypatch.setattr(engine, "tell", then_told)
        await handle.retry(from_step="b")
        assert await handle.result(timeout=20) == 1
        assert called == ["a", "b", "b", "c", "d", "b", "c", "d"]


def a_flow(app: App, kit: Any) -> outlast.Flow:
    flow = app.flow("f", id="f")
    flow.add("number", kit.number, 5)
    flow.add("fails", kit.fails, "once")
    return flow


async def mended(app: App) -> None:
    """The flow is retried, and ends well."""
    FAILS.discard("once")
    await app.flow_handle("f").retry()

    async def succeeded() -> bool:
        _, summary = await engine_of(app).flows.heads("default", "f")
        return summary is not None and summary.outcome is Status.SUCCEEDED

    await until(succeeded, "the flow does not succeed")


async def purged(app: App, place: Place) -> None:
    """So little time passes that nothing of what is owed becomes due."""
    await place.pass_time(app, "20ms")
    await app.purge("10ms")


async def test_a_flow_that_is_retried_while_its_end_is_read_ends_as_it_does_then(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    kit = workflows(app)
    FAILS.add("once")
    async with app:
        fh = await a_flow(app, kit).start()
        with pytest.raises(FlowFailed, match="once"):
            await fh.result(timeout=20)
        meanwhile(monkeypatch, client_of(app).flows, "_members", lambda: mended(app), when="before")
        assert await fh.result(timeout=20) == {"number": 5, "fails": 1}


async def test_a_flow_that_is_purged_while_its_end_is_read_is_gone_and_not_empty(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        fh = await a_flow(app, kit).start()
        assert await fh.result(timeout=20) == {"number": 5, "fails": 1}
        meanwhile(monkeypatch, client_of(app).flows, "_members", lambda: purged(app, clocked), when="before")
        with pytest.raises(FlowNotFound):
            await fh.result(timeout=20)


async def test_a_parent_reads_the_end_of_its_flow_as_one(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    kit = workflows(app)
    FAILS.add("once")

    @app.workflow
    async def hosts() -> dict[str, int]:
        return await (await a_flow(app, kit).start()).result()

    async with app:
        meanwhile(monkeypatch, inbox_reader, "_member_ends", lambda: mended(app), when="before")
        assert await hosts() == {"number": 5, "fails": 1}


# ---- purged ---------------------------------------------------------------------------------------------------------


async def test_a_child_that_is_purged_while_its_end_is_read_has_said_how_it_ended(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()

    @app.workflow
    async def child() -> int:
        return 7

    @app.workflow
    async def parent() -> int:
        one = await child.options(id="one").start()
        await outlast.receive("go")
        return await one.result()

    async with app:
        handle = await parent.options(id="parent").start()
        store = engine_of(app).store

        async def told() -> bool:
            return bool(await store.scan(Event.KIND, ("default", "parent", ended_name("parent/one"))))

        await until(told, "its parent does not hear of it")
        await status_is(handle, Status.SUSPENDED)

        async def gone() -> None:
            await purged(app, clocked)
            assert await store.load([execution_key("default", "parent/one")]) == [None]

        look, looks = Engine.look, list[str]()

        async def then_gone(engine: Engine, namespace: str, execution_id: str) -> Any:
            found = await look(engine, namespace, execution_id)
            if execution_id == "parent/one":
                looks.append(execution_id)
                if len(looks) == 1:
                    await gone()
            return found

        monkeypatch.setattr(Engine, "look", then_gone)
        await handle.send("go")
        assert await handle.result(timeout=20) == 7
        assert len(looks) > 1


def flows_that_take(app: App, kit: Any) -> Any:
    @app.workflow
    async def takes() -> str:
        try:
            return str(await (await other_members(app, kit).start()).result())
        except FlowConflict as error:
            return str(error)

    return SimpleNamespace(takes=takes)


def other_members(app: App, kit: Any) -> outlast.Flow:
    flow = app.flow("f", id="f")
    flow.add("other", kit.number, 1)
    return flow


@pytest.mark.parametrize("inside", [False, True], ids=["by a client", "in a workflow"])
async def test_a_flow_in_the_way_that_is_purged_meanwhile_is_not_in_the_way(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, inside: bool
):
    app = clocked.app()
    kit = workflows(app)
    made = flows_that_take(app, kit)
    async with app:
        await (await a_flow(app, kit).start()).result(timeout=20)
        commit, gone = engine_of(app).group.commit_timed, list[Changes]()

        async def then_gone(changes: Changes) -> Any:
            committed = await commit(changes)
            if not committed[0].applied and changes.anchors == (flow_key("default", "f"),) and not gone:
                gone.append(changes)
                await purged(app, clocked)
            return committed

        monkeypatch.setattr(engine_of(app).group, "commit_timed", then_gone)
        if inside:
            assert await made.takes() == "{'other': 1}"
        else:
            assert await (await other_members(app, kit).start()).result(timeout=20) == {"other": 1}
        assert len(gone) == 1


async def test_a_member_whose_id_is_taken_is_told_as_that(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    made = flows_that_take(app, kit)

    @app.workflow
    async def leaves() -> None:
        await kit.waits.options(id="other", parent_close="abandon").start()

    async with app:
        await (await leaves.options(id="f").start()).result(timeout=20)
        await purged(app, clocked)
        assert "has a member whose id is taken (execution(default, f/other))" in await made.takes()
        with pytest.raises(FlowConflict, match="has a member whose id is taken"):
            await other_members(app, kit).start()


# ---- started --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False], ids=["with the same", "with other arguments"])
async def test_a_detached_child_whose_id_is_taken_meanwhile_is_not_waited_for(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, same: bool
):
    app = clocked.app()
    kit = workflows(app)

    @app.workflow
    async def detaches() -> str:
        try:
            return str(await (await kit.number.options(id="taken", detached=True).start(1)).result())
        except ExecutionConflict as error:
            return str(error)

    async with app:
        engine = engine_of(app)
        tell = engine.tell

        async def then_told(namespace: str, execution_id: str, fact: facts.AnyFact, **given: Any) -> Any:
            if isinstance(fact, facts.Start) and fact.parent is not None:
                monkeypatch.setattr(engine, "tell", tell)
                # Not as the code of the workflow, in whose name the outbox carries this.
                await asyncio.create_task(starts(), context=contextvars.Context())
            return await tell(namespace, execution_id, fact, **given)

        async def starts() -> None:
            await kit.number.options(id="taken").start(1 if same else 2)

        monkeypatch.setattr(engine, "tell", then_told)
        handle = await detaches.options(id="parent").start()
        said = await handle.result(timeout=20)
        assert ("not a child of 'parent'" if same else "other arguments") in said


@pytest.mark.parametrize("second", [1, 2])
async def test_two_branches_that_start_a_child_at_once_have_the_same_one_or_a_conflict(app: App, second: int):
    kit = workflows(app)

    @app.workflow
    async def branches() -> list[str]:
        async def branch(x: int) -> str:
            try:
                return str(await (await kit.number.options(id="child").start(x)).result())
            except ExecutionConflict as error:
                return str(error)

        return list(await asyncio.gather(branch(1), branch(second)))

    async with app:
        handle = await branches.options(id="parent").start()
        said = await handle.result(timeout=20)
        started = [entry.outcome for entry in await handle.journal() if entry.op == "start"]
        if second == 1:
            assert (said, started) == (["1", "1"], ["succeeded", "succeeded"])
        else:
            own = [(1, "1") in enumerate(said, 1), (2, "2") in enumerate(said, 1)]
            assert sorted(own) == [False, True], said
            assert "'parent/child' exists as number" in said[own.index(False)]
            assert sorted(started) == ["failed", "succeeded"]


# ---- sent meanwhile -------------------------------------------------------------------------------------------------


async def _awaited(then: Then) -> None:
    await then()


def once_behind_the_look_at(monkeypatch: pytest.MonkeyPatch, name: str, then: Then) -> None:
    """Once, right behind a look at the events of a name that found none."""
    look, done = Mail.event, list[str]()

    async def looked(self: Mail, of: str, until: int | None) -> Event | None:
        found = await look(self, of, until)
        if found is None and of == name and not done:
            done.append(of)
            # From outside: here it would be the workflow that sends.
            await asyncio.get_running_loop().create_task(_awaited(then), context=contextvars.Context())
        return found

    monkeypatch.setattr(Mail, "event", looked)


async def test_a_race_is_won_by_what_was_sent_first_also_if_both_come_between_two_looks(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    app = place.app()

    @app.workflow
    async def races() -> list[int]:
        await outlast.receive("go", int)
        won = await outlast.race(outlast.receive("number", int), outlast.receive("other", int))
        return [won, await outlast.receive("other", int)]

    async with app:
        handle = await races.options(id="races").start()

        async def both() -> None:
            await handle.send("number", 1)
            await handle.send("other", 9)

        once_behind_the_look_at(monkeypatch, "number", both)
        await handle.send("go", 0)
        assert await handle.result(timeout=20) == [1, 9]


async def test_of_two_receives_of_one_name_the_first_called_is_served_first_also_if_all_comes_between_their_looks(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    app = place.app()

    @app.workflow
    async def two() -> list[int]:
        await outlast.receive("go", int)
        return list(await asyncio.gather(outlast.receive("n", int), outlast.receive("n", int)))

    async with app:
        handle = await two.options(id="two").start()

        async def both() -> None:
            await handle.send("n", 1)
            await handle.send("n", 2)

        once_behind_the_look_at(monkeypatch, "n", both)
        await handle.send("go", 0)
        assert await handle.result(timeout=20) == [1, 2]
