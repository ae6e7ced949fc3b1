"""Flows on a slow store: inside of workflows, refused, cancelled in every way, retried, grown, while all else happens.

A flow's end is known exactly only where nothing races for it; where something does, each end that may be is told here,
and no other. `slow_stores.py` has the rest.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

import outlast
from outlast import App, FlowCancelled, FlowConflict, FlowFailed, FlowNotFound, FlowRefused, Retry, Status
from tests.faults import slow_stores
from tests.faults.slow_stores import DONE, LIMIT_S, Play, World, gives, is_cancelled

NOT_AN_END = ("ready", "active", "blocked", "suspended")


def workflows(app: App) -> Any:
    kit = slow_stores.workflows(app)

    @app.step
    async def takes_a_while() -> None:
        await asyncio.sleep(0.15)

    @app.workflow
    async def works(x: int) -> int:
        await takes_a_while()
        return x

    @app.workflow
    async def adds_up(name: str, count: int, fails: bool = False) -> int:
        flow = app.flow("sub", id=f"{name}-sub")
        items = flow.map(kit.twice, list(range(count)), name="items", max_parallel=2)
        total = flow.add("total", kit.sums, items.output)
        flow.add("naps", kit.naps, total.output)
        if fails:
            flow.add("broken", kit.breaks, name, total.output)
        fh = await flow.start()
        outputs = await fh.result()
        return outputs["naps"] + outputs.get("broken", 0)

    @app.workflow
    async def takes(flow_id: str, x: int) -> str:
        flow = app.flow("taken", id=flow_id)
        flow.add("one", kit.twice, x)
        try:
            return str((await (await flow.start()).result())["one"])
        except FlowConflict as error:
            return str(error)

    @app.workflow
    async def keeps(name: str, policy: Literal["cancel", "abandon", "wait"], pause_ms: int) -> str:
        flow = app.flow("kept", id=f"{name}-kept", parent_close=policy)
        flow.add("then", kit.twice, flow.add("waits", kit.waits_for_go).output)
        await flow.start()
        await outlast.sleep(pause_ms / 1_000)
        return "ended"

    @app.workflow
    async def sees(name: str) -> str:
        """How its flow ends, by the first word that it hears."""
        flow = app.flow("seen", id=f"{name}-seen")
        broken = flow.add("broken", kit.breaks, name, flow.add("top", kit.naps, 1).output)
        flow.add("below", kit.twice, broken.output)
        fh = await flow.start()
        try:
            outputs = await fh.result()
        except FlowFailed as error:
            return f"failed: {error}"
        except FlowCancelled as error:
            return f"cancelled: {error}"
        return str(outputs)

    @app.workflow
    async def hurries(name: str) -> list[Any]:
        flow = app.flow("late", id=f"{name}-late")
        flow.add("waits", kit.waits_for_go)
        fh = await flow.start()
        try:
            first: int | None = (await fh.result(timeout="120ms"))["waits"]
        except TimeoutError:
            first = None
        return [first, (await fh.result())["waits"]]

    @app.workflow
    async def grows(name: str, count: int) -> int:
        growth = outlast.flow()
        pages = [growth.add(f"page-{n}", kit.naps, n) for n in range(count)]
        growth.add("all", kit.sums, [page.output for page in pages])
        await growth.start()
        await kit.broken_once(name)
        return count

    @app.workflow(retry=Retry(max_attempts=3, initial="20ms"))
    async def grows_and_tries(name: str, count: int) -> int:
        growth = outlast.flow()
        growth.add("one", kit.twice, count)
        await growth.start()
        await kit.broken_once(name)
        return count

    @app.workflow
    async def names(name: str, count: int) -> list[str]:
        return [f"{name} {n}" for n in range(count)]

    @app.workflow
    async def takes_once(name: str) -> int:
        return await kit.broken_once(name)

    @app.workflow
    async def leaves_a_trace(name: str) -> int:
        await outlast.compensate(kit.does, f"{name} undone")
        return await outlast.receive("go", int)

    for name, value in locals().items():
        if name not in ("app", "kit"):
            setattr(kit, name, value)
    return kit


# ---- flows of workflows ---------------------------------------------------------------------------------------------


async def ends(fh: Any, *wanted: type[Exception]) -> Exception:
    """How it ends, if not well."""
    try:
        outputs = await fh.result(timeout=LIMIT_S)
    except wanted as error:
        return error
    raise AssertionError(f"{fh} gave {outputs}")


async def begun(fh: Any, limit_s: float = LIMIT_S) -> None:
    """Until it is there: a workflow's flow begins a little after its start was recorded."""
    async with asyncio.timeout(limit_s):
        while True:
            try:
                await fh.status()
            except FlowNotFound:
                await asyncio.sleep(0.02)
            else:
                return


