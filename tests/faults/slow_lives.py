"""Lives on a slow store: begun anew, forked, retried and held at any moment, asked all the time, too late, or exactly
once with SQL of their own. `slow_stores.py` has the rest.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

import apsw
import asyncpg

import outlast
from outlast import App, ExecutionConflict, ExecutionExpired, ExecutionRefused, InvalidInput, Retry, Status
from tests.faults import slow_stores
from tests.faults.slow_stores import DONE, LIMIT_S, Play, World, gives, is_cancelled

LEDGER = "CREATE TABLE IF NOT EXISTS slow_ledger (what TEXT NOT NULL)"


def workflows(app: App) -> Any:
    kit = slow_stores.workflows(app)

    @app.step
    async def before(what: str) -> int:
        DONE[what] += 1
        return 1

    @app.step
    async def behind(what: str) -> int:
        DONE[what] += 1
        return 10

    @app.workflow
    async def in_parts(name: str) -> int:
        total = await before(f"{name} before")
        await outlast.sleep("40ms")
        total += await behind(f"{name} behind")
        return total + await outlast.receive("go", int)

    @app.workflow
    async def counts(name: str, turns: int, total: int = 0) -> int:
        count = total

        @outlast.query("count")
        def shows() -> int:
            return count

        @outlast.query("at")
        def at() -> datetime:
            return outlast.now()

        for n in range(3):
            await kit.does(f"{name} {count}")
            count += 1
            if n == 1:
                await outlast.sleep("20ms")
        return count if turns == 1 else outlast.continue_as_new(name, turns - 1, count)

    @app.workflow
    async def till(total: int = 0) -> int:
        """Every update, or two, is a generation."""
        got, changed = total, asyncio.Event()

        @outlast.query("got")
        def shows() -> int:
            return got

        @outlast.update("add")
        def add(n: int) -> int:
            nonlocal got
            got += n
            changed.set()
            return got

        stop, change = asyncio.ensure_future(outlast.receive("stop")), asyncio.ensure_future(changed.wait())
        await asyncio.wait((stop, change), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return got
        stop.cancel()
        return outlast.continue_as_new(got)

    @app.workflow(deadline="400ms")
    async def too_late(name: str) -> int:
        await outlast.compensate(kit.does, f"{name} undo")
        await kit.does(f"{name} do")
        return await outlast.receive("go", int)

    @app.step(retry=Retry(max_attempts=3, initial="30ms", backoff=1.0), timeout="150ms")
    async def hangs_once(what: str) -> int:
        DONE[what] += 1
        if DONE[what] == 1:
            await asyncio.sleep(60)
        return DONE[what]

    @app.step
    async def hangs_at_first(what: str) -> int:
        DONE[what] += 1
        if DONE[what] == 1:
            await asyncio.sleep(60)
        return DONE[what]

    @app.workflow(timeout="1500ms", retry=Retry(max_attempts=10, initial="30ms", backoff=1.0))
    async def tried_in_time(name: str) -> list[int]:
        heard = await outlast.receive("n", int)
        first = await hangs_at_first(name)
        return [heard, 1 if first > 1 else 0, await outlast.receive("n", int)]

    @app.workflow(timeout="1500ms")
    async def sleeps_longer() -> int:
        """A suspension is not running time."""
        await outlast.sleep("1700ms")
        return 1

    @app.workflow
    async def patient(name: str) -> int:
        return await hangs_once(name)

    @app.workflow
    async def one_event() -> int:
        return await outlast.receive("n", int)

    @app.workflow
    async def detaches_one(child: str, x: int) -> int | str:
        try:
            return await (await kit.twice.options(id=child, detached=True).start(x)).result()
        except ExecutionConflict as error:
            return str(error)

    @app.workflow
    async def emits(count: int) -> int:
        @app.step
        async def shows(n: int) -> None:
            outlast.emit(n)

        for n in range(0, count, 2):
            outlast.emit(n)
            await shows(n + 1)
            await outlast.sleep("20ms")
        return count

    @app.transaction(retry=Retry(max_attempts=3, initial="20ms"))
    def notes(what: str) -> int:
        outlast.connection().execute("INSERT INTO slow_ledger VALUES (?)", (what,))
        return _once_more(what)

    @app.transaction(retry=Retry(max_attempts=3, initial="20ms"))
    async def notes_down(what: str) -> int:
        await outlast.connection().execute("INSERT INTO slow_ledger VALUES ($1)", what)
        return _once_more(what)

    @app.workflow
    async def keeps_books(name: str, blocking: bool) -> int:
        async def note(what: str) -> int:
            return await notes.aio(f"{name} {what}") if blocking else await notes_down(f"{name} {what}")

        tries = [await note("a"), *await asyncio.gather(note("b"), note("c"), note("d"))]
        await outlast.sleep("30ms")
        await outlast.race(outlast.receive("nothing"), note("e"))
        return len(tries)

    for name, value in locals().items():
        if name not in ("app", "kit"):
            setattr(kit, name, value)
    return kit


def _once_more(what: str) -> int:
    DONE[what] += 1
    if DONE[what] == 1:
        raise ValueError("not yet")
    return DONE[what]


# ---- begun anew, forked, retried, held ------------------------------------------------------------------------------


async def restarted(w: World) -> None:
    """By many at once, when it has ended: who was accepted never hears of the end before."""
    await gives(await w.begin(w.kit.twice, 1), 2)
    accepted = set[int]()

    async def restart(n: int) -> None:
        await w.pause(0.4)
        try:
            handle = await w.kit.twice.options(id=w.name, if_exists="restart").start(n)
        except ExecutionConflict:
            return
        accepted.add(2 * n)
        found = await handle.result(timeout=LIMIT_S)
        assert found != 2, f"{w.name}: that was the end before"

    await asyncio.gather(*map(restart, range(2, 6)))
    last = await w.app.execution(w.name).result(timeout=LIMIT_S)
    assert last in accepted, (last, accepted)


async def forked(w: World) -> None:
    handle = await w.begin(w.kit.in_parts, w.name)
    while "behind" not in [entry.name for entry in await handle.journal()]:
        await w.pause(0.05)

    async def fork(n: int) -> None:
        await w.pause(0.3)
        other = await handle.fork(from_step="behind", id=f"{w.name}-{n}")
        await w.pause(0.2)
        await other.send("go", 100)
        await gives(other, 111)

    async def goes_on() -> None:
        await w.pause(0.3)
        await handle.send("go", 200)
        await gives(handle, 211)

    await asyncio.gather(fork(1), fork(2), goes_on())
    assert DONE[f"{w.name} before"] == 1


async def forked_at_any_time(w: World) -> None:
    """Out of a generation that is there, and as a whole."""
    handle = await w.begin(w.kit.counts, w.name, 4)

    async def fork(n: int) -> None:
        await w.pause(0.8)
        try:
            other = await handle.fork(from_step="does", id=f"{w.name}-{n}")
        except InvalidInput:
            return  # nothing of that name is recorded in this generation
        await gives(other, 12)

    await asyncio.gather(*map(fork, range(5)))
    await gives(handle, 12)


async def retried_by_many(w: World) -> None:
    handle = await w.begin(w.kit.breaks, w.name, 1)
    with suppress(ValueError):
        await handle.result(timeout=LIMIT_S)

    async def retry(from_step: str | None) -> None:
        await w.pause(0.4)
        with suppress(ExecutionRefused, InvalidInput):  # another did, and nothing is recorded anew so far
            await handle.retry(from_step=from_step)

    await asyncio.gather(*map(retry, (None, "broken_once", None, "broken_once")))
    found = await handle.result(timeout=LIMIT_S)
    assert found == 1 + DONE[w.name], (found, DONE[w.name])


async def held_at_work(w: World) -> None:
    """At any moment, and let go at any other: it is done once."""
    handle = await w.begin(w.kit.counts, w.name, 3)

    async def hold() -> None:
        for _ in range(3):
            await w.pause(0.3)
            with suppress(ExecutionRefused):
                await handle.hold()
            await w.pause(0.2)
            with suppress(ExecutionRefused):
                await handle.release()

    await asyncio.gather(hold(), hold())
    with suppress(ExecutionRefused):
        await handle.release()
    await gives(handle, 9)
    assert all(DONE[f"{w.name} {n}"] == 1 for n in range(9))


async def cancelled_while_held(w: World) -> None:
    handle = await w.begin(w.kit.in_parts, w.name)
    await w.pause(0.3)
    await handle.hold()
    await w.pause(0.3)
    await handle.cancel("enough")
    await is_cancelled(handle)


# ---- asked ----------------------------------------------------------------------------------------------------------


async def queried_all_the_time(w: World) -> None:
    """What it shows never goes back, whoever runs it, through all of its generations."""
    handle = await w.kit.counts.options(id=w.name, delay=w.random.choice([0, 0.2])).start(w.name, 4)
    made = (await handle.info()).created_at
    ended = asyncio.ensure_future(handle.result(timeout=LIMIT_S))

    async def ask() -> None:
        last = 0
        while not ended.done():
            count = await handle.query("count", type=int)
            assert count >= last, f"{w.name} showed {count} after {last}"
            last = count
            assert await handle.query("at", type=datetime) >= made
            await handle.journal()
            await w.pause(0.05)

    await asyncio.gather(ask(), ask())
    assert await ended == 12
    assert await handle.query("count", type=int) == 12


async def updated_all_the_time(w: World) -> None:
    """Each update is taken once, in one of its generations."""
    handle = await w.begin(w.kit.till)

    async def add(n: int) -> int:
        await w.pause(0.8)
        key = f"key-{n}" if n % 2 else None
        if key is not None:
            with suppress(TimeoutError):
                await handle.update("add", 1, key=key, timeout=w.random.random() * 0.2)
        return await handle.update("add", 1, type=int, key=key, timeout=LIMIT_S)

    async def look() -> None:
        last = 0
        for _ in range(5):
            await w.pause(0.3)
            got = await handle.query("got", type=int)
            assert got >= last, f"{w.name} showed {got} after {last}"
            last = got

    answers = await asyncio.gather(*map(add, range(6)), look(), look())
    assert sorted(n for n in answers if n is not None) == [1, 2, 3, 4, 5, 6], answers
    await handle.send("stop")
    await gives(handle, 6)


async def tailed(w: World) -> None:
    """From the beginning, and from the middle, by one who goes and comes again."""
    handle = await w.begin(w.kit.emits, 6)

    async def tail(most: int) -> list[int]:
        seen, after = list[int](), 0
        while True:
            await w.pause(0.2)
            count = 0
            async for frame in handle.frames(after=after):
                seen.append(frame.value)
                after, count = frame.offset, count + 1
                if count == most:
                    break
            else:
                return seen

    for seen in await asyncio.gather(tail(2), tail(100), tail(1)):
        assert list(dict.fromkeys(seen)) == [0, 1, 2, 3, 4, 5], seen
    await gives(handle, 6)


async def interrupted_by_many(w: World) -> None:
    handle = await w.begin(w.kit.stops_gracefully)

    async def interrupt() -> None:
        await w.pause(0.4)
        await handle.interrupt()

    await asyncio.gather(interrupt(), interrupt(), interrupt())
    await gives(handle, [])


# ---- in time --------------------------------------------------------------------------------------------------------


async def too_late(w: World) -> None:
    """It ends well before its deadline, or expires and takes back what it did."""
    handle = await w.begin(w.kit.too_late, w.name)
    await w.pause(0.8)
    with suppress(ExecutionRefused):
        await handle.send("go", 5)
    try:
        assert await handle.result(timeout=LIMIT_S) == 5
        assert DONE[f"{w.name} undo"] == 0
    except ExecutionExpired:
        assert DONE[f"{w.name} undo"] <= 1
        assert DONE[f"{w.name} do"] <= DONE[f"{w.name} undo"]


async def tried_in_time(w: World) -> None:
    """Its first attempt hangs: what it has received stays so, and what comes meanwhile is kept."""
    handle = await w.begin(w.kit.tried_in_time, w.name)
    for n in range(2):
        await w.pause(0.4)
        await handle.send("n", n)
    await gives(handle, [0, 1, 1])


async def sleeps_longer(w: World) -> None:
    await gives(await w.begin(w.kit.sleeps_longer), 1)


async def patient(w: World) -> None:
    found = await (await w.begin(w.kit.patient, w.name)).result(timeout=LIMIT_S)
    assert found >= 2, found


# ---- many -----------------------------------------------------------------------------------------------------------


async def many(w: World) -> None:
    """The same ids by several at once, one of them with other arguments: that one is refused, all others are there."""

    async def start(shift: int) -> None:
        await w.pause(0.1)
        bound = [w.kit.twice.options(id=f"{w.name}-{n}").bind(n) for n in range(shift, shift + 8)]
        handles = await w.app.start_many(bound)
        assert [await handle.result(timeout=LIMIT_S) for handle in handles] == [2 * n for n in range(shift, shift + 8)]

    await asyncio.gather(start(0), start(4), start(0))
    bound = [w.kit.twice.options(id=f"{w.name}-{n}").bind(7) for n in (7, 8, 100)]
    try:
        await w.app.start_many(bound)
    except ExecutionConflict:
        pass
    else:
        raise AssertionError("other arguments were accepted")
    await gives(w.app.execution(f"{w.name}-100"), 14)


async def taken_by_many(w: World) -> None:
    """A detached child whose id others take at the same moment: who is not its parent hears so."""

    async def detach(n: int) -> int | str:
        await w.pause(0.2)
        handle = await w.kit.detaches_one.options(id=f"{w.name}-{n}").start(f"{w.name}-child", n // 2)
        return await handle.result(timeout=LIMIT_S)

    async def start() -> None:
        await w.pause(0.4)
        with suppress(ExecutionConflict):
            await w.kit.twice.options(id=f"{w.name}-child").start(1)

    *said, _ = await asyncio.gather(*map(detach, range(4)), start())
    assert sum(isinstance(one, int) for one in said) <= 1, said


async def sent_to_the_ended(w: World) -> None:
    """Started if needed, and told: it hears the first word; later ones are taken until it ends, and refused then."""
    accepted = set[int]()

    async def start(n: int) -> None:
        await w.pause(0.5)
        try:
            await w.kit.one_event.options(id=w.name, send={"n": n}).start()
        except ExecutionRefused:
            assert (await w.app.execution(w.name).info()).status is Status.SUCCEEDED
        else:
            accepted.add(n)

    await asyncio.gather(*map(start, range(5)))
    assert await w.app.execution(w.name).result(timeout=LIMIT_S) in accepted


async def restarted_with_a_word(w: World) -> None:
    """Every restart brings a word along: it is heard, unless one of before is there still."""
    handle = await w.kit.one_event.options(id=w.name, send={"n": 0}).start()
    await gives(handle, 0)
    for n in range(1, 4):
        again = await w.kit.one_event.options(id=w.name, send={"n": n}, if_exists="restart").start()
        await gives(again, n)


# ---- exactly once ---------------------------------------------------------------------------------------------------


async def booked(w: World) -> None:
    kind, name = w.store.capabilities.transactions, f"{w.name} {uuid4()}"
    if kind is None:
        return  # nobody's SQL lives there
    await _ledger(w, LEDGER)
    await gives(await w.begin(w.kit.keeps_books, name, kind == "def"), 4)
    noted = [what for what in await _ledger(w, "SELECT what FROM slow_ledger") if what.startswith(name)]
    assert sorted(noted) == [f"{name} {what}" for what in "abcde"], noted


async def _ledger(w: World, sql: str) -> list[str]:
    if w.store.capabilities.transactions == "def":
        connection = apsw.Connection(w.url.removeprefix("sqlite:///"))
        connection.setbusytimeout(10_000)
        rows: list[Any] = list(connection.execute(sql))
        connection.close()
        return [what for (what,) in rows]
    server = await asyncpg.connect(w.url)
    try:
        return [what for (what,) in await server.fetch(sql)]
    except asyncpg.UniqueViolationError:
        return []  # another makes the same table
    finally:
        await server.close()


LIVES = Play(
    workflows,
    (
        restarted,
        forked,
        forked_at_any_time,
        retried_by_many,
        held_at_work,
        cancelled_while_held,
        queried_all_the_time,
        updated_all_the_time,
        tailed,
        interrupted_by_many,
        too_late,
        tried_in_time,
        sleeps_longer,
        patient,
        many,
        taken_by_many,
        sent_to_the_ended,
        restarted_with_a_word,
        booked,
    ),
)
