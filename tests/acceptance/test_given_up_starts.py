"""Called children that the code gives up while their start is on its way to the journal: they begin all the same, and
are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.authoring.workflow import Workflow
from outlast.runtime.operations.child import StartChild
from outlast.testing import harness
from tests.acceptance.conftest import status_is, until

Child = Callable[[], Coroutine[Any, Any, Any]]
Quick = Callable[[], Coroutine[Any, Any, Any]]


class Behind:
    """`await behind()` is the last that a step does: the start of the child follows its outcome to the journal at once,
    and is on its way there when the code sees that outcome."""

    def __init__(self) -> None:
        self.ready, self.goes = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        await self.ready.wait()
        self.ready.clear()
        self.goes.set()


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    behind, perform = Behind(), StartChild.perform

    async def start(kind: StartChild, *args: Any) -> Any:
        outcome = await perform(kind, *args)
        behind.ready.set()
        await behind.goes.wait()
        behind.goes.clear()
        return outcome

    monkeypatch.setattr(StartChild, "perform", start)
    return behind


async def in_a_race(child: Child, quick: Quick) -> None:
    await outlast.race(child(), quick())


async def in_a_group(child: Child, quick: Quick) -> None:
    async def fails() -> None:
        raise ConnectionError(await quick())

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(fails())


async def by_hand(child: Child, quick: Quick) -> None:
    called = asyncio.create_task(child())
    await quick()
    called.cancel()


def family(app: App, behind: Behind, *, ends: bool = False, **options: Any) -> Any:
    """A parent that gives its child up, and goes on or `ends`."""

    @app.step
    async def quick() -> str:
        await behind()
        return "quick"

    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow
    async def parent(give_up: str = "in_a_race") -> str:
        await globals()[give_up](slow.options(**options), quick)
        return "ended" if ends else await outlast.receive("end", str)

    return parent


async def are_cancelled(app: App, number: int = 1) -> None:
    async def cancelled() -> bool:
        return [info.status.value for info in await app.find(workflow="slow")] == ["cancelled"] * number

    await until(cancelled, f"{number} children are not cancelled")


@pytest.mark.parametrize("options", [{}, {"id": "own"}, {"detached": True}, {"detached": True, "id": "own"}], ids=str)
@pytest.mark.parametrize("give_up", ["in_a_race", "in_a_group", "by_hand"])
async def test_it_is_cancelled(app: App, behind: Behind, give_up: str, options: dict[str, Any]):
    parent = family(app, behind, **options)
    async with app:
        handle = await parent.options(id="it").start(give_up)
        await are_cancelled(app)
        await handle.send("end", "well")
        assert await handle.result(timeout=20) == "well"
        starts = [(entry.scope, entry.outcome) for entry in await handle.journal() if entry.op == "start"]
        assert starts == [("", "succeeded"), ("!", "cancelled")]


async def test_what_somebody_else_started_under_that_id_is_not_cancelled(behind: Behind):
    app = App()
    parent = family(app, behind, detached=True, id="theirs")

    @app.workflow
    async def stranger() -> str:
        return await outlast.receive("go", str)

    async with harness(app) as h:
        theirs = await stranger.options(id="theirs").start()
        handle = await parent.start()
        assert (await h.info(handle)).reason == "event:end"
        assert (await h.info(theirs)).reason == "event:go"


async def test_it_is_cancelled_when_its_parent_ends_at_once(app: App, behind: Behind):
    """Nobody else would: one that is detached outlives its parent."""
    parent = family(app, behind, ends=True, detached=True)
    async with app:
        assert await parent() == "ended"
        await are_cancelled(app)


async def test_it_is_cancelled_when_its_parent_waits_for_it_with_its_end(app: App, behind: Behind):
    parent = family(app, behind, ends=True, parent_close="wait")
    async with app:
        handle = await parent.start()
        assert await handle.result(timeout=20) == "ended"
        await are_cancelled(app)


class Unreadable:
    """A codec that fails for so many of the starts that it reads."""

    left = 0

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        if self.left and b"/slow.1" in data:
            self.left -= 1
            raise ConnectionError("no answer")
        return data


async def test_a_codec_that_fails_twice_as_the_code_ends_puts_it_off_once(
    behind: Behind, caplog: pytest.LogCaptureFixture
):
    """Neither what is owed to the child nor what a retry runs again can be found out."""
    codec = Unreadable()
    app = App("sqlite:///given-up.db", codec=codec)

    @app.step
    async def quick() -> None:
        await behind()
        codec.left = 2

    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow(retry=Retry(max_attempts=2))
    async def parent() -> None:
        await outlast.race(slow(), quick())
        raise LookupError("in vain")

    async with harness(app) as h:
        handle = await parent.options(id="it").start()
        with pytest.raises(LookupError, match="in vain"):
            await handle.result()
        assert codec.left == 0
        assert (await h.info("it/slow.1")).status == "cancelled"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_loop_leaves_none_behind(app: App, behind: Behind):
    @app.step
    async def quick() -> None:
        await behind()

    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow
    async def loop(turn: int = 1) -> None:
        await outlast.race(slow(), quick())
        if turn < 3:
            outlast.continue_as_new(turn + 1)
        await outlast.receive("end")

    async with app:
        await loop.options(id="loop").start()
        await are_cancelled(app, 3)
        assert {info.id for info in await app.find(workflow="slow")} == {f"loop/slow.1{at}" for at in ("", "@2", "@3")}


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("options", [{}, {"detached": True}], ids=str)
@pytest.mark.parametrize("nth, when", [(1, "after"), (2, "before"), (2, "after")])
async def test_a_crash_between_its_start_and_its_cancel_changes_nothing(
    behind: Behind, nth: int, when: Any, options: dict[str, Any], ends: bool
):
    app = App()
    parent = family(app, behind, ends=ends, **options)
    async with harness(app) as h:
        h.crash_at("slow", nth=nth, when=when)  # its start, and the note that it was given up
        handle = await parent.options(id="it").start()
        await h.clock.advance("1m")
        assert h.crashes == 1
        await are_cancelled(app)
        assert (await handle.info()).status == ("succeeded" if ends else "suspended")
        assert await h.replay(handle) is None
        names = [(entry.op, entry.scope, entry.outcome) for entry in await handle.journal()]
        assert names.count(("start", "!", "cancelled")) == 1


@pytest.mark.parametrize("ends", [False, True])
async def test_a_crash_before_the_wait_for_it_is_noted_as_given_up_changes_nothing(ends: bool):
    """Its start is recorded first. The replay gives up the wait, and may end at once."""
    app = App()

    @app.step
    async def quick() -> None:
        pass

    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow
    async def parent() -> None:
        await outlast.race(slow.options(detached=True)(), quick())
        if not ends:
            await outlast.receive("end")

    async with harness(app) as h:
        h.crash_at("quick", when="after")
        await parent.start()
        await h.clock.advance("1m")
        assert h.crashes == 1
        await are_cancelled(app)


async def test_a_deploy_that_gives_it_up_and_does_not_fit_cancels_nothing():
    """What a replay gives up is made up for when all that is recorded was met, and not before."""

    def shop(*, gives_up: bool) -> tuple[App, Workflow[[], str]]:
        app = App()

        @app.workflow
        async def slow() -> str:
            return await outlast.receive("go", str)

        @app.workflow
        async def parent() -> str:
            child = asyncio.create_task(slow())
            await asyncio.sleep(0)
            if gives_up:
                child.cancel()
                return "ended"
            await outlast.sleep("1h")
            await outlast.receive("more")
            return await child

        return app, parent

    (app, parent), (unfit, _) = shop(gives_up=False), shop(gives_up=True)
    async with harness(app) as h:
        handle = await parent.options(id="it").start()
        await h.clock.advance("2h")
        await h.stop()
        await handle.send("more")
        await h.deploy(unfit)
        assert (await h.info(handle)).reason == "version"
        await h.stop(unfit)
        await h.restart()
        await app.execution("it/slow.1").send("go", "shipped")
        assert await handle.result() == "shipped"


# ---- retries ------------------------------------------------------------------------------------------------------


def shop(app: App, behind: Behind, *, failures: int, retry: Retry | None = None) -> Workflow[[], str]:
    """What is beside the child fails so often, each time while the child is being started."""
    left = [failures]

    @app.step
    async def flaky() -> str:
        await behind()
        if left[0]:
            left[0] -= 1
            raise ConnectionError("once more")
        return "fine"

    @app.workflow
    async def slow() -> str:
        return await outlast.receive("go", str)

    @app.workflow(retry=retry)
    async def order() -> str:
        async with asyncio.TaskGroup() as group:
            child, beside = group.create_task(slow()), group.create_task(flaky())
        return f"{beside.result()}, {child.result()}"

    return order


async def statuses(app: App) -> dict[str, str]:
    return {info.id: info.status.value for info in await app.find(workflow="slow")}


async def test_a_retry_starts_another_each_time(app: App, behind: Behind):
    order = shop(app, behind, failures=2, retry=Retry(max_attempts=3, initial=0, jitter=0))
    async with app:
        handle = await order.options(id="order").start()
        await until(lambda: _is_open(app, "order/slow.1@1.3"), "the third child does not wait")
        await app.execution("order/slow.1@1.3").send("go", "shipped")
        assert await handle.result(timeout=20) == "fine, shipped"
        for lost in ("order/slow.1", "order/slow.1@1.2"):
            await status_is(app.execution(lost), "cancelled")
        assert len(await statuses(app)) == 3


async def test_a_retry_by_hand_starts_another_each_time(app: App, behind: Behind):
    order = shop(app, behind, failures=2)
    async with app:
        handle = await order.options(id="order").start()
        for _ in range(2):
            with pytest.raises(ExceptionGroup):
                await handle.result(timeout=20)
            await handle.retry()
        await until(lambda: _is_open(app, "order/slow.1@3"), "the third child does not wait")
        await app.execution("order/slow.1@3").send("go", "shipped")
        assert await handle.result(timeout=20) == "fine, shipped"
        for lost in ("order/slow.1", "order/slow.1@2"):
            await status_is(app.execution(lost), "cancelled")
        assert len(await statuses(app)) == 3


async def _is_open(app: App, child: str) -> bool:
    return (await statuses(app)).get(child) == "suspended"


async def test_a_retry_starts_none_that_the_code_lived_without(behind: Behind):
    app, failed = App(), list[str]()
    parent = family(app, behind)

    @app.step
    async def flaky() -> str:
        failed.append("once")
        if len(failed) < 3:
            raise ConnectionError("once more")
        return "fine"

    @app.workflow(retry=Retry(max_attempts=3, initial="1h"))
    async def order() -> str:
        await parent.fn()
        await outlast.sleep("1h")
        return await flaky()

    async with harness(app):
        handle = await order.options(id="order").start()
        await handle.send("end", "well")
        assert await handle.result() == "fine"
        assert await statuses(app) == {"order/slow.1": "cancelled"}


async def test_a_retry_waits_for_the_child_that_a_later_attempt_has_started():
    """The attempt before had given it up before it began."""
    app, failures = App(), [ConnectionError("first"), ConnectionError("second")]

    @app.step
    async def flaky() -> None:
        if failures:
            raise failures.pop()

    @app.workflow
    async def slow() -> str:
        await outlast.sleep("1d")
        return "shipped"

    @app.workflow(retry=Retry(max_attempts=3, initial="1h"))
    async def order() -> str:
        child = asyncio.create_task(slow())
        await asyncio.sleep(0)
        if len(failures) == 2:
            child.cancel()
            raise failures.pop()
        await outlast.sleep("1h")
        await flaky()
        return await child

    async with harness(app):
        handle = await order.options(id="order").start()
        assert await handle.result() == "shipped"
        assert (await handle.info()).failures == 2
        assert await statuses(app) == {"order/slow.1": "succeeded"}