def is_an_end(said: str) -> None:
    """Members of a flow that has ended have ended."""
    assert not any(f"{word}:" in said for word in NOT_AN_END), said


async def added_up(w: World) -> None:
    await gives(await w.begin(w.kit.adds_up, w.name, 4), 12)


async def added_up_at_last(w: World) -> None:
    """Its flow fails, and so does it; both are retried, the flow at first, while others look."""
    handle = await w.begin(w.kit.adds_up, w.name, 2, True)
    error = await ends(handle, FlowFailed)
    is_an_end(str(error))
    await w.pause(0.1)
    await w.app.flow_handle(f"{w.name}-sub").retry()
    await w.pause(0.1)
    await handle.retry()
    await gives(handle, 6)


async def added_up_against_all_odds(w: World) -> None:
    """The same, the parent at first: it fails as long as its flow does."""
    handle = await w.begin(w.kit.adds_up, w.name, 2, True)
    await ends(handle, FlowFailed)
    await handle.retry()
    await w.pause(0.3)
    await w.app.flow_handle(f"{w.name}-sub").retry()
    for _ in range(50):
        try:
            found = await handle.result(timeout=LIMIT_S)
        except FlowFailed as error:
            is_an_end(str(error))
            await handle.retry()
        else:
            assert found == 6, found
            return
    raise AssertionError(f"{w.name} fails for ever")


async def taken_by_an_execution(w: World) -> None:
    await w.kit.naps.options(id=f"{w.name}-taken").start(1)
    said = await (await w.begin(w.kit.takes, f"{w.name}-taken", 1)).result(timeout=LIMIT_S)
    assert "the id of an execution" in said, said


async def taken_meanwhile(w: World) -> None:
    """By a flow with other members, from outside: one of both is first."""
    flow = w.app.flow("taken", id=f"{w.name}-taken")
    flow.add("one", w.kit.twice, 5)
    handle = await w.begin(w.kit.takes, f"{w.name}-taken", 1)
    await w.pause(0.3)
    try:
        await gives(await flow.start(), {"one": 10})
    except FlowConflict:
        await gives(handle, "2")
    else:
        said = await handle.result(timeout=LIMIT_S)
        assert "other members" in said, said


async def taken_by_both(w: World) -> None:
    """By two workflows, with the same members: it is the flow of one of them."""

    async def begin(n: int) -> str:
        await w.pause(0.2)
        handle = await w.kit.takes.options(id=f"{w.name}-{n}").start(f"{w.name}-taken", 4)
        return await handle.result(timeout=LIMIT_S)

    said = await asyncio.gather(*map(begin, range(3)))
    assert said.count("8") == 1, said
    assert sum("somebody else" in one for one in said) == 2, said


async def closed(w: World) -> None:
    await gives(await w.begin(w.kit.keeps, w.name, "cancel", w.random.choice([0, 50, 1_100])), "ended")
    fh = w.app.flow_handle(f"{w.name}-kept")
    await begun(fh)
    await ends(fh, FlowCancelled)


async def abandoned(w: World) -> None:
    await gives(await w.begin(w.kit.keeps, w.name, "abandon", w.random.choice([0, 50])), "ended")
    fh = w.app.flow_handle(f"{w.name}-kept")
    await begun(fh)
    await w.app.execution(f"{w.name}-kept/waits").send("go", 1)
    await gives(fh, {"waits": 1, "then": 2})


async def waited_for(w: World) -> None:
    handle = await w.begin(w.kit.keeps, w.name, "wait", w.random.choice([0, 50]))
    fh = w.app.flow_handle(f"{w.name}-kept")
    await begun(fh)
    await w.pause(0.2)
    assert not (await handle.info()).status.terminal
    await w.app.execution(f"{w.name}-kept/waits").send("go", 1)
    await gives(handle, "ended")
    assert (await fh.status()).status is Status.SUCCEEDED


async def parent_cancelled(w: World) -> None:
    """Wherever it stands: its flow is cancelled, or never begins."""
    handle = await w.begin(w.kit.keeps, w.name, w.random.choice(["cancel", "wait"]), 5_000)
    await w.pause(0.6)
    await handle.cancel("enough")
    await is_cancelled(handle)
    fh = w.app.flow_handle(f"{w.name}-kept")
    await ends(fh, FlowCancelled, FlowNotFound)


async def cancelled_under_its_parent(w: World) -> None:
    handle = await w.begin(w.kit.sees, w.name)
    fh = w.app.flow_handle(f"{w.name}-seen")
    await begun(fh)
    await w.pause(0.3)
    with suppress(FlowRefused):  # it has ended
        await fh.cancel(reason="enough", wait=w.random.random() < 0.5)
    said = await handle.result(timeout=LIMIT_S)
    assert said.startswith(("cancelled: ", "failed: ")), said
    is_an_end(said)


