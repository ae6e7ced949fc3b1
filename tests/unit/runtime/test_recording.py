"""The answer to a step's commit calls back. What is not answered as usual comes to the same as ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import outlast
from outlast import App
from outlast.authoring.workflow import AsyncWorkflow
from outlast.errors import CorruptState, StoreClosed, StoreUnavailable
from outlast.machine import facts
from outlast.machine.attempt import State
from outlast.machine.changes import Changes, Insert
from outlast.model.journal import JournalEntry
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.recording import Recording
from outlast.runtime.engine import Engine
from outlast.store.port import Committed, Verdict
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock

Commit = Callable[[Sequence[Changes]], Awaitable[Committed]]


class Moody(SqliteStore):
    """Commits entries of journals by a way of the test's."""

    way: Callable[[Commit, Sequence[Changes]], Awaitable[Committed]] | None = None

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        entries = any(type(w) is Insert and type(w.record) is JournalEntry for one in batch for w in one.writes)
        way = type(self).way
        return await (super().commit(batch) if way is None or not entries else way(super().commit, batch))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(Moody, "way", None)
    store = lambda: Moody(str(tmp_path / "o.db"), clock=clock)  # noqa: E731
    return App(store=store, reconcile_shared=False, doorbell=False)


def one_step(app: App) -> AsyncWorkflow[[], int]:
    @app.step
    async def once() -> int:
        return 7

    @app.workflow(version="1")
    async def one() -> int:
        return await once()

    return one


async def test_a_step_whose_reply_was_lost_has_the_time_of_its_first_commit(app: App, clock: ManualClock):
    calls: list[int] = []

    @app.step
    async def once() -> int:
        calls.append(1)
        return 7

    @app.workflow(version="1")
    async def one() -> tuple[int, float]:
        return await once(), outlast.now().timestamp()

    async def lost(commit: Commit, batch: Sequence[Changes]) -> Committed:
        Moody.way = None
        await commit(batch)
        clock.advance(5)
        raise StoreUnavailable("the reply was lost")

    async with app:
        Moody.way = staticmethod(lost)
        handle = await one.options(id="one").start()
        value, seen = await asyncio.wait_for(handle.result(), 10)
        [entry] = await handle.journal()
    assert (value, calls) == (7, [1])
    assert seen == entry.recorded_at.timestamp()


async def test_steps_that_are_answered_together_come_in_their_order(app: App):
    @app.step
    async def number(n: int) -> int:
        return n

    @app.workflow(version="1")
    async def many() -> list[int]:
        seen: list[int] = []

        async def one(n: int) -> None:
            seen.append(await number(n))

        await asyncio.gather(*(one(n) for n in range(20)))
        return seen

    async with app:
        handle = await many.start()
        assert await asyncio.wait_for(handle.result(), 10) == [*range(20)]
        assert len(await handle.journal()) == 20


async def test_no_task_waits_while_an_outcome_is_on_its_way(app: App):
    arrived, go = asyncio.Event(), asyncio.Event()
    one = one_step(app)

    async def held(commit: Commit, batch: Sequence[Changes]) -> Committed:
        arrived.set()
        await go.wait()
        return await commit(batch)

    async with app:
        Moody.way = staticmethod(held)
        handle = await one.start()
        await asyncio.wait_for(arrived.wait(), 10)
        assert app._opened is not None
        assert app._opened.worker is not None
        [attempt] = app._opened.worker.attempts
        assert attempt.busy
        [on_its_way] = attempt.under_way
        assert not isinstance(on_its_way, asyncio.Task)
        go.set()
        assert await asyncio.wait_for(handle.result(), 10) == 7


async def test_an_outcome_that_the_store_refuses_for_good_stops_the_code(app: App, caplog: pytest.LogCaptureFixture):
    left = asyncio.Event()

    @app.step
    async def once() -> int:
        return 7

    @app.workflow(version="1")
    async def one() -> int:
        try:
            return await once()
        finally:
            left.set()

    async def refused(commit: Commit, batch: Sequence[Changes]) -> Committed:
        raise CorruptState("not this one")

    async with app:
        Moody.way = staticmethod(refused)
        await one.options(id="one").start()
        await asyncio.wait_for(left.wait(), 10)
        assert app._opened is not None
        assert app._opened.worker is not None
        while app._opened.worker.attempts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        Moody.way = None
    assert "step 'once' could not be recorded" in caplog.text


async def test_what_is_answered_behind_the_end_of_the_attempt_is_nobodys(app: App, caplog: pytest.LogCaptureFixture):
    arrived, go = asyncio.Event(), asyncio.Event()
    one = one_step(app)

    async def cut_off(commit: Commit, batch: Sequence[Changes]) -> Committed:
        arrived.set()
        await go.wait()
        raise CorruptState("not this one")

    async with app:
        Moody.way = staticmethod(cut_off)
        await one.options(id="one").start()
        await asyncio.wait_for(arrived.wait(), 10)
        assert app._opened is not None
        assert app._opened.worker is not None
        [attempt] = app._opened.worker.attempts
        attempt.lose("for a test")
        go.set()
        while app._opened.worker.attempts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        Moody.way = None
    assert "could not be recorded" not in caplog.text


