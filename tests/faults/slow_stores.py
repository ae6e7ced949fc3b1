"""A store that takes its time, differently for every call, and many small executions whose end is known exactly.

Here are the stores, those who live through them, and a first play; `slow_flows.py` and `slow_lives.py` have two more.
`slow_hunt.py` lets any of them run with many seeds.

On a fast store almost nothing ever happens between two calls of the runtime. Here everything does: a word from outside
comes while the code falls asleep, an end while somebody looks for it, a worker goes while it is being handed something.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import outlast
from outlast import App, Retry, Status
from outlast.app import store_for
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.execution import execution_key
from outlast.model.flow import EdgeAnswer, Flow, Summary
from outlast.model.journal import JournalEntry
from outlast.model.outbox import Delivery
from outlast.store.port import Query, Store

CALLS = ("commit", "claim", "load", "scan", "renew", "due", "now", "find", "frames", "append", "transact")
LONGEST_S = 0.12
LIMIT_S = 30.0

DONE: Counter[str] = Counter()
"""What steps did, by what they were told: each of it is to be done once."""


def slowed(store: Store, random: Random, longest_s: float = LONGEST_S) -> Store:
    """Most calls take hardly longer than ever, some take long: before they do anything, after it, or both."""
    for name in [name for name in CALLS if hasattr(store, name)]:
        setattr(store, name, _slow(getattr(store, name), random, longest_s))
    return store


def _slow(call: Callable[..., Awaitable[Any]], random: Random, longest_s: float) -> Callable[..., Awaitable[Any]]:
    async def slow(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(random.random() ** 3 * longest_s)
        answer = await call(*args, **kwargs)
        await asyncio.sleep(random.random() ** 3 * longest_s)
        return answer

    return slow


# ---- what runs ----------------------------------------------------------------------------------------------------


def workflows(app: App) -> Any:
    """The same in every app: any of them may go on with what another one began."""

    @app.step
    async def does(what: str) -> None:
        DONE[what] += 1

    @app.step(retry=Retry(max_attempts=4, initial="20ms", backoff=1.5))
    async def fails_twice(what: str) -> int:
        DONE[what] += 1
        if DONE[what] < 3:
            raise ValueError("not yet")
        return DONE[what]

    @app.step(retry=Retry(max_attempts=3, initial="1200ms", backoff=1.0))
    async def fails_once(what: str) -> int:
        DONE[what] += 1
        if DONE[what] < 2:
            raise ValueError("not yet")
        return DONE[what]

    @app.workflow
    async def listens() -> list[Any]:
        heard = [await outlast.receive("first", str), await outlast.receive("second", int)]
        heard.append(await outlast.deferred("approval", bool))
        await outlast.interrupted()
        return heard

    @app.workflow
    async def talks(name: str) -> None:
        other = app.execution(name)
        await other.send("first", "hello")
        await other.send("second", 2)
        await other.resolve("approval", True)
        await other.interrupt()

    @app.workflow
    async def twice(x: int) -> int:
        return 2 * x

    @app.workflow
    async def naps(x: int) -> int:
        await outlast.sleep("60ms")
        return x

    @app.workflow
    async def fails(x: int) -> int:
        raise ValueError(f"no {x}")

    @app.workflow
    async def waits_for_go(x: int = 0) -> int:
        return await outlast.receive("go", int)

    @app.workflow
    async def one_after_the_other() -> list[int]:
        return [await twice(1), await naps(2), await twice(3)]

    @app.workflow
    async def gathers() -> list[int]:
        return list(await asyncio.gather(twice(1), naps(2), twice(3)))

    @app.workflow
    async def catches() -> str:
        said = ""
        for x in (1, 2):
            try:
                await fails(x)
            except ValueError as error:
                said += str(error)
        return f"{said} {await twice(2)}"

    @app.workflow
    async def detaches(name: str) -> list[int]:
        one = await twice.options(id=f"{name}-one", detached=True).start(1)
        two = await naps.options(id=f"{name}-two", detached=True).start(2)
        return [await two.result(), await one.result()]

    @app.workflow
    async def waits_at_its_end() -> int:
        await naps.options(id="late", parent_close="wait").start(1)
        await twice.options(id="early", parent_close="wait").start(1)
        return 7

    @app.workflow
    async def leaves_at_its_end() -> int:
        await waits_for_go.options(id="never", parent_close="cancel").start()
        return 7

    @app.workflow
    async def races() -> list[Any]:
        """Whatever wins, the event is received once."""
        first = await outlast.race(outlast.receive("n", int), outlast.sleep("150ms"))
        second = await outlast.receive("n", int)
        third = None if first is not None else await outlast.receive("n", int)
        return sorted(n for n in (first, second, third) if n is not None)

    @app.workflow
    async def in_time() -> int:
        try:
            return await outlast.receive("n", int, timeout="150ms")
        except TimeoutError:
            return await outlast.receive("n", int)

    @app.workflow
    async def in_asyncios_time() -> int:
        try:
            async with asyncio.timeout(0.15):
                return await outlast.receive("n", int)
        except TimeoutError:
            return await outlast.receive("n", int)

    @app.workflow
    async def asks(pause_ms: int) -> str:
        await outlast.sleep(pause_ms / 1_000)
        try:
            said = await outlast.deferred("approval", str)
        except outlast.DeferredRejected as error:
            said = f"no: {error}"
        return said

    @app.workflow
    async def goes_round(turns: int, total: int = 0) -> int:
        me = app.execution(outlast.current().id)
        await me.send("n", turns)
        total += await outlast.receive("n", int)
        if turns == 1:
            return total
        return outlast.continue_as_new(turns - 1, total)

    @app.workflow
    async def undoes(name: str) -> int:
        for n in range(3):
            await outlast.compensate(does, f"{name} undo {n}")
            await does(f"{name} do {n}")
            await outlast.race(outlast.sleep("40ms"), outlast.receive("nothing"))
        return await outlast.receive("go", int)

    @app.workflow
    async def three_events() -> list[int]:
        return [await outlast.receive("n", int) for _ in range(3)]

    @app.workflow
    async def basket() -> list[int]:
        inside: list[int] = []
        done = asyncio.Event()

        @outlast.query("inside")
        def shows() -> list[int]:
            return list(inside)

        @outlast.update("add")
        def add(n: int) -> int:
            inside.append(n)
            if len(inside) == 3:
                done.set()
            return len(inside)

        await done.wait()
        await outlast.receive("pay")
        return sorted(inside)

    @app.workflow
    async def tries(name: str) -> list[int]:
        return list(await asyncio.gather(fails_twice(f"{name} short"), fails_once(f"{name} long")))

    @app.workflow
    async def naps_beside() -> list[Any]:
        async def nap() -> int:
            for _ in range(3):
                await outlast.sleep("50ms")
            return 3

        return list(await asyncio.gather(nap(), outlast.receive("n", int), outlast.deferred("d", int)))

    @app.workflow
    async def adds(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def lists(count: int) -> list[int]:
        return list(range(count))

    @app.workflow
    async def sums(xs: list[int]) -> int:
        return sum(xs)

    @app.step
    async def broken_once(what: str) -> int:
        DONE[what] += 1
        if DONE[what] == 1:
            raise ValueError("broken")
        return DONE[what]

    @app.workflow
    async def breaks(what: str, x: int) -> int:
        return x + await broken_once(what)

    @app.workflow
    def threaded() -> list[int]:
        outlast.sync.sleep("50ms")
        return [outlast.sync.receive("n", int), outlast.sync.receive("n", int)]

    @app.workflow(retry=Retry(max_attempts=4, initial="30ms", backoff=1.5))
    async def retried(name: str) -> list[int]:
        first = await outlast.receive("n", int)
        await does(f"{name} once")
        await broken_once(f"{name} fails")
        return [first, await outlast.receive("n", int)]

    @app.workflow
    async def cancels_its_child() -> str:
        child = await waits_for_go.options(id="child").start()
        await outlast.sleep("30ms")
        await child.cancel("enough")
        try:
            return str(await child.result())
        except outlast.ExecutionCancelled:
            return "cancelled"

    @app.workflow
    async def impatient() -> list[Any]:
        child = await waits_for_go.options(id="child").start()
        try:
            first: int | None = await child.result(timeout="100ms")
        except TimeoutError:
            first = None
        await child.send("go", 5)
        return [first, await child.result()]

    @app.workflow
    async def shows() -> int:
        for n in range(3):
            outlast.emit(n)
            await outlast.sleep("30ms")
        return 3

    @app.workflow
    async def two_children_talk() -> list[int]:
        one = await waits_for_go.options(id="one").start()
        two = await waits_for_go.options(id="two").start()
        await one.send("go", 1)
        first = await one.result()
        await two.send("go", first + 1)
        return [first, await two.result()]

    @app.workflow
    async def in_any_order() -> int:
        """Whatever comes first, all three are awaited at once."""
        got = await asyncio.gather(*(outlast.receive(name, int) for name in ("a", "b", "c")))
        return sum(got) + await outlast.deferred("d", int)

    @app.workflow
    async def stops_gracefully() -> list[int]:
        got: list[int] = []
        stop = asyncio.ensure_future(outlast.interrupted())
        while not stop.done():
            number = await outlast.race(asyncio.shield(stop), outlast.receive("n", int))
            if number is not None:
                got.append(number)
        return got

    @app.workflow
    async def sleeps(naps_ms: list[int]) -> bool:
        began = outlast.now()
        await asyncio.gather(*(asyncio.sleep(ms / 1_000) for ms in naps_ms))
        return outlast.now() - began >= timedelta(milliseconds=max(naps_ms))

    return SimpleNamespace(**{name: value for name, value in locals().items() if name != "app"})


# ---- what happens to it -------------------------------------------------------------------------------------------


class World:
    """What one scenario sees: an app to speak through, its workflows, chance, a name of its own, and the store as it
    is, to look at."""

    def __init__(self, app: App, kit: Any, name: str, random: Random, store: Store, url: str) -> None:
        self.app, self.kit, self.name, self.random = app, kit, name, random
        self.store, self.url = store, url

    async def pause(self, longest_s: float = 0.4) -> None:
        await asyncio.sleep(self.random.random() ** 2 * longest_s)

    async def begin(self, workflow: Any, *args: Any) -> Any:
        return await workflow.options(id=self.name).start(*args)

    async def later(self, longest_s: float, say: Callable[[], Awaitable[Any]]) -> Any:
        await self.pause(longest_s)
        return await say()


async def gives(handle: Any, wanted: Any) -> None:
    found = await handle.result(timeout=LIMIT_S)
    assert found == wanted, f"{handle} gave {found!r} instead of {wanted!r}"


async def is_cancelled(handle: Any) -> None:
    try:
        found = await handle.result(timeout=LIMIT_S)
    except outlast.ExecutionCancelled:
        return
    raise AssertionError(f"{handle} was not cancelled, but gave {found!r}")


async def talking(w: World) -> None:
    listener = await w.begin(w.kit.listens)
    await w.pause(0.05)
    talker = await w.kit.talks.options(id=f"{w.name}-talks").start(w.name)
    await gives(talker, None)
    await gives(listener, ["hello", 2, True])


async def told_by_a_client(w: World) -> None:
    listener = await w.begin(w.kit.listens)
    for say in (
        lambda: listener.send("first", "hello"),
        lambda: listener.send("second", 2),
        lambda: listener.resolve("approval", True),
        lambda: listener.interrupt(),
    ):
        await w.pause(0.2)
        await say()
    await gives(listener, ["hello", 2, True])


async def children(w: World) -> None:
    await gives(await w.begin(w.kit.one_after_the_other), [2, 2, 6])


async def gathered(w: World) -> None:
    await gives(await w.begin(w.kit.gathers), [2, 2, 6])


async def caught(w: World) -> None:
    await gives(await w.begin(w.kit.catches), "no 1no 2 4")


async def detached(w: World) -> None:
    await gives(await w.begin(w.kit.detaches, w.name), [2, 2])


async def waited_for(w: World) -> None:
    await gives(await w.begin(w.kit.waits_at_its_end), 7)
    for child in ("late", "early"):
        assert (await w.app.execution(f"{w.name}/{child}").info()).status is Status.SUCCEEDED


async def left(w: World) -> None:
    await gives(await w.begin(w.kit.leaves_at_its_end), 7)
    await is_cancelled(w.app.execution(f"{w.name}/never"))


async def raced(w: World) -> None:
    handle = await w.begin(w.kit.races)
    await w.pause()
    await handle.send("n", 1)
    await w.pause()
    await handle.send("n", 2)
    assert await handle.result(timeout=LIMIT_S) == [1, 2]


async def just_in_time(w: World) -> None:
    handle = await w.begin(w.kit.in_time)
    await asyncio.sleep(0.1 + w.random.random() * 0.2)
    await handle.send("n", 5)
    await gives(handle, 5)


async def just_in_asyncios_time(w: World) -> None:
    handle = await w.begin(w.kit.in_asyncios_time)
    await asyncio.sleep(0.1 + w.random.random() * 0.2)
    await handle.send("n", 5)
    await gives(handle, 5)


async def approved(w: World) -> None:
    handle = await w.begin(w.kit.asks, w.random.choice([0, 100, 1_200]))
    await w.pause()
    if w.random.random() < 0.5:
        await handle.resolve("approval", "yes")
        await gives(handle, "yes")
    else:
        await handle.reject("approval", "too late")
        await gives(handle, "no: too late")


async def round_and_round(w: World) -> None:
    await gives(await w.begin(w.kit.goes_round, 4), 10)


async def cancelled(w: World) -> None:
    handle = await w.begin(w.kit.listens)
    await w.pause(0.6)
    await handle.cancel("enough")
    await is_cancelled(handle)


async def undone(w: World) -> None:
    handle = await w.begin(w.kit.undoes, w.name)
    await w.pause(1.0)
    await handle.cancel("enough")
    await is_cancelled(handle)
    for n in range(3):
        did, undid = DONE[f"{w.name} do {n}"], DONE[f"{w.name} undo {n}"]
        assert undid <= 1, f"{w.name} undo {n} was done {undid} times"
        assert did <= undid, f"{w.name} do {n} was done, and not undone"


async def parent_cancelled(w: World) -> None:
    handle = await w.begin(w.kit.leaves_at_its_end)
    await w.pause(0.3)
    with suppress(outlast.ExecutionRefused, outlast.ExecutionCancelled):  # it has ended; or it has not
        await handle.cancel("enough")
        await gives(handle, 7)


async def held(w: World) -> None:
    handle = await w.begin(w.kit.three_events)
    for n in range(3):
        await w.pause(0.15)
        if w.random.random() < 0.7:
            await handle.hold()
        await w.pause(0.15)
        await handle.send("n", n)
        if n < 2 and w.random.random() < 0.7:
            await handle.release()
    await w.pause(0.2)
    with suppress(outlast.ExecutionRefused):  # it has ended
        await handle.release()
    await gives(handle, [0, 1, 2])


async def updated(w: World) -> None:
    handle = await w.begin(w.kit.basket)

    async def add(n: int) -> int:
        await w.pause(0.5)
        return await handle.update("add", n, type=int, timeout=LIMIT_S)

    async def look() -> None:
        await w.pause(0.5)
        assert len(await handle.query("inside", type=list[int])) <= 3

    counts = await asyncio.gather(add(1), add(2), add(3), look(), look())
    assert sorted(counts[:3]) == [1, 2, 3]
    await handle.send("pay")
    await gives(handle, [1, 2, 3])
    assert sorted(await handle.query("inside", type=list[int])) == [1, 2, 3]


async def tried_again(w: World) -> None:
    await gives(await w.begin(w.kit.tries, w.name), [3, 2])


async def woken_by_all_at_once(w: World) -> None:
    handle = await w.begin(w.kit.naps_beside)

    async def send() -> None:
        await w.pause(0.6)
        await handle.send("n", 1)

    async def resolve() -> None:
        await w.pause(0.6)
        await handle.resolve("d", 2)

    await asyncio.gather(send(), resolve())
    await gives(handle, [3, 1, 2])


async def in_a_thread(w: World) -> None:
    handle = await w.begin(w.kit.threaded)
    for n in range(2):
        await w.pause(0.3)
        await handle.send("n", n)
    await gives(handle, [0, 1])


async def diamond(w: World) -> None:
    flow = w.app.flow("diamond", id=w.name)
    top = flow.add("top", w.kit.twice, 1)
    first, second = flow.add("first", w.kit.naps, top.output), flow.add("second", w.kit.twice, top.output)
    bottom = flow.add("bottom", w.kit.adds, first.output, second.output)
    flow.add("last", w.kit.twice, bottom.output)
    await gives(await flow.start(), {"top": 2, "first": 2, "second": 4, "bottom": 6, "last": 12})


async def first_of_two(w: World) -> None:
    flow = w.app.flow("first", id=w.name)
    slow, fast = flow.add("slow", w.kit.waits_for_go), flow.add("fast", w.kit.naps, 1)
    flow.add("then", w.kit.twice, 4).after(slow, fast, join=outlast.any_of(), on_satisfied="cancel_remaining")
    await gives(await flow.start(), {"fast": 1, "then": 8})
    await is_cancelled(w.app.execution(f"{w.name}/slow"))


async def mapped(w: World) -> None:
    flow = w.app.flow("mapped", id=w.name)
    items = flow.map(w.kit.twice, flow.add("lists", w.kit.lists, 4).output, name="items", max_parallel=2)
    flow.add("sums", w.kit.sums, items.output)
    outputs = await (await flow.start()).result(timeout=LIMIT_S)
    assert (outputs["items"], outputs["sums"]) == ([0, 2, 4, 6], 12), outputs


async def mended(w: World) -> None:
    flow = w.app.flow("mended", id=w.name)
    broken = flow.add("broken", w.kit.breaks, w.name, flow.add("top", w.kit.naps, 1).output)
    flow.add("below", w.kit.twice, broken.output)
    fh = await flow.start()
    try:
        raise AssertionError(f"{w.name} gave {await fh.result(timeout=LIMIT_S)}")
    except outlast.FlowFailed:
        pass
    await w.pause(0.2)
    await fh.retry()
    await gives(fh, {"top": 1, "broken": 3, "below": 6})


async def flow_cancelled(w: World) -> None:
    flow = w.app.flow("cancelled", id=w.name)
    top = flow.add("top", w.kit.naps, 1)
    flow.add("waits", w.kit.waits_for_go, top.output)
    flow.add("waits_too", w.kit.waits_for_go, top.output)
    fh = await flow.start()
    await w.pause(0.8)
    await fh.cancel(reason="enough")
    try:
        raise AssertionError(f"{w.name} gave {await fh.result(timeout=LIMIT_S)}")
    except outlast.FlowCancelled:
        pass


async def tried_as_a_whole(w: World) -> None:
    handle = await w.begin(w.kit.retried, w.name)
    for n in range(2):
        await w.pause(0.3)
        await handle.send("n", n)
    await gives(handle, [0, 1])
    assert DONE[f"{w.name} once"] == 1


async def child_cancelled(w: World) -> None:
    await gives(await w.begin(w.kit.cancels_its_child), "cancelled")


async def impatient(w: World) -> None:
    await gives(await w.begin(w.kit.impatient), [None, 5])


async def shown(w: World) -> None:
    handle = await w.begin(w.kit.shows)
    frames = [frame.value async for frame in handle.frames()]
    assert frames == [0, 1, 2], frames
    await gives(handle, 3)


async def children_talk(w: World) -> None:
    await gives(await w.begin(w.kit.two_children_talk), [1, 2])


async def in_any_order(w: World) -> None:
    handle = await w.begin(w.kit.in_any_order)

    async def later(say: Awaitable[None]) -> None:
        await w.pause(0.5)
        await say

    sends = [handle.send(name, n) for n, name in enumerate("abc", 1)]
    await asyncio.gather(*map(later, (*sends, handle.resolve("d", 4))))
    await gives(handle, 10)


async def stopped(w: World) -> None:
    handle = await w.begin(w.kit.stops_gracefully)
    for n in range(3):
        await w.pause(0.2)
        await handle.send("n", n)
    await w.pause(0.2)
    await handle.interrupt()
    got = await handle.result(timeout=LIMIT_S)
    assert got == list(range(len(got))), got


async def started_twice(w: World) -> None:
    """… with a word, by everybody at once: it is one execution, and every word is kept."""
    starts = [w.kit.three_events.options(id=w.name, send={"n": 1}).start() for _ in range(3)]
    handles = await asyncio.gather(*starts)
    await gives(handles[0], [1, 1, 1])


async def slept(w: World) -> None:
    await gives(await w.begin(w.kit.sleeps, [w.random.randrange(20, 200), 900]), True)


class Play(NamedTuple):
    """The workflows of every app, and what happens to them."""

    workflows: Callable[[App], Any]
    scenarios: tuple[Callable[[World], Awaitable[None]], ...]


SCENARIOS: tuple[Callable[[World], Awaitable[None]], ...] = (
    talking,
    told_by_a_client,
    children,
    gathered,
    caught,
    detached,
    waited_for,
    left,
    raced,
    just_in_time,
    just_in_asyncios_time,
    approved,
    round_and_round,
    cancelled,
    undone,
    parent_cancelled,
    held,
    updated,
    tried_again,
    woken_by_all_at_once,
    in_a_thread,
    diamond,
    first_of_two,
    mapped,
    mended,
    flow_cancelled,
    tried_as_a_whole,
    child_cancelled,
    impatient,
    shown,
    children_talk,
    in_any_order,
    stopped,
    started_twice,
    slept,
)
TALK = Play(workflows, SCENARIOS)


# ---- living through it --------------------------------------------------------------------------------------------


class Outlived(AssertionError):
    """Something has not ended, or not as it must."""


async def live_through(
    url: str, seed: int, play: Play = TALK, *, copies: int = 1, longest_s: float = LONGEST_S
) -> None:
    """All scenarios at once, on two workers; one of them goes in the middle, and comes again."""
    random = Random(seed)
    DONE.clear()
    # One suspends whatever waits, the other keeps in memory what waits for less than a second.
    apps = [
        App(
            url,
            store=lambda: slowed(store_for(url), Random(random.random()), longest_s),
            resident=resident,
            fast_path=random.random() < 0.7,
        )
        for resident in random.sample([0, "1s"], 2)
    ]
    kits = [play.workflows(app) for app in apps]
    look = store_for(url)
    await look.migrate()
    await look.open()
    try:
        async with apps[0]:
            leaving = asyncio.create_task(_come_and_go(apps[1], random))
            worlds = [
                (scenario, World(apps[0], kits[0], f"{scenario.__name__}-{n}", Random(random.random()), look, url))
                for scenario in play.scenarios
                for n in range(copies)
            ]
            ends = await asyncio.gather(*(_in_time(scenario(w)) for scenario, w in worlds), return_exceptions=True)
            wrong = [(w.name, end) for (_, w), end in zip(worlds, ends, strict=True) if end is not None]
            said = [f"{name}: {''.join(traceback.format_exception(end))}" for name, end in wrong]
            said += await _left_over(look) if not wrong else []
            if said:
                names = dict.fromkeys(name for name, _ in wrong)
                shown = [line for name in names for line in await _shown(look, name)]
                said += [*shown, *_in_memory(apps)]
                raise Outlived(f"seed {seed} on {url}:\n" + "\n".join(said))
            await leaving
    finally:
        await look.close()


async def _in_time(scenario: Awaitable[None]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await scenario


async def _come_and_go(app: App, random: Random) -> None:
    for _ in range(2):
        async with app:
            await asyncio.sleep(0.3 + random.random())
        await asyncio.sleep(random.random() * 0.3)


async def _left_over(store: Store) -> list[str]:
    """What has not ended, and what is owed: after a little while, nothing."""
    ends = time.monotonic() + 15
    while True:
        page = await store.find(Query(namespace="default", limit=1_000))
        alive = [repr(e) for e in page.executions if not e.status.terminal]
        alive += [repr(one) for one in await _flows(store, Summary) if one.outcome is None]
        owed = [repr(one) for one in await _owed(store)]
        if not alive and not owed:
            return []
        if time.monotonic() > ends:
            return ["not ended:", *alive, "owed:", *owed]
        await asyncio.sleep(0.05)


async def _owed(store: Store) -> list[Any]:
    pages = [await store.scan(Delivery.KIND, (partition,)) for partition in range(store.partitions)]
    return [one for page in pages for one in page]


async def _flows(store: Store, kind: type[Flow] | type[Summary]) -> list[Any]:
    return list(await store.scan(kind.KIND, ("default",)))


async def _shown(store: Store, name: str) -> list[str]:
    page = await store.find(Query(namespace="default", limit=1_000))
    ids = [e.id for e in page.executions if e.id == name or e.id.startswith((f"{name}/", f"{name}-"))]
    lines: list[str] = []
    for one in ids:
        lines += map(repr, await store.load([execution_key("default", one)]))
        for kind in (JournalEntry, Event, Deferred, EdgeAnswer):
            lines += [f"    {record!r}" for record in await store.scan(kind.KIND, ("default", one))]
    heads = [*await _flows(store, Flow), *await _flows(store, Summary)]
    lines += [repr(one) for one in heads if one.id == name or one.id.startswith(f"{name}-")]
    return lines + [f"    {one!r}" for one in await _owed(store) if one.target in ids or one.source in ids]


def _in_memory(apps: list[App]) -> list[str]:
    workers = [app._opened.worker for app in apps if app._opened is not None]
    return [
        f"in memory: {a.execution.id} epoch {a.execution.epoch} at_rest {a.at_rest} busy {a.busy} "
        f"heard {a.hearing.heard} told {a.hearing.told} looking {a.hearing._looking} "
        f"falls asleep {a.machine.state}"
        for worker in workers
        if worker is not None
        for a in worker.attempts
    ]
