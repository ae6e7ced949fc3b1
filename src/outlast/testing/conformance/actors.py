"""Small actors that tests are told with: somebody starts, a worker claims, its code steps, somebody sends.

Every one goes the engine's way: `decide`, then `commit`. Nothing here retries, so a test sees each verdict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from outlast.machine import Changes, Refusal, View, decide, facts
from outlast.machine.changes import Guard, Put, Write
from outlast.model.execution import Execution, execution_key
from outlast.model.frame import Frame
from outlast.model.kinds import KINDS, OF_EXECUTION
from outlast.model.lane import Lane, Quota, quota_key
from outlast.model.lease import Claimed, ClaimRequest
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record, settled
from outlast.model.session import Session, session_key
from outlast.model.status import Status
from outlast.store.port import Store, Verdict

R = TypeVar("R", bound=Record)

NAMESPACE = "shop"
WORKFLOW = "checkout"
VERSION = "1"
LANE = "default"
SERVES = frozenset({(WORKFLOW, VERSION)})
TTL_MS = 10_000
ROOT = "family"
"""The root of executions that must share a partition on every store, so that their order is exact."""

_numbers = itertools.count(1)


def new_id(what: str = "change") -> str:
    return f"{what}-{next(_numbers)}"


def number_from_one() -> None:
    """With an empty database ids begin anew, so that the same actions leave the same records, whole."""
    global _numbers
    _numbers = itertools.count(1)


def member(name: str | int) -> dict[str, Any]:
    """The start options of an execution that lives with its siblings: an id under one root."""
    return {"id": f"{ROOT}/{name}", "parent": ROOT}


def partition(store: Store, execution_id: str, namespace: str = NAMESPACE) -> int:
    return partition_of(namespace, execution_id, store.partitions)


# ---- commits ------------------------------------------------------------------------------------------------------


async def commit(store: Store, *batch: Changes) -> list[Verdict]:
    return (await store.commit(list(batch))).verdicts


async def commit_one(store: Store, changes: Changes) -> Verdict:
    [verdict] = await commit(store, changes)
    return verdict


def changing(
    store: Store,
    execution_id: str,
    *writes: Write,
    guards: Iterable[Guard] = (),
    change_id: str | None = None,
    rings: tuple[str, ...] = (),
) -> Changes:
    """A change by hand, anchored at an execution: for tests of the commit itself."""
    return Changes(
        id=change_id or new_id(),
        partition=partition(store, execution_id),
        anchors=(execution_key(NAMESPACE, execution_id),),
        guards=tuple(guards),
        writes=writes,
        rings=rings,
    )


def view_of(store: Store, execution: Execution) -> View:
    return View(partition(store, execution.id, execution.namespace), execution)


def decided(store: Store, execution: Execution, fact: facts.AnyFact, now: int | None = None) -> Changes:
    """What the machine wants written; it must want something."""
    at = settled(execution.claimed_at) or 0 if now is None else now
    answer = decide(view_of(store, execution), fact, at)
    assert isinstance(answer, Changes), answer
    return answer


async def tell(store: Store, execution_id: str, fact: facts.AnyFact, *, namespace: str = NAMESPACE) -> Verdict:
    """Look, decide and commit, once; the machine must not refuse."""
    execution = await look(store, execution_id, namespace)
    return await commit_one(store, decided(store, execution, fact, await store.now()))


async def tell_or_refuse(store: Store, execution_id: str, fact: facts.AnyFact) -> Verdict | Refusal:
    execution = await look(store, execution_id)
    answer = decide(view_of(store, execution), fact, await store.now())
    return answer if isinstance(answer, Refusal) else await commit_one(store, answer)


# ---- starting -----------------------------------------------------------------------------------------------------


def start_fact(id: str = "a", **options: Any) -> facts.Start:
    given: dict[str, Any] = {
        "change_id": new_id("start"),
        "namespace": NAMESPACE,
        "workflow": WORKFLOW,
        "version": VERSION,
        "lane": LANE,
        "input": b'{"order": 42}',
        "input_digest": "digest",
        "id": id,
        **options,
    }
    return facts.Start(**given)


def start_changes(store: Store, fact: facts.Start) -> Changes:
    answer = decide(View(partition(store, fact.id, fact.namespace), None), fact, 0)
    assert isinstance(answer, Changes), answer
    return answer


async def start(store: Store, id: str = "a", **options: Any) -> Execution:
    """A new execution, as it was stored."""
    fact = start_fact(id, **options)
    verdict = await commit_one(store, start_changes(store, fact))
    assert verdict.applied, verdict
    return await look(store, fact.id, fact.namespace)


async def start_many(store: Store, starts: list[facts.Start]) -> None:
    for begin in range(0, len(starts), 500):
        verdicts = await commit(store, *[start_changes(store, fact) for fact in starts[begin : begin + 500]])
        assert all(verdict.applied for verdict in verdicts)


# ---- workers ------------------------------------------------------------------------------------------------------


def claim_request(worker: str = "w1", **options: Any) -> ClaimRequest:
    given: dict[str, Any] = {
        "namespace": NAMESPACE,
        "lanes": (LANE,),
        "serves": SERVES,
        "worker": worker,
        "claim_id": new_id("claim"),
        "limit": 10,
        "lease_ttl_ms": TTL_MS,
        **options,
    }
    return ClaimRequest(**given)


async def claim(store: Store, worker: str = "w1", **options: Any) -> Claimed:
    return await store.claim(claim_request(worker, **options))


async def claimed_ids(store: Store, worker: str = "w1", **options: Any) -> list[str]:
    return [taken.execution.id for taken in (await claim(store, worker, **options)).executions]


async def claim_one(store: Store, worker: str = "w1", **options: Any) -> Execution:
    claimed = await claim(store, worker, limit=1, **options)
    assert len(claimed.executions) == 1, "there was nothing to claim"
    return claimed.executions[0].execution


async def running(store: Store, id: str = "a", *, worker: str = "w1", **options: Any) -> Execution:
    """An execution that a worker holds."""
    await start(store, id, **options)
    execution = await claim_one(store, worker, namespace=options.get("namespace", NAMESPACE))
    assert execution.id == id, f"the worker claimed {execution.id!r} instead"
    return execution


async def ended(store: Store, id: str = "a", **options: Any) -> Execution:
    """An execution that succeeded."""
    held = await running(store, id, **options)
    verdict = await commit_one(store, decided(store, held, completes(held)))
    assert verdict.applied
    return await look(store, id, held.namespace)


async def suspended(store: Store, id: str = "a", **options: Any) -> Execution:
    """An execution that waits for the event `plan`."""
    held = await running(store, id, **options)
    verdict = await commit_one(store, decided(store, held, suspends(held, waits=("event:plan",))))
    assert verdict.applied
    return await look(store, id, held.namespace)


# ---- what holders say ---------------------------------------------------------------------------------------------


def steps(held: Execution, name: str = "charge", **options: Any) -> facts.StepRecorded:
    given: dict[str, Any] = {
        "change_id": new_id("step"),
        "epoch": held.epoch,
        "scope": "",
        "occurrence": 1,
        "op": "step",
        "outcome": "succeeded",
        "value": b'"paid"',
        **options,
    }
    return facts.StepRecorded(name=name, **given)


def suspends(held: Execution, *, waits: tuple[str, ...] = (), **options: Any) -> facts.Suspend:
    given: dict[str, Any] = {
        "change_id": new_id("suspend"),
        "epoch": held.epoch,
        "inbox": held.inbox,
        "reason": waits[0] if waits else "timer",
        "waits": waits,
        **options,
    }
    return facts.Suspend(**given)


def completes(held: Execution, output: bytes = b'"done"', **options: Any) -> facts.Complete:
    return facts.Complete(change_id=options.get("change_id") or new_id("complete"), epoch=held.epoch, output=output)


def fails(held: Execution, **options: Any) -> facts.Fail:
    given: dict[str, Any] = {"change_id": new_id("fail"), "epoch": held.epoch, "failure": b'"no"', **options}
    return facts.Fail(**given)


# ---- what others say ----------------------------------------------------------------------------------------------


def sends(name: str = "plan", value: bytes = b'"gold"', **options: Any) -> facts.EventSent:
    return facts.EventSent(
        change_id=options.get("change_id") or new_id("send"), name=name, value=value, dedup=options.get("dedup")
    )


def resolves(name: str = "approval", value: bytes = b"true", **options: Any) -> facts.DeferredResolved:
    return facts.DeferredResolved(change_id=options.get("change_id") or new_id("resolve"), name=name, value=value)


def cancels(**options: Any) -> facts.CancelRequested:
    return facts.CancelRequested(change_id=options.get("change_id") or new_id("cancel"), reason="changed my mind")


def ends_child(child: str, **options: Any) -> facts.ChildCompleted:
    return facts.ChildCompleted(
        change_id=options.get("change_id") or new_id("end"), child=child, status=Status.SUCCEEDED, value=b'"sent"'
    )


def loses_lease(held: Execution, **options: Any) -> facts.LeaseLost:
    return facts.LeaseLost(change_id=options.get("change_id") or new_id("lost"), epoch=held.epoch)


def times_out(held: Execution, **options: Any) -> facts.TimeOut:
    return facts.TimeOut(change_id=options.get("change_id") or new_id("timeout"), epoch=held.epoch)


# ---- gates --------------------------------------------------------------------------------------------------------


async def put(store: Store, partition: int, record: Record) -> None:
    changes = Changes(id=new_id(), partition=partition, anchors=(record.key,), writes=(Put(record),))
    assert (await commit_one(store, changes)).applied


async def pause(store: Store, lane: str = LANE, *, paused: bool = True, namespace: str = NAMESPACE) -> None:
    for number in range(store.partitions):
        await put(store, number, Lane(partition=number, namespace=namespace, lane=lane, paused=paused))


async def permits(store: Store, name: str, free: int) -> None:
    for number in range(store.partitions):
        await put(store, number, Quota(partition=number, namespace=NAMESPACE, name=name, free=free))


async def free_permits(store: Store, name: str, execution_id: str) -> int:
    quota = await load_one(store, quota_key(partition(store, execution_id), NAMESPACE, name), Quota)
    assert quota is not None
    return quota.free


# ---- looking ------------------------------------------------------------------------------------------------------


async def load_one(store: Store, key: Key, kind: type[R]) -> R | None:
    [record] = await store.load([key])
    assert record is None or isinstance(record, kind)
    return record


async def look(store: Store, execution_id: str, namespace: str = NAMESPACE) -> Execution:
    execution = await load_one(store, execution_key(namespace, execution_id), Execution)
    assert execution is not None, f"there is no execution {execution_id!r}"
    return execution


async def records(store: Store, kind: type[R], execution_id: str = "a", namespace: str = NAMESPACE) -> list[R]:
    """The records of one kind that belong to an execution."""
    found = await store.scan(kind.KIND, (namespace, execution_id))
    assert all(isinstance(record, kind) for record in found)
    return [record for record in found if isinstance(record, kind)]


async def session(store: Store, worker: str, execution_id: str = "a") -> Session | None:
    return await load_one(store, session_key(partition(store, execution_id), worker), Session)


State = dict[str, list[Record] | list[Frame]]


async def state(store: Store, *execution_ids: str, namespace: str = NAMESPACE) -> State:
    """All that the store keeps of these executions and of their partitions, to compare as a whole."""
    found: State = {}
    homes = sorted({partition(store, execution_id, namespace) for execution_id in execution_ids})
    for kind in ("session", "outbox", "lane", "quota"):
        assert KINDS[kind].KEY[0] == "partition"
        found[kind] = [record for home in homes for record in await store.scan(kind, (home,))]
    for execution_id in execution_ids:
        execution = await load_one(store, execution_key(namespace, execution_id), Execution)
        found[f"{execution_id} execution"] = [] if execution is None else [execution]
        for kind in OF_EXECUTION:
            found[f"{execution_id} {kind.KIND}"] = await store.scan(kind.KIND, (namespace, execution_id))
        found[f"{execution_id} frames"] = await store.frames(namespace, execution_id)
    return found


def same_but(record: Record, **fields: Any) -> Record:
    return msgspec.structs.replace(record, **fields)
