"""Bad input through the engine's and the store's doors: each a typed error or refusal, and nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast import limits
from outlast.errors import InvalidDuration, InvalidInput, InvalidName, LimitExceeded, OutlastError, StoreError
from outlast.machine import facts
from outlast.machine.changes import Changes, Code, Delete, Insert, Matches, Patch
from outlast.model.attempt import attempt_key
from outlast.model.duration import to_ms
from outlast.model.execution import execution_key
from outlast.model.lane import Lane, lane_key
from outlast.model.record import Key
from outlast.model.retry import RetryPolicy
from outlast.model.tag import Tag
from outlast.runtime.engine import Engine
from outlast.store.port import DueKind, Filter, Query, Store
from tests.integration.sqlite.tools import NS, claim, claim_request, dump, opened, running, start, step

LONG = "x" * 256
LARGE = b"x" * (limits.PAYLOAD_MAX_BYTES + 1)

Call = Callable[[Store, Engine], Awaitable[object]]


async def unchanged_by(path: Path, call: Call, error: type[OutlastError], why: str) -> None:
    async with opened(path) as store, running(store) as engine:
        await engine.tell(NS, "order", start("order"))
        await claim(store)
        await engine.tell(NS, "order", step(1))
        await engine.tell(NS, "ready", start("ready"))
        before = dump(path)
        with pytest.raises(error, match=why):
            await call(store, engine)
        assert dump(path) == before


def told(make: Callable[[], facts.AnyFact]) -> Call:
    """Telling the engine a fact that cannot even be made."""

    async def call(_: Store, engine: Engine) -> object:
        return await engine.tell(NS, "order", make())

    return call


def starting(**options: Any) -> Call:
    return told(lambda: start(options.pop("execution_id", "new"), **options))


_STEP: dict[str, Any] = {"change_id": "c", "epoch": 1, "scope": "", "name": "s", "occurrence": 1}
_STEP |= {"op": "step", "outcome": "succeeded"}

FACTS: dict[str, tuple[Call, type[OutlastError], str]] = {
    "payload of a start": (starting(input=LARGE), LimitExceeded, "input: 4,194,305 bytes is over the limit"),
    "payload of a step": (
        told(lambda: facts.StepRecorded(**{**_STEP, "value": LARGE})),
        LimitExceeded,
        "step result: 4,194,305",
    ),
    "scope of a step": (
        told(lambda: facts.StepRecorded(**{**_STEP, "value": None, "scope": "s" * 1_025})),
        LimitExceeded,
        "scope: 1,025 characters",
    ),
    "name of a step": (
        told(lambda: facts.StepRecorded(**{**_STEP, "value": None, "name": LONG})),
        LimitExceeded,
        "step",
    ),
    "output": (told(lambda: facts.Complete(change_id="c", epoch=1, output=LARGE)), LimitExceeded, "output"),
    "failure": (
        told(lambda: facts.Fail(change_id="c", epoch=1, failure=b"x" * 65_537)),
        LimitExceeded,
        "failure: 65,537 bytes",
    ),
    "event": (told(lambda: facts.EventSent(change_id="c", name="plan", value=LARGE)), LimitExceeded, "event"),
    "reserved event": (
        told(lambda: facts.EventSent(change_id="c", name="outlast:cancel", value=b"")),
        InvalidName,
        "reserved",
    ),
    "event key": (told(lambda: facts.EventSent(change_id="c", name="plan", value=b"", dedup="")), InvalidName, "empty"),
    "deferred": (told(lambda: facts.DeferredResolved(change_id="c", name="a", value=LARGE)), LimitExceeded, "deferred"),
    "cancel reason": (
        told(lambda: facts.CancelRequested(change_id="c", reason="x" * 2_001)),
        LimitExceeded,
        "cancel reason: 2,001",
    ),
    "priority": (starting(priority=1_000_001), InvalidInput, "priority"),
    "waits": (
        told(
            lambda: facts.Suspend(
                change_id="c", epoch=1, inbox=0, reason="event:a", waits=tuple(f"event:{n}" for n in range(1_001))
            )
        ),
        LimitExceeded,
        "waits: 1,001",
    ),
    "no wake-up": (
        told(lambda: facts.Suspend(change_id="c", epoch=1, inbox=0, reason="event:a")),
        InvalidInput,
        "something that can wake it",
    ),
    "too many tags": (starting(tags={f"t{n}": "v" for n in range(33)}), LimitExceeded, "tags: 33 tags"),
    "long tag": (starting(tags={"x" * 65: "v"}), LimitExceeded, "tag: 65 characters"),
    "long tag value": (starting(tags={"t": LONG}), LimitExceeded, "value of tag 't': 256 characters"),
    "tag with a line break": (starting(tags={"a\nb": "v"}), InvalidName, "printable"),
    "long id": (starting(execution_id=LONG), LimitExceeded, "id: 256 characters"),
    "empty id": (starting(execution_id=""), InvalidName, "must not be empty"),
    "id with a slash": (starting(execution_id="a/b"), InvalidName, "must not contain '/'"),
    "id with half a character": (starting(execution_id="a\ud800"), InvalidName, "printable"),
    "id with a space around": (starting(execution_id=" a"), InvalidName, "space"),
    "long workflow": (starting(workflow=LONG), LimitExceeded, "workflow"),
    "workflow with a separator": (starting(workflow="a|b"), InvalidName, r"must not contain '\|'"),
    "lane with a space": (starting(lane="a b"), InvalidName, "must not contain ' '"),
    "capability": (starting(requires=("a,b",)), InvalidName, "must not contain ','"),
    "too many capabilities": (starting(requires=tuple(f"c{n}" for n in range(17))), LimitExceeded, "requires: 17"),
    "negative delay": (starting(delay_ms=-1), InvalidInput, "delay must not be negative, not -1 ms"),
    "negative deadline": (starting(deadline_ms=-5), InvalidInput, "deadline must not be negative"),
    "delay of a thousand years": (starting(delay_ms=10**15), LimitExceeded, "delay"),
    "crash cap": (starting(crash_cap=0), InvalidInput, "crash_cap"),
    "if_exists": (starting(if_exists="replace"), InvalidInput, "if_exists"),
    "attempts": (told(lambda: start("new", retry=RetryPolicy(max_attempts=0))), InvalidInput, "max_attempts"),
}


@pytest.mark.parametrize("what", FACTS)
async def test_fact_past_a_limit_is_refused(tmp_path: Path, what: str):
    call, error, why = FACTS[what]
    await unchanged_by(tmp_path / "outlast.db", call, error, why)


async def test_full_journal_refuses_the_next_step(tmp_path: Path):
    path = tmp_path / "outlast.db"
    async with opened(path) as store, running(store) as engine:
        await engine.tell(NS, "order", start("order"))
        await claim(store)
        before = dump(path)
        full = facts.StepRecorded(**{**_STEP, "value": b"", "entries": limits.JOURNAL_MAX_ENTRIES})
        answer = await engine.tell(NS, "order", full)
        assert answer.refusal is not None
        assert answer.refusal.code is Code.LIMIT
        assert "journal is full (50,000 entries)" in answer.refusal.message
        assert dump(path) == before


@pytest.mark.parametrize(
    "duration",
    ["", "5", "5 s", "-5s", "1h-30m", "5y", -1, -0.5, float("nan"), float("inf"), True, None, [], "101w" * 60],
)
def test_bad_duration_is_refused(duration: object):
    with pytest.raises(InvalidDuration):
        to_ms(duration)


def test_negative_timedelta_is_refused():
    with pytest.raises(InvalidDuration, match="negative"):
        to_ms(timedelta(seconds=-1))


# ---- the store's own doors ----------------------------------------------------------------------------------------

LANE = Lane(partition=0, namespace=NS, lane="x", paused=True)


def changes(*writes: Any, guards: tuple[Any, ...] = ()) -> Changes:
    return Changes(id="c", partition=0, anchors=(), guards=guards, writes=writes)


def good() -> Changes:
    return changes(Insert(LANE))


ASKED: dict[str, tuple[Call, type[OutlastError], str]] = {
    "batch": (lambda s, _: s.commit([good()] * 1_001), LimitExceeded, "batch: 1,001 changes"),
    "writes": (
        lambda s, _: s.commit([changes(*[Delete(LANE.key)] * 1_001)]),
        LimitExceeded,
        "one change: 1,001 guards and writes",
    ),
    "kind": (lambda s, _: s.commit([good(), changes(Delete(Key("nothing", ("a",))))]), InvalidInput, "nothing"),
    "field": (lambda s, _: s.commit([good(), changes(Patch(LANE.key, {"colour": 1}))]), InvalidInput, "colour"),
    "guarded field": (
        lambda s, _: s.commit([good(), changes(guards=(Matches(LANE.key, {"colour": 1}),))]),
        InvalidInput,
        "colour",
    ),
    "number of 65 bits": (
        lambda s, _: s.commit([good(), changes(Patch(execution_key(NS, "order"), {"epoch": 2**64}))]),
        InvalidInput,
        "a value that a record cannot have|64 bits",
    ),
    "half a character": (
        lambda s, _: s.commit([good(), changes(Insert(Tag(namespace=NS, execution="order", tag="a", value="\ud800")))]),
        InvalidInput,
        "a value that a record cannot have|not text",
    ),
    "null where none may be": (
        lambda s, _: s.commit([good(), changes(Patch(execution_key(NS, "order"), {"epoch": None}))]),
        StoreError,
        "NOT NULL",
    ),
    "claim of nothing": (lambda s, _: s.claim(claim_request(limit=0)), InvalidInput, "claim: limit must be between 1"),
    "claim of too much": (lambda s, _: s.claim(claim_request(limit=1_001)), InvalidInput, "and 1,000, not 1001"),
    "claim without a lane": (lambda s, _: s.claim(claim_request(lanes=())), InvalidInput, "needs lanes"),
    "claim without an id": (lambda s, _: s.claim(claim_request("")), InvalidInput, "claim id"),
    "claim of many lanes": (
        lambda s, _: s.claim(claim_request(lanes=tuple(f"l{n}" for n in range(101)))),
        LimitExceeded,
        "lanes: 101",
    ),
    "claim by nobody": (lambda s, _: s.claim(claim_request(worker="")), InvalidName, "worker"),
    "lane": (lambda s, _: s.claim(claim_request(lanes=("a b",))), InvalidName, "lane"),
    "short lease": (
        lambda s, _: s.claim(claim_request(lease_ttl_ms=99)),
        InvalidInput,
        "lease_ttl must be between 100",
    ),
    "long lease": (lambda s, _: s.renew("w", lease_ttl_ms=86_400_001), InvalidInput, "not 86400001"),
    "negative lease": (lambda s, _: s.renew("w", lease_ttl_ms=-1), InvalidInput, "not -1"),
    "renew by nobody": (lambda s, _: s.renew("", lease_ttl_ms=1_000), InvalidName, "worker"),
    "no frames": (lambda s, _: s.append(NS, "order", epoch=1, change_id="c", frames=[]), InvalidInput, "append"),
    "large frame": (
        lambda s, _: s.append(NS, "order", epoch=1, change_id="c", frames=[b"a", b"x" * 65_537]),
        LimitExceeded,
        "frame: 65,537 bytes",
    ),
    "many frames": (
        lambda s, _: s.append(NS, "order", epoch=1, change_id="c", frames=[b""] * 1_001),
        InvalidInput,
        "append",
    ),
    "purge of nothing": (lambda s, _: s.purge(limit=0), InvalidInput, "purge: limit"),
    "purge before the end of time": (lambda s, _: s.purge(finished_before=2**64), InvalidInput, "64 bits"),
    "load too much": (lambda s, _: s.load([LANE.key] * 1_001), InvalidInput, "load"),
    "load of a kind": (lambda s, _: s.load([Key("nothing", ("a",))]), InvalidInput, "nothing"),
    "load of half a key": (lambda s, _: s.load([Key("execution", (NS,))]), InvalidInput, "has namespace, id"),
    "load of half a character": (lambda s, _: s.load([execution_key(NS, "\ud800")]), InvalidInput, "not text"),
    "scan of a kind": (lambda s, _: s.scan("nothing", ()), InvalidInput, "nothing"),
    "scan of too much": (lambda s, _: s.scan("lane", (), limit=10_001), InvalidInput, "scan"),
    "scan of a long prefix": (lambda s, _: s.scan("tag", (NS, "a", "b", "c")), InvalidInput, "longer than a key"),
    "scan from elsewhere": (
        lambda s, _: s.scan("attempt", (NS, "order"), after=attempt_key(NS, "other", 1, 1)),
        InvalidInput,
        "no place to go on from",
    ),
    "scan from another kind": (lambda s, _: s.scan("tag", (), after=lane_key(0, NS, "a")), InvalidInput, "no place"),
    "find too much": (lambda s, _: s.find(Query(namespace=NS, limit=1_001)), InvalidInput, "find"),
    "find by many tags": (
        lambda s, _: s.find(Query(namespace=NS, tags={f"t{n}": "" for n in range(33)})),
        LimitExceeded,
        "tags",
    ),
    **{
        f"cursor {cursor!r}": (
            lambda s, _, cursor=cursor: s.find(Query(namespace=NS, after=cursor)),
            InvalidInput,
            "cursor of find",
        )
        for cursor in ("", "x", ":a", "-1:a", "²:a", "1.5:a", "9" * 30 + ":a", "123")
    },
    **{
        f"feed {cursor!r}": (
            lambda s, _, cursor=cursor: s.completions(after=cursor),
            InvalidInput,
            "cursor of completions",
        )
        for cursor in ("", "x", "-1", "²", "٣", "1.5", "9" * 30)
    },
    "feed of nothing": (lambda s, _: s.completions(limit=0), InvalidInput, "completions"),
    "due of nothing": (lambda s, _: s.due(DueKind.TIMER, limit=0), InvalidInput, "due"),
    "due of too much": (lambda s, _: s.due(DueKind.TIMER, limit=1_001), InvalidInput, "due"),
    "frames of too much": (lambda s, _: s.frames(NS, "order", limit=10_001), InvalidInput, "frames"),
}


@pytest.mark.parametrize("what", ASKED)
async def test_store_refuses(tmp_path: Path, what: str):
    call, error, why = ASKED[what]
    await unchanged_by(tmp_path / "outlast.db", call, error, why)


async def test_bad_change_does_not_fail_its_neighbours_in_the_engine(tmp_path: Path):
    """The store refuses the batch as a whole; group commit then finds out which one it was."""
    async with opened(tmp_path / "outlast.db") as store, running(store) as engine:
        bad = changes(Patch(LANE.key, {"colour": 1}))
        outcomes = await asyncio.gather(
            engine.group.commit(good()),
            engine.group.commit(bad),
            engine.tell(NS, "order", start("order")),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], InvalidInput)
        assert await store.load([LANE.key]) == [LANE]
        assert await store.count(Query(namespace=NS)) == 1


@pytest.mark.parametrize("prefix", ["order-", "order-\ud7ff", "\U0010ffff", "a\U0010ffff\U0010ffff", "%", "'"])
async def test_any_prefix_can_be_looked_for(tmp_path: Path, prefix: str):
    async with opened(tmp_path / "outlast.db") as store, running(store) as engine:
        await engine.tell(NS, "order-1", start("order-1"))
        page = await store.find(Query(namespace=NS, id_prefix=prefix))
        assert [e.id for e in page.executions] == (["order-1"] if prefix == "order-" else [])


async def test_filter_of_a_tag_that_is_strange_finds_nothing(tmp_path: Path):
    async with opened(tmp_path / "outlast.db") as store:
        due = await store.due(DueKind.TIMER, limit=10, filter=Filter(namespace="'; --", tag=("%", "' OR 1")))
        assert due.items == []
