"""What comes from outside while an attempt looks outside is not missed: nobody says it again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, Status
from outlast.errors import StoreUnavailable
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.journal import JournalEntry
from outlast.model.lease import ClaimedExecution, Leases
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.mail import Mail
from outlast.runtime.attempts.waits import Waits
from outlast.runtime.holder import ReadJournal
from outlast.runtime.worker import ANSWER_DISTANCE_S, Worker
from tests.acceptance.conftest import Gate, Place, status_is, until


def waits(worker: Worker) -> bool:
    attempt = worker.resident("default", "it")
    return attempt is not None and attempt.at_rest and not attempt.busy


async def test_what_is_said_during_a_look_is_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The first event is for nobody. The second one is sent, and told of, when the look for the first found nothing."""
    app = place.app(lease_ttl="10m", doorbell=False, resident="1m")
    sender = App(place.url)

    @app.workflow
    async def hears() -> str:
        return await outlast.receive("second", str, timeout="50s")

    really, told = Waits.look, list[int]()

    async def look(self: Waits) -> None:
        await really(self)
        if not told:
            told.append(2)
            await sender.execution("it").send("second", "b")
            self._attempt.hear(2)

    monkeypatch.setattr(Waits, "look", look)
    async with app, sender.client():
        handle = await hears.options(id="it").start()
        worker = app._opened and app._opened.worker
        assert worker is not None
        await until(lambda: waits(worker), "it does not wait")
        attempt = worker.resident("default", "it")
        assert attempt is not None
        await sender.execution("it").send("first", "a")
        attempt.hear(1)
        assert await handle.result(timeout=20) == "b"
    assert told == [2]


@pytest.mark.parametrize("colour", ["async def", "def"])
async def test_what_woke_it_is_read_with_its_journal(place: Place, monkeypatch: pytest.MonkeyPatch, colour: str):
    """Whoever sends waits for every look of the resumed attempt: it has no look for the event after its replay."""
    app = place.app(resident="0s")

    async def awaits() -> str:
        return await outlast.receive("word", str)

    def blocks() -> str:
        return outlast.sync.receive("word", str)

    hears: Any = app.workflow(awaits if colour == "async def" else blocks, name="hears")

    async with app:
        assert app._opened is not None
        store = type(app._opened._engine.store)
        really, looks = store.scan, list[tuple[str | int, ...]]()

        async def scan(self: Any, kind: str, prefix: tuple[str | int, ...], **options: Any) -> list[Record]:
            if kind == Event.KIND:
                looks.append(prefix)
            return await really(self, kind, prefix, **options)

        loads, loaded = store.load, list[Key]()

        async def load(self: Any, keys: Sequence[Key]) -> list[Record | None]:
            loaded.extend(key for key in keys if key.kind == Attempt.KIND)
            return await loads(self, keys)

        monkeypatch.setattr(store, "scan", scan)
        monkeypatch.setattr(store, "load", load)
        handle = await hears.options(id="it").start()
        await status_is(handle, "suspended")
        await handle.send("word", "a")
        assert await handle.result(timeout=20) == "a"
    assert looks in ([], [("default", "it")])  # it came with the claim, or is read with the journal
    assert loaded == []  # the claim told when it began


async def test_an_event_that_is_put_back_is_taken_before_those_behind_it(place: Place):
    app = place.app(resident="1m")

    @app.workflow
    async def waits_for_something_else() -> None:
        await outlast.receive("never", timeout="50s")

    async with app:
        handle = await waits_for_something_else.options(id="it").start()
        for word in ("a", "b", "c"):
            await handle.send("word", word)
        worker = app._opened and app._opened.worker
        assert worker is not None
        await until(lambda: waits(worker), "it does not wait")
        attempt = worker.resident("default", "it")
        assert attempt is not None
        lease = Lease(attempt.parts, ClaimedExecution(await attempt.lease.look(), b""), listener=attempt)
        lease.early = (await lease.ask(ReadJournal())).events
        mail, taken = Mail(attempt.parts, lease), list[Event | None]()
        first = await mail.event("word", None)
        assert first is not None
        mail.put_back("word", first.dedup)
        taken = [await mail.event("word", None) for _ in range(4)]
        assert [event and event.value for event in taken] == [b'"a"', b'"b"', b'"c"', None]
        await handle.cancel()