async def test_who_was_answered_does_not_mind_that_the_commit_is_said_to_be_cut_off(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    answered = Recording.answered

    def twice(recording: Recording, verdict: Verdict, at: int) -> None:
        answered(recording, verdict, at)
        recording.failed(StoreClosed("the pump is gone"))

    monkeypatch.setattr(Recording, "answered", twice)
    one = one_step(app)
    async with app:
        handle = await one.start()
        assert await asyncio.wait_for(handle.result(), 10) == 7


# ---- what may happen while it is on its way -----------------------------------------------------------------------


class Held:
    """The entry of `name` stands at the store until it may go on, and is then committed by `way`."""

    def __init__(self, name: str, way: Callable[[Commit, Sequence[Changes]], Awaitable[Committed]] | None = None):
        self._name = name
        self._way = way
        self.arrived, self.go = asyncio.Event(), asyncio.Event()
        Moody.way = staticmethod(self)

    async def __call__(self, commit: Commit, batch: Sequence[Changes]) -> Committed:
        if not any(self._name in names_in(one) for one in batch):
            return await commit(batch)
        self.arrived.set()
        await self.go.wait()
        Moody.way = None
        return await (commit(batch) if self._way is None else self._way(commit, batch))

    async def there(self) -> None:
        await asyncio.wait_for(self.arrived.wait(), 10)


def names_in(one: Changes) -> list[str]:
    return [w.record.name for w in one.writes if type(w) is Insert and type(w.record) is JournalEntry]


def attempts_of(app: App) -> list[LiveAttempt]:
    assert app._opened is not None
    assert app._opened.worker is not None
    return [*app._opened.worker.attempts]


async def none_is_left(app: App) -> None:
    async with asyncio.timeout(10):
        while attempts_of(app):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Race:
    """`wrong` fails at once; `right` is done when the failure is on its way, and is given up when that is seen."""

    def __init__(self, app: App) -> None:
        failed = self.failed = asyncio.Event()

        @app.step
        async def wrong() -> None:
            raise ValueError("at once")

        @app.step
        async def right() -> str:
            await failed.wait()
            return "right"

        self.wrong, self.right = wrong, right

    async def __call__(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.wrong())
            group.create_task(self.right())

    async def first_fails(self, commit: Commit, batch: Sequence[Changes]) -> Committed:
        """While the failure is committed, the other one is done: it stands in the next batch."""
        if "wrong" in names_in(batch[0]):
            self.failed.set()
            for _ in range(20):
                await asyncio.sleep(0)
        return await commit(batch)


class HeldBehind(Held):
    """The failure first, then the other one, held."""

    def __init__(self, race: Race) -> None:
        super().__init__("right")
        self._race = race

    async def __call__(self, commit: Commit, batch: Sequence[Changes]) -> Committed:
        return await super().__call__(lambda some: self._race.first_fails(commit, some), batch)


async def test_code_that_fails_while_it_gives_up_what_is_on_its_way_comes_to_its_end(
    app: App, caplog: pytest.LogCaptureFixture
):
    """The note that it was given up stands behind the outcome, whose place must be left, whoever waits for it."""
    race = Race(app)

    @app.workflow(version="1")
    async def one() -> None:
        await race()

    async with app:
        held = HeldBehind(race)
        handle = await one.options(id="one").start()
        await held.there()
        [attempt] = attempts_of(app)
        async with asyncio.timeout(10):
            while not attempt.over:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        held.go.set()
        with pytest.raises(ExceptionGroup):
            await handle.result(timeout=10)
        journal = [(entry.name, entry.outcome) for entry in await handle.journal()]
        await none_is_left(app)
    assert journal == [("wrong", "failed"), ("right", "succeeded"), ("right", "cancelled")]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_code_that_goes_on_without_what_is_on_its_way_does_not_see_it(app: App):
    race = Race(app)

    @app.step
    async def after() -> str:
        return "after"

    @app.workflow(version="1")
    async def one() -> str:
        try:
            await race()
        except* ValueError:
            pass
        return await after()

    async with app:
        held = HeldBehind(race)
        handle = await one.options(id="one").start()
        await held.there()
        held.go.set()
        assert await handle.result(timeout=10) == "after"
        journal = [(entry.name, entry.outcome) for entry in await handle.journal()]
    assert journal == [("wrong", "failed"), ("right", "succeeded"), ("right", "cancelled"), ("after", "succeeded")]


async def taken_by_another(store: Moody, clock: ManualClock) -> None:
    engine = Engine(store)
    held = await engine.look("default", "one")
    assert held is not None
    clock.advance(3_600)
    lost = await engine.tell("default", "one", facts.LeaseLost(change_id="lost", epoch=held.epoch))
    assert lost.applied
    await engine.close()


async def test_code_whose_lease_is_lost_while_its_outcome_is_on_its_way_is_stopped(
    app: App, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    seen: list[str] = []

    @app.step
    async def once() -> int:
        return 7

    @app.workflow(version="1")
    async def one() -> int:
        try:
            seen.append(str(await once()))
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        return 7

    other = Moody(str(tmp_path / "o.db"), clock=clock)
    async with app:
        held = Held("once")
        await one.options(id="one").start()
        await held.there()
        [attempt] = attempts_of(app)
        await other.open()
        await taken_by_another(other, clock)
        await other.close()
        held.go.set()
        async with asyncio.timeout(10):
            while not attempt.over:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert "lost" in str(attempt.how_it_ended) or "epoch" in str(attempt.how_it_ended)
    assert "7" not in seen
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_cancel_that_comes_while_an_outcome_is_on_its_way_is_heard_behind_it(app: App):
    seen: list[str] = []

    @app.step
    async def once() -> int:
        return 7

    @app.workflow(version="1")
    async def one() -> None:
        seen.append(str(await once()))
        try:
            await outlast.sleep("1h")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with app:
        held = Held("once")
        handle = await one.options(id="one").start()
        await held.there()
        cancelling = asyncio.ensure_future(handle.cancel())
        await asyncio.sleep(0.02)
        held.go.set()
        await asyncio.wait_for(cancelling, 10)
        async with asyncio.timeout(10):
            while (await handle.info()).status != "cancelled":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        journal = [entry.name for entry in await handle.journal()]
    assert seen == ["7", "cancelled"]
    assert journal[0] == "once"


async def test_nothing_is_suspended_while_an_outcome_is_on_its_way(app: App):
    @app.step
    async def once() -> int:
        return 7

    @app.workflow(version="1")
    async def one() -> int:
        async def wait() -> None:
            await outlast.sleep("1h")

        waiting = asyncio.create_task(wait())
        seen = await once()
        waiting.cancel()
        return seen

    async with app:
        held = Held("once")
        handle = await one.options(id="one").start()
        await held.there()
        [attempt] = attempts_of(app)
        for _ in range(50):
            attempt.nudge()
            await asyncio.sleep(0)
        assert attempt.machine.state is not State.SUSPENDING
        assert not attempt.over
        held.go.set()
        assert await handle.result(timeout=10) == 7
        assert (await handle.info()).attempts == 1


@pytest.mark.parametrize("answered", [True, False])
async def test_a_process_that_is_left_while_an_outcome_is_on_its_way_says_nothing(
    answered: bool, app: App, caplog: pytest.LogCaptureFixture
):
    one = one_step(app)

    async def cut_off(commit: Commit, batch: Sequence[Changes]) -> Committed:
        raise CorruptState("not this one")

    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with app:
        held = Held("once", None if answered else cut_off)
        await one.options(id="one").start()
        await held.there()
        [attempt] = attempts_of(app)
        assert app._opened is not None
        assert app._opened.worker is not None
        await app._opened.worker.abandon()
        held.go.set()
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not attempt.busy
        assert not attempt.lease._open
        Moody.way = None
    assert said == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_goes_wrong_in_the_callback_is_told_to_the_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    one = one_step(app)

    def entered(self: Lease, fact: facts.StepRecorded, verdict: Verdict) -> bool:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Lease, "entered", entered)
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with app:
        await one.options(id="one").start()
        async with asyncio.timeout(10):
            while "a mistake of ours" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await none_is_left(app)
    assert said == []


async def test_what_is_refused_once_is_told_once_more(app: App):
    calls: list[int] = []

    @app.step
    async def once() -> int:
        calls.append(1)
        return 7

    @app.step
    async def twice() -> int:
        return 8

    @app.workflow(version="1")
    async def one() -> list[int]:
        seen: list[int] = []

        async def of(step: Callable[[], Awaitable[int]]) -> None:
            seen.append(await step())

        await asyncio.gather(of(once), of(twice))
        return seen

    async def refused(commit: Commit, batch: Sequence[Changes]) -> Committed:
        committed = await commit(batch[1:]) if len(batch) > 1 else Committed(1, [])
        guard = batch[0].guards[0]
        return Committed(committed.now, [Verdict(applied=False, refused_by=guard), *committed.verdicts])

    async with app:
        held = Held("once", refused)
        held.go.set()
        handle = await one.options(id="one").start()
        assert await handle.result(timeout=10) == [7, 8]
        assert [entry.name for entry in await handle.journal()] == ["once", "twice"]
    assert calls == [1]
