"""Every execution that can come to be, up to what matters: found by telling every fact to everything found so far."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from outlast.machine import facts
from outlast.machine.changes import Changes, Refusal, View, execution_after
from outlast.model.event import UPDATE
from outlast.model.execution import Execution, ParentClose
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status
from tests.unit.machine.build import NOW, PARTITION, answer_to, say

POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"retry": RetryPolicy(max_attempts=2, initial_ms=0), "timeout_ms": 1_000, "crash_cap": 1},
    {"retry": RetryPolicy(max_attempts=2, initial_ms=500), "timeout_ms": 1_000, "crash_cap": 2, "deadline_ms": 9_000},
    {"deadline_ms": 9_000, "quota": "stripe", "parent": "cart-1", "retention_ms": 5_000, "tags": {"shop": "paris"}},
)

SAID: tuple[tuple[type[facts.Fact], dict[str, Any]], ...] = (
    *((facts.Start, {"if_exists": word}) for word in ("same", "error", "restart")),
    (facts.Start, {"input_digest": "of something else"}),
    (facts.Start, {"worker": "worker-1", "quota": None}),
    (facts.Start, {"if_exists": "restart", "delay_ms": 500}),
    (facts.Start, {"if_exists": "restart", "after_dependencies": True}),
    *((facts.Start, {"sends": (facts.Sent(name, b"sent"),)}) for name in ("plan", "other")),
    (facts.Fork, {}),
    (facts.Claim, {}),
    (facts.StepRecorded, {}),
    (facts.StepRecorded, {"unwinds": True}),
    (facts.StepRecorded, {"consumes": ("plan", "1")}),
    (facts.StepRecorded, {"consumes": ("plan", "1")}),
    (facts.StepRecorded, {"entries": 50_000}),
    (facts.StepRecorded, {"adopts": ("order-42/ship", ParentClose.CANCEL)}),
    (facts.Answered, {}),
    (facts.Progressed, {}),
    *((facts.Suspend, {"waits": (wait,), "reason": wait}) for wait in ("event:plan", "deferred:approval")),
    (facts.Suspend, {"waits": ("child:order-42/ship",), "reason": "child:order-42/ship"}),
    (facts.Suspend, {"waits": (), "reason": "timer", "wake_at": NOW + 1}),
    (facts.Suspend, {"waits": ("event:plan",), "reason": "event:plan", "wake_at": NOW + 1}),
    *((facts.Wake, {"cause": cause}) for cause in ("timer", "delay", "retry", "dependencies", "event:plan")),
    (facts.Wake, {"cause": "dependencies", "worker": "worker-1"}),
    (facts.Complete, {}),
    (facts.Fail, {}),
    (facts.Fail, {"retryable": False}),
    (facts.Fail, {"supersedes": (("", "charge", 0),)}),
    (facts.Continue, {}),
    (facts.Cancelled, {}),
    (facts.HandBack, {}),
    (facts.TimeOut, {}),
    (facts.LeaseLost, {}),
    *((kind, {"epoch": 99}) for kind in (facts.Complete, facts.HandBack, facts.TimeOut, facts.LeaseLost)),
    (facts.CancelRequested, {"reason": "changed my mind"}),
    (facts.Hold, {}),
    (facts.Release, {}),
    (facts.Retry, {}),
    (facts.Retry, {"supersedes": (("", "charge", 0),)}),
    (facts.Retry, {"seen_epoch": 99}),
    (facts.Retry, {"with_flow": True, "waits_again": True}),
    (facts.Supersede, {}),
    (facts.Supersede, {"epoch": 99}),
    (facts.ChangePriority, {"priority": 0}),
    (facts.ChangePriority, {"priority": 7}),
    (facts.DeadlinePassed, {}),
    (facts.EventSent, {}),
    (facts.EventSent, {"name": "other", "dedup": "1"}),
    (facts.EventSent, {"name": UPDATE}),
    (facts.DeferredResolved, {}),
    (facts.ChildCompleted, {}),
    (facts.ChildCompleted, {"status": Status.EXPIRED, "value": None}),
    (facts.Skip, {}),
)


class Case(NamedTuple):
    """One fact told to one execution, and what came of it."""

    before: Execution | None
    fact: facts.Fact
    answer: Changes | Refusal | Exception
    after: Execution | None


@cache
def every_case() -> tuple[Case, ...]:
    return tuple(case for policy in POLICIES for case in _explore(policy))


def _explore(policy: dict[str, Any]) -> Iterator[Case]:
    waiting: list[Execution | None] = [None]
    met: set[object] = set()
    while waiting:
        before = waiting.pop()
        for kind, given in SAID:
            options = {**policy, **given} if kind is facts.Start else given
            # A holder's fact needs an epoch even if there is nothing to hold.
            usual = {"epoch": 0, "inbox": 0} if before is None else {}
            usual = {name: value for name, value in usual.items() if name in kind.__struct_fields__}
            case = _told(before, say(kind, before, **{**usual, **options}))
            yield case
            if case.after is not None and _likeness(case.after) not in met:
                met.add(_likeness(case.after))
                waiting.append(case.after)


def _told(before: Execution | None, fact: facts.Fact) -> Case:
    try:
        answer = answer_to(before, fact)
    except Exception as error:
        return Case(before, fact, error, None)
    if isinstance(answer, Refusal):
        return Case(before, fact, answer, None)
    return Case(before, fact, answer, execution_after(View(PARTITION, before), answer, NOW))


def _likeness(e: Execution) -> object:
    """Two executions that are alike in this get the same answers; counters are cut off where they cease to matter."""
    flags = (e.held, e.cancel_requested, e.unwinds, e.has_children, e.attempt_open)
    times = (e.wake_at is None, e.deadline_at is None, e.attempt_deadline_at is None)
    most = (2, 2) if not e.unwinds else (7, 2) if e.crashes < e.failures else (2, 5)  # it may fail more to unwind
    counted = (min(e.failures, most[0]), min(e.crashes, most[1]), min(e.crashes_since_progress, most[1]))
    return (e.status, e.waits, flags, times, counted, min(e.epoch, 1), e.expires_for)