async def test_a_cancel_that_comes_while_the_journal_is_read_stands_behind_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Recorded any earlier, a replay would cancel the code before it did what is recorded."""
    app = place.app(resident=0)
    really, reading, goes_on, broken = Lease.journal, asyncio.Event(), asyncio.Event(), list[dict[str, Any]]()

    async def journal(self: Lease) -> list[JournalEntry]:
        if self.execution.resumed:
            reading.set()
            await goes_on.wait()
        return await really(self)

    @app.step
    async def works() -> None: ...

    @app.workflow
    async def hears() -> None:
        await works()
        await works()
        await outlast.receive("word")
        await outlast.receive("never")

    monkeypatch.setattr(Lease, "journal", journal)
    asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
    async with app.worker() as worker:
        handle = await hears.start()
        await status_is(handle, Status.SUSPENDED)
        await handle.send("word")
        await reading.wait()
        await handle.cancel()
        await worker.renew()
        [attempt] = worker.attempts
        await asyncio.gather(*attempt.under_way)
        goes_on.set()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        recorded = [entry.name for entry in await handle.journal()]
    assert recorded[:2] == ["works", "works"]
    assert "outlast:cancel" in recorded[2:]
    assert broken == []


class Away:
    """A codec whose key service does not answer when it is asked to read a word, until it is back."""

    def __init__(self) -> None:
        self.back = False
        self.asked = 0

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        if data == b'"a word"':
            self.asked += 1
            if not self.back:
                raise ConnectionError("no answer")
        return data


@pytest.mark.parametrize("resident", [0, "1m"], ids=["suspended", "resident"])
@pytest.mark.parametrize("what", ["event", "deferred", "update"])
async def test_what_the_codec_cannot_read_is_put_off_until_it_can(clocked: Place, what: str, resident: Any):
    codec = Away()
    app = clocked.app(codec=codec, resident=resident)

    @app.workflow
    async def hears() -> str:
        if what == "event":
            return await outlast.receive("word", str, timeout="50s")
        if what == "deferred":
            return await outlast.deferred("word", str, timeout="50s")
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        @outlast.update("word")
        def word(said: str) -> None:
            heard.set_result(said)

        return await asyncio.wait_for(heard, 50)

    async with app:
        handle = await hears.options(id="it").start()
        worker = app._opened and app._opened.worker
        assert worker is not None
        if resident:
            await until(lambda: waits(worker), "it does not wait")
        else:
            await status_is(handle, Status.SUSPENDED)
        said = {"event": handle.send, "deferred": handle.resolve, "update": handle.update}[what]("word", "a word")
        asking = asyncio.ensure_future(said)
        for tries in (1, 2):
            await status_is(handle, Status.BLOCKED)
            info = await handle.info()
            assert (info.reason, info.cause, info.attempts) == ("retry", "codec", 1)
            assert codec.asked <= 2 * tries
            codec.back = tries == 2
            await clocked.pass_time(app, "5s")
        assert await handle.result(timeout=20) == "a word"
        await asking


async def test_what_is_put_off_can_be_cancelled(clocked: Place):
    app = clocked.app(codec=Away())

    @app.workflow
    async def hears() -> str:
        return await outlast.receive("word", str)

    async with app:
        handle = await hears.start()
        await handle.send("word", "a word")
        await status_is(handle, Status.BLOCKED)
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)


def running_until_it_hears(app: App, gate: Gate) -> Any:
    @app.step
    async def waits_for_ever() -> None:
        await gate()

    @app.workflow
    async def runs() -> None:
        await waits_for_ever()

    return runs


async def test_a_ring_is_answered_by_a_look_that_writes_nothing(
    place: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """Renewals write a session in every partition: once every third of a lease, and not for every ring."""
    app, outside = place.app(lease_ttl="10m"), App(place.url)
    renewed = list[str]()
    runs = running_until_it_hears(app, gate)

    async with app, outside.client():
        handle = await runs.options(id="it").start()
        await gate.reached()
        really = Worker.renew

        async def renew(self: Worker) -> None:
            renewed.append(self.name)
            await really(self)

        monkeypatch.setattr(Worker, "renew", renew)
        await outside.execution("it").cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
    assert renewed == []


async def test_what_others_end_is_no_reason_to_look_at_what_runs_here(
    place: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """A busy fleet ends something all the time: who waits for an end is told, and nobody else looks."""
    app, other = place.app(lease_ttl="10m"), place.app(lease_ttl="10m")
    looks = list[frozenset[int]]()
    runs = running_until_it_hears(app, gate)

    @other.workflow
    async def ends() -> str:
        return "done"

    async with app, other:
        handle = await runs.options(id="it").start()
        await gate.reached()
        assert app._opened is not None
        worker, store = app._opened.worker, app._opened._engine.store
        assert worker is not None
        really = type(store).held

        async def held(self: Any, name: str, partitions: frozenset[int]) -> Leases:
            if name == worker.name:
                looks.append(partitions)
            return await really(self, name, partitions)

        monkeypatch.setattr(type(store), "held", held)
        await handle.send("word", "a word")
        await until(lambda: bool(looks), "what comes from outside is looked for")
        await asyncio.sleep(2 * ANSWER_DISTANCE_S)
        looks.clear()
        namespace = app.config.namespace
        home = partition_of(namespace, "it", store.partitions)
        neighbour = next(n for n in range(10_000) if partition_of(namespace, f"n{n}", store.partitions) == home)
        await ends.options(id=f"n{neighbour}").start()
        assert await app.execution(f"n{neighbour}").result(timeout=20) == "done"
        await asyncio.sleep(2 * ANSWER_DISTANCE_S)
        assert looks == []
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
    assert looks


async def test_a_look_that_fails_is_looked_at_again(place: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch):
    app, outside = place.app(lease_ttl="10m"), App(place.url)
    failed = list[frozenset[int]]()
    runs = running_until_it_hears(app, gate)

    async with app, outside.client():
        handle = await runs.options(id="it").start()
        await gate.reached()
        assert app._opened is not None
        store = type(app._opened._engine.store)
        really = store.held

        async def held(self: Any, worker: str, partitions: frozenset[int]) -> Leases:
            if not failed:
                failed.append(partitions)
                raise StoreUnavailable("away for a moment")
            return await really(self, worker, partitions)

        monkeypatch.setattr(store, "held", held)
        await outside.execution("it").cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
    assert failed