async def retried_under_its_parent(w: World) -> None:
    """The parent sees its failure, or its success after the retry: nothing in between."""
    handle = await w.begin(w.kit.sees, w.name)
    fh = w.app.flow_handle(f"{w.name}-seen")
    await begun(fh)
    is_an_end(str(await ends(fh, FlowFailed)))
    await fh.retry()
    said = await handle.result(timeout=LIMIT_S)
    if not said.startswith("failed: "):
        assert said == "{'top': 1, 'broken': 3, 'below': 6}", said
    is_an_end(said)
    await gives(fh, {"top": 1, "broken": 3, "below": 6})


async def impatient(w: World) -> None:
    handle = await w.begin(w.kit.hurries, w.name)
    fh = w.app.flow_handle(f"{w.name}-late")
    await begun(fh)
    await w.pause(0.3)
    await w.app.execution(f"{w.name}-late/waits").send("go", 3)
    assert (await handle.result(timeout=LIMIT_S)) in ([None, 3], [3, 3])


async def families(w: World) -> None:
    """A member's own flow ends with the flow of the member."""
    flow = w.app.flow("outer", id=w.name)
    flow.add("keeps", w.kit.keeps, w.name, "cancel", 5_000)
    fh = await flow.start()
    await w.pause(0.6)
    await fh.cancel(reason="enough", wait=True)
    await ends(fh, FlowCancelled)
    await ends(w.app.flow_handle(f"{w.name}-kept"), FlowCancelled, FlowNotFound)


async def restarted_with_its_flow(w: World) -> None:
    """Begun anew, it asks for a flow that it has had before: that is its own still."""
    await gives(await w.begin(w.kit.takes, f"{w.name}-taken", 2), "4")
    again = await w.kit.takes.options(id=w.name, if_exists="restart").start(f"{w.name}-taken", 2)
    await gives(again, "4")


# ---- cancels, retries, growth ---------------------------------------------------------------------------------------


def _wide(w: World) -> Any:
    flow = w.app.flow("wide", id=w.name)
    top = flow.add("top", w.kit.works, 1)
    flow.add("works", w.kit.works, top.output)
    flow.add("waits", w.kit.waits_for_go, top.output)
    flow.add("undoes", w.kit.leaves_a_trace, w.name)
    flow.add("below", w.kit.twice, flow.add("waits_too", w.kit.waits_for_go).output)
    return flow


async def cancelled_at_once(w: World) -> None:
    fh = await _wide(w).start()
    await w.pause(0.8)
    done = await fh.cancel(reason="enough", wait=True)
    assert done.scheduled == 0, done
    info = await fh.status()
    assert info.status is Status.CANCELLED, info
    assert all(status.terminal for status in info.counts), info
    assert DONE[f"{w.name} undone"] <= 1


async def cancelled_while_pending(w: World) -> None:
    fh = await _wide(w).start()
    await w.pause(0.8)
    await fh.cancel("cancel_pending", "enough", wait=w.random.random() < 0.5)
    await ends(fh, FlowCancelled)
    graph = {member.name: member.status for member in (await fh.graph()).members}
    assert graph["waits"] is Status.CANCELLED, graph
    assert graph["below"] is Status.CANCELLED, graph


async def cancelled_by_many(w: World) -> None:
    """One policy is first; with the others it is refused, or had been so before."""
    fh = await _wide(w).start()

    async def cancel(policy: Any) -> bool:
        await w.pause(0.5)
        try:
            await fh.cancel(policy, "enough")
        except FlowRefused:
            return False
        return True

    assert any(await asyncio.gather(*map(cancel, ["cancel_all", "cancel_pending", "cancel_all"])))
    await ends(fh, FlowCancelled)


async def opened_again(w: World) -> None:
    """Whatever cancelled it, a retry opens it, and all of it ends."""
    fh = await _wide(w).start()
    for policy in w.random.choices(["cancel_all", "cancel_pending", "flow_only"], k=2):
        await w.pause(0.5)
        wait = policy != "flow_only" and w.random.random() < 0.3
        await _patiently(lambda policy=policy, wait=wait: fh.cancel(policy, "for now", wait=wait))
        await w.pause(0.2)
        await _patiently(fh.retry)
    for name in ("waits", "undoes", "waits_too"):
        await _patiently(lambda name=name: w.app.execution(f"{w.name}/{name}").send("go", 3))
    await gives(fh, {"top": 1, "works": 1, "waits": 3, "undoes": 3, "waits_too": 3, "below": 6})


