"""A fact that exists is well-formed: each limit and each bad input is a typed error where the fact is made."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest

from outlast import limits
from outlast.errors import InvalidInput, InvalidName, LimitExceeded
from outlast.machine import facts
from outlast.model.deferred import Resolution
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status
from tests.unit.machine.build import active, say

KINDS: tuple[type[facts.Fact], ...] = get_args(facts.AnyFact)
PAYLOAD = limits.PAYLOAD_MAX_BYTES
CENTURY = limits.DURATION_MAX_MS

AT_THE_LIMIT: list[tuple[type[facts.Fact], dict[str, Any]]] = [
    (facts.Start, {"id": "x" * 255}),
    (facts.Start, {"namespace": "x" * 255}),
    (facts.Start, {"workflow": "x" * 255}),
    (facts.Start, {"lane": "x" * 255}),
    (facts.Start, {"requires": tuple(f"c{n}" for n in range(16))}),
    (facts.Start, {"tags": {f"t{n}": "v" for n in range(32)}}),
    (facts.Start, {"tags": {"k" * 64: "v" * 255}}),
    (facts.Start, {"input": b"x" * PAYLOAD}),
    (facts.Start, {"priority": 1_000_000}),
    (facts.Start, {"priority": -1_000_000}),
    (facts.Start, {"delay_ms": CENTURY, "deadline_ms": CENTURY, "timeout_ms": CENTURY, "retention_ms": CENTURY}),
    (facts.Start, {"deadline_ms": 0, "timeout_ms": 0, "retention_ms": 0}),
    (facts.Start, {"crash_cap": 1}),
    (facts.Start, {"life_crash_cap": 1}),
    (facts.Start, {"crash_cap": 1_000}),
    (facts.Start, {"life_crash_cap": 1_000}),
    (facts.Start, {"id": "order-42/ship", "parent": "order-42"}),
    (facts.Start, {"id": "night/clean", "flow": "night"}),
    (facts.CancelRequested, {"reason": "x" * 2_000}),
    (facts.ChangePriority, {"priority": 1_000_000}),
    (facts.ChangePriority, {"priority": -1_000_000}),
    (facts.EventSent, {"name": "x" * 255, "dedup": "x" * 255, "value": b"x" * PAYLOAD}),
    (facts.DeferredResolved, {"name": "x" * 255, "value": b"x" * PAYLOAD}),
    (facts.StepRecorded, {"name": "x" * 255, "scope": "x" * 1_024, "value": b"x" * PAYLOAD}),
    (facts.StepRecorded, {"value": None}),
    (facts.Suspend, {"waits": tuple(f"event:{n}" for n in range(1_000))}),
    (facts.Suspend, {"reason": "timer", "waits": (), "wake_at": 1}),
    (facts.Suspend, {"reason": "child:" + "x" * 255, "waits": ("child:" + "x" * 255,)}),
    (facts.Complete, {"output": b"x" * PAYLOAD}),
    (facts.Fail, {"failure": b"x" * limits.FAILURE_MAX_BYTES, "jitter": math.nextafter(1.0, 0.0)}),
]

PAST_A_LIMIT: list[tuple[type[facts.Fact], dict[str, Any]]] = [
    (facts.Start, {"id": "x" * 256}),
    (facts.Start, {"id": "x" * 256, "parent": "order-42"}),
    (facts.Start, {"namespace": "x" * 256}),
    (facts.Start, {"workflow": "x" * 256}),
    (facts.Start, {"version": "x" * 256}),
    (facts.Start, {"lane": "x" * 256}),
    (facts.Start, {"quota": "x" * 256}),
    (facts.Start, {"requires": ("x" * 256,)}),
    (facts.Start, {"requires": tuple(f"c{n}" for n in range(17))}),
    (facts.Start, {"tags": {f"t{n}": "v" for n in range(33)}}),
    (facts.Start, {"tags": {"k" * 65: "v"}}),
    (facts.Start, {"tags": {"k": "v" * 256}}),
    (facts.Start, {"input": b"x" * (PAYLOAD + 1)}),
    (facts.Start, {"delay_ms": CENTURY + 1}),
    (facts.Start, {"deadline_ms": CENTURY + 1}),
    (facts.Start, {"timeout_ms": CENTURY + 1}),
    (facts.Start, {"retention_ms": CENTURY + 1}),
    (facts.CancelRequested, {"reason": "x" * 2_001}),
    (facts.EventSent, {"name": "x" * 256}),
    (facts.EventSent, {"dedup": "x" * 256}),
    (facts.EventSent, {"value": b"x" * (PAYLOAD + 1)}),
    (facts.DeferredResolved, {"name": "x" * 256}),
    (facts.DeferredResolved, {"value": b"x" * (PAYLOAD + 1)}),
    (facts.StepRecorded, {"name": "x" * 256}),
    (facts.StepRecorded, {"scope": "x" * 1_025}),
    (facts.StepRecorded, {"value": b"x" * (PAYLOAD + 1)}),
    (facts.Suspend, {"waits": tuple(f"event:{n}" for n in range(1_001))}),
    (facts.Suspend, {"reason": "event:" + "x" * 400}),
    (facts.Complete, {"output": b"x" * (PAYLOAD + 1)}),
    (facts.Fail, {"failure": b"x" * (limits.FAILURE_MAX_BYTES + 1)}),
]

BAD_NAMES: list[tuple[type[facts.Fact], dict[str, Any]]] = [
    (facts.Start, {"id": ""}),
    (facts.Start, {"id": "order/42"}),
    (facts.Start, {"id": "order\n42"}),
    (facts.Start, {"id": " order"}),
    (facts.Start, {"id": 42}),
    (facts.Start, {"id": "", "flow": "night"}),
    (facts.Start, {"namespace": ""}),
    (facts.Start, {"namespace": "a\0b"}),
    (facts.Start, {"workflow": "a|b"}),
    (facts.Start, {"workflow": "a b"}),
    (facts.Start, {"version": "1,2"}),
    (facts.Start, {"lane": ""}),
    (facts.Start, {"lane": "a|b"}),
    (facts.Start, {"quota": "a b"}),
    (facts.Start, {"requires": ("gpu,eu",)}),
    (facts.Start, {"tags": {"": "v"}}),
    (facts.Start, {"tags": {"k": ""}}),
    (facts.Start, {"tags": {"k": 5}}),
    (facts.EventSent, {"name": "outlast:cancel"}),
    (facts.EventSent, {"name": ""}),
    (facts.EventSent, {"dedup": ""}),
    (facts.DeferredResolved, {"name": "a\nb"}),
    (facts.StepRecorded, {"name": ""}),
    (facts.Suspend, {"waits": ("event:a\nevent:b",)}),
]

BAD_INPUT: list[tuple[type[facts.Fact], dict[str, Any]]] = [
    (facts.Start, {"priority": 1_000_001}),
    (facts.Start, {"priority": -1_000_001}),
    (facts.Start, {"delay_ms": -1}),
    (facts.Start, {"deadline_ms": -1}),
    (facts.Start, {"timeout_ms": -1}),
    (facts.Start, {"retention_ms": -1}),
    (facts.Start, {"crash_cap": 0}),
    (facts.Start, {"life_crash_cap": 0}),
    (facts.Start, {"crash_cap": 1_001}),
    (facts.Start, {"life_crash_cap": 1_001}),
    (facts.Start, {"if_exists": "maybe"}),
    (facts.Start, {"after_dependencies": True, "delay_ms": 1}),
    (facts.Wake, {"cause": "timer", "worker": "worker-1"}),
    (facts.CancelRequested, {"reason": "half a pair: \ud83d"}),
    (facts.CancelRequested, {"reason": 5}),
    (facts.ChangePriority, {"priority": 1_000_001}),
    (facts.ChildCompleted, {"status": Status.ACTIVE}),
    (facts.Suspend, {"reason": "moonlight"}),
    (facts.Suspend, {"waits": ("moonlight",)}),
    (facts.Suspend, {"waits": ()}),
    (facts.Suspend, {"reason": "timer", "waits": ("timer",)}),
    (facts.Suspend, {"reason": "timer"}),
    (facts.Fail, {"jitter": 1.0}),
    (facts.Fail, {"jitter": -0.1}),
    (facts.Fail, {"jitter": math.nan}),
    (facts.TimeOut, {"jitter": 1.0}),
]


def name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else ",".join(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize("kind, given", AT_THE_LIMIT, ids=name_of)
def test_what_is_within_the_limits_is_accepted(kind: type[facts.Fact], given: dict[str, Any]):
    fact = say(kind, active(), **given)
    assert {name: getattr(fact, name) for name in given} == given


@pytest.mark.parametrize("kind, given", PAST_A_LIMIT, ids=name_of)
def test_past_a_limit_is_an_error_that_says_which(kind: type[facts.Fact], given: dict[str, Any]):
    """Rule 7."""
    with pytest.raises(LimitExceeded, match="is over the limit of"):
        say(kind, active(), **given)


@pytest.mark.parametrize("kind, given", BAD_NAMES, ids=name_of)
def test_a_name_that_cannot_be_used_is_an_error_that_says_why(kind: type[facts.Fact], given: dict[str, Any]):
    with pytest.raises(InvalidName):
        say(kind, active(), **given)


@pytest.mark.parametrize("kind, given", BAD_INPUT, ids=name_of)
def test_bad_input_is_a_typed_error(kind: type[facts.Fact], given: dict[str, Any]):
    """Rule 8: what is accepted is enforced."""
    with pytest.raises(InvalidInput):
        say(kind, active(), **given)


def test_reserved_names_are_for_the_engine():
    with pytest.raises(InvalidName, match="reserved"):
        say(facts.EventSent, name="outlast:hold")


# ---- through the outbox -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_comes_out_of_the_outbox_as_it_went_in(kind: type[facts.Fact]):
    fact: Any = say(kind, active())
    assert facts.decode_fact(facts.encode_fact(fact)) == fact


@pytest.mark.parametrize(
    "fact",
    [
        say(facts.Start, retry=RetryPolicy(max_attempts=3), requires=("a", "b"), tags={"k": "v"}, flow="night"),
        say(facts.Retry, supersedes=(("a/b", "charge", 3),)),
        say(facts.StepRecorded, active(), consumes=("plan", "1"), value=None),
        say(facts.DeferredResolved, resolution=Resolution.REJECTED),
        say(facts.ChildCompleted, status=Status.EXPIRED, value=None),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_nothing_is_lost_on_the_way(fact: Any):
    assert facts.decode_fact(facts.encode_fact(fact)) == fact


def test_facts_are_checked_again_when_they_are_read():
    forged = msgspec.msgpack.encode({"type": "ChangePriority", "change_id": "x", "priority": 10**9})
    with pytest.raises(msgspec.ValidationError, match="priority must be between"):
        facts.decode_fact(forged)
    with pytest.raises(msgspec.ValidationError):
        facts.decode_fact(msgspec.msgpack.encode({"type": "Nonsense", "change_id": "x"}))
