"""Representative writes, each an act that can be repeated verbatim: what lost replies and crashes are tried on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from outlast.machine import facts
from outlast.machine.changes import Changes
from outlast.model.lease import Claimed
from outlast.model.retry import RetryPolicy
from outlast.store.port import Committed, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    ROOT,
    TTL_MS,
    cancels,
    claim_request,
    commit_one,
    completes,
    decided,
    ended,
    fails,
    look,
    loses_lease,
    permits,
    resolves,
    running,
    sends,
    start,
    start_changes,
    start_fact,
    steps,
    suspended,
    suspends,
    tell,
)
from outlast.testing.conformance.harness import World

Act: TypeAlias = Callable[[Store], Awaitable[object]]
"""The write itself; repeating it repeats the very same call."""
Prepare: TypeAlias = Callable[[World, Store], Awaitable[Act]]
"""Bring the database to where the write happens, and return it."""

WATCHED = ("a", ROOT)


def committing(changes: Changes) -> Act:
    async def act(store: Store) -> Committed:
        committed = await store.commit([changes])
        assert committed.verdicts[0].applied
        return committed

    return act


async def _start(world: World, store: Store) -> Act:
    return committing(start_changes(store, start_fact("a", tags={"site": "paris"}, deadline_ms=60_000)))


async def _step(world: World, store: Store) -> Act:
    held = await running(store)
    return committing(decided(store, held, steps(held)))


async def _receive(world: World, store: Store) -> Act:
    held = await running(store)
    await tell(store, "a", sends(dedup="k"))
    return committing(decided(store, held, steps(held, "plan", op="receive", consumes=("plan", "k"))))


async def _suspend(world: World, store: Store) -> Act:
    await permits(store, "stripe", 1)
    held = await running(store, quota="stripe")
    return committing(decided(store, held, suspends(held, waits=("event:plan",), wake_at=world.clock.now_ms() + 1)))


async def _complete(world: World, store: Store) -> Act:
    await permits(store, "stripe", 1)
    held = await running(store, quota="stripe", parent=ROOT, retention_ms=1_000)
    return committing(decided(store, held, completes(held)))


async def _fail(world: World, store: Store) -> Act:
    held = await running(store, retry=RetryPolicy(max_attempts=3, initial_ms=1_000))
    await commit_one(store, decided(store, held, steps(held, outcome="failed")))
    return committing(decided(store, held, fails(held, supersedes=(("", "charge", 1),))))


async def _take_over(world: World, store: Store) -> Act:
    held = await running(store)
    world.clock.advance("11s")
    return committing(decided(store, held, loses_lease(held)))


async def _send(world: World, store: Store) -> Act:
    return committing(decided(store, await suspended(store), sends()))


async def _resolve(world: World, store: Store) -> Act:
    return committing(decided(store, await running(store), resolves()))


async def _cancel(world: World, store: Store) -> Act:
    return committing(decided(store, await suspended(store, parent=ROOT), cancels()))


async def _wake(world: World, store: Store) -> Act:
    execution = await start(store, delay_ms=1_000)
    world.clock.advance("1s")
    return committing(decided(store, execution, facts.Wake(change_id="wake", cause="delay")))


async def _retry(world: World, store: Store) -> Act:
    held = await running(store, retention_ms=1_000)
    await commit_one(store, decided(store, held, fails(held)))
    return committing(decided(store, await look(store, "a"), facts.Retry(change_id="retry")))


async def _restart(world: World, store: Store) -> Act:
    over = await ended(store, tags={"old": "1"})
    fact = start_fact("a", if_exists="restart", tags={"new": "1"}, input=b"2", input_digest="2")
    return committing(decided(store, over, fact))


async def _claim(world: World, store: Store) -> Act:
    await permits(store, "stripe", 1)
    await start(store, quota="stripe", timeout_ms=1_000)
    request = claim_request()
    return lambda store: store.claim(request)


async def _claim_resumed(world: World, store: Store) -> Act:
    await suspended(store)
    await tell(store, "a", sends())
    request = claim_request("w2")
    return lambda store: store.claim(request)


async def _renew(world: World, store: Store) -> Act:
    await running(store)
    world.clock.advance("5s")
    return lambda store: store.renew("w1", lease_ttl_ms=TTL_MS)


async def _append(world: World, store: Store) -> Act:
    held = await running(store)
    await store.append(NAMESPACE, "a", epoch=held.epoch, change_id="before", frames=[b"0"])
    return lambda store: store.append(NAMESPACE, "a", epoch=held.epoch, change_id="c", frames=[b"1", b"2", b"3"])


async def _purge(world: World, store: Store) -> Act:
    held = await running(store, retention_ms=1_000, tags={"site": "paris"})
    await commit_one(store, decided(store, held, steps(held)))
    await tell(store, "a", sends())
    await commit_one(store, decided(store, held, completes(held)))
    world.clock.advance("1s")
    return lambda store: store.purge()


SCENARIOS: dict[str, Prepare] = {
    "start": _start,
    "step": _step,
    "receive": _receive,
    "suspend": _suspend,
    "complete": _complete,
    "fail with a retry": _fail,
    "take over": _take_over,
    "send to one that waits": _send,
    "resolve": _resolve,
    "cancel": _cancel,
    "wake": _wake,
    "retry by an operator": _retry,
    "restart": _restart,
    "claim": _claim,
    "claim again after a suspension": _claim_resumed,
    "renew": _renew,
    "append": _append,
    "purge": _purge,
}


def answer_of(result: object) -> object:
    """An answer without what may differ when it is asked for again: that it was so before, and how much was left."""
    match result:
        case Committed():
            return [msgspec.structs.replace(verdict, again=False) for verdict in result.verdicts]
        case Claimed():
            return result.executions
        case int():
            return None
        case _:
            return result