async def _patiently(say: Any) -> None:
    """A flow that is being retried, and members that are cancelled until it is, refuse for a while."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await say()
            except (FlowRefused, outlast.ExecutionRefused):
                await asyncio.sleep(0.05)


async def mended_by_many(w: World) -> None:
    flow = w.app.flow("mended", id=w.name)
    parts = [flow.add(f"n{n}", w.kit.breaks, f"{w.name} {n}", n) for n in range(3)]
    flow.add("all", w.kit.sums, [part.output for part in parts])
    fh = await flow.start()
    is_an_end(str(await ends(fh, FlowFailed)))

    async def retry() -> None:
        await w.pause(0.3)
        with suppress(FlowRefused):  # it was opened by another, and has ended well
            await fh.retry()

    await asyncio.gather(retry(), retry(), retry())
    await gives(fh, {"n0": 2, "n1": 3, "n2": 4, "all": 9})


async def watched_while_mended(w: World) -> None:
    """Whoever waits for a flow that fails, and is retried at once, hears an end."""
    flow = w.app.flow("watched", id=w.name)
    flow.add("below", w.kit.twice, flow.add("broken", w.kit.breaks, w.name, 1).output)
    fh = await flow.start()

    async def watch() -> None:
        await w.pause(0.3)
        try:
            outputs = await w.app.flow_handle(w.name).result(timeout=LIMIT_S)
        except FlowFailed as error:
            is_an_end(str(error))
        else:
            assert outputs == {"below": 6, "broken": 3}, outputs

    async def mend() -> None:
        await ends(fh, FlowFailed)
        await fh.retry()

    await asyncio.gather(mend(), *(watch() for _ in range(4)))
    await gives(fh, {"broken": 3, "below": 6})


async def grown(w: World) -> None:
    """Its code fails once after it has grown: in the retry it grows no more."""
    flow = w.app.flow("grown", id=w.name)
    flow.add("behind", w.kit.twice, flow.add("grows", w.kit.grows, w.name, 3).output)
    fh = await flow.start()
    is_an_end(str(await ends(fh, FlowFailed)))
    await fh.retry()
    await gives(fh, {"grows": 3, "behind": 6, "page-0": 0, "page-1": 1, "page-2": 2, "all": 3})


async def grown_in_the_end(w: World) -> None:
    flow = w.app.flow("grown", id=w.name)
    flow.add("grows", w.kit.grows_and_tries, w.name, 3)
    await gives(await flow.start(), {"grows": 3, "one": 6})


async def grown_and_cancelled(w: World) -> None:
    DONE[w.name] = 1  # it does not fail
    flow = w.app.flow("grown", id=w.name)
    grows = flow.add("grows", w.kit.grows, w.name, 3)
    flow.add("waits", w.kit.waits_for_go, grows.output)
    fh = await flow.start()
    await w.pause(0.6)
    await fh.cancel(reason="enough", wait=True)
    assert all(status.terminal for status in (await fh.status()).counts)
    await ends(fh, FlowCancelled)


async def mapped_and_mended(w: World) -> None:
    """Items that fail once, three at a time, of a list that is known late."""
    flow = w.app.flow("mapped", id=w.name)
    items = flow.map(w.kit.takes_once, flow.add("names", w.kit.names, w.name, 4).output, name="items", max_parallel=2)
    flow.add("sums", w.kit.sums, items.output)
    fh = await flow.start()
    for _ in range(8):
        try:
            outputs = await fh.result(timeout=LIMIT_S)
        except FlowFailed as error:
            is_an_end(str(error))
            await fh.retry()
        else:
            assert (outputs["items"], outputs["sums"]) == ([2, 2, 2, 2], 8), outputs
            return
    raise AssertionError(f"{w.name} fails for ever")


async def quorum(w: World) -> None:
    flow = w.app.flow("quorum", id=w.name)
    some = [flow.add(f"n{n}", w.kit.naps, n) for n in range(3)]
    slow = flow.add("slow", w.kit.waits_for_go)
    flow.add("then", w.kit.twice, 4).after(*some, slow, join=outlast.quorum(2), on_satisfied="cancel_remaining")
    outputs = await (await flow.start()).result(timeout=LIMIT_S)
    assert outputs["then"] == 8, outputs
    await is_cancelled(w.app.execution(f"{w.name}/slow"))


FLOWS = Play(
    workflows,
    (
        added_up,
        added_up_at_last,
        added_up_against_all_odds,
        taken_by_an_execution,
        taken_meanwhile,
        taken_by_both,
        closed,
        abandoned,
        waited_for,
        parent_cancelled,
        cancelled_under_its_parent,
        retried_under_its_parent,
        impatient,
        families,
        restarted_with_its_flow,
        cancelled_at_once,
        cancelled_while_pending,
        cancelled_by_many,
        opened_again,
        mended_by_many,
        watched_while_mended,
        grown,
        grown_in_the_end,
        grown_and_cancelled,
        mapped_and_mended,
        quorum,
    ),
)
