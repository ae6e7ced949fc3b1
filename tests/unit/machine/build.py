"""Executions in every status, made by the machine itself, and words to ask what it answered.

`after(active(), facts.Complete)` is the execution once its holder has completed it; `changes_of` is what would be
committed; `refusal_of` is why not. Facts get sensible values unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any, TypeVar

from outlast.machine import facts
from outlast.machine.changes import Add, Changes, Delete, Insert, Matches, Patch, Refusal, View, execution_after
from outlast.machine.decide import decide
from outlast.machine.invariants import check
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.record import Key, Record
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status

NOW = 1_000_000
PARTITION = 3
KEY = execution_key("shop", "order-42")
RETRIES = RetryPolicy(max_attempts=3, initial_ms=1_000, backoff=2.0, max_delay_ms=60_000, jitter=0.5)
RETRIES_AT_ONCE = RetryPolicy(max_attempts=3, initial_ms=0)

F = TypeVar("F", bound=facts.Fact)
R = TypeVar("R", bound=Record)

SOURCE = Execution(
    namespace="shop",
    id="order-41",
    workflow="checkout",
    version="1",
    lane="default",
    route="checkout|1||",
    input_digest="digest-of-42",
    status=Status.SUCCEEDED,
    epoch=4,
    tags='{"shop":"paris"}',
    created_at=1,
    finished_at=2,
)

USUAL: dict[type[facts.Fact], dict[str, Any]] = {
    facts.Start: {
        "namespace": "shop",
        "id": "order-42",
        "workflow": "checkout",
        "version": "1",
        "input": b"[42]",
        "input_digest": "digest-of-42",
    },
    facts.Fork: {"id": "order-42", "source": SOURCE, "input": b"[42]"},
    facts.Claim: {"worker": "worker-1"},
    facts.StepRecorded: {
        "scope": "",
        "name": "charge",
        "occurrence": 0,
        "op": "step",
        "outcome": "ok",
        "value": b"paid",
    },
    facts.Answered: {"dedup": "click-1", "answer": b"done"},
    facts.Progressed: {"value": b"half"},
    facts.Suspend: {"reason": "event:plan", "waits": ("event:plan",)},
    facts.Wake: {"cause": "timer"},
    facts.Complete: {"output": b"receipt"},
    facts.Fail: {"failure": b"boom"},
    facts.Continue: {"input": b"[43]"},
    facts.Supersede: {"entries": (("", "charge", 0),)},
    facts.ChangePriority: {"priority": 7},
    facts.EventSent: {"name": "plan", "value": b"gold"},
    facts.DeferredResolved: {"name": "approval", "value": b"true"},
    facts.ChildCompleted: {"child": "order-42/ship", "status": Status.SUCCEEDED, "value": b"parcel"},
}


# ---- telling the machine ------------------------------------------------------------------------------------------


def say(kind: type[F], execution: Execution | None = None, **given: Any) -> F:
    """A fact about this execution, by its holder if it is a holder's."""
    fields: dict[str, Any] = {"change_id": f"a-{kind.__name__}", **USUAL.get(kind, {})}
    if execution is not None and "epoch" in kind.__struct_fields__:
        fields["epoch"] = execution.epoch
    if execution is not None and kind is facts.Suspend:
        fields["inbox"] = execution.inbox
    return kind(**{**fields, **given})


def answer_to(execution: Execution | None, fact: Any, *, now: int = NOW) -> Changes | Refusal:
    return decide(View(PARTITION, execution), fact, now)


def changes_of(execution: Execution | None, kind: type[facts.Fact], *, now: int = NOW, **given: Any) -> Changes:
    answer = answer_to(execution, say(kind, execution, **given), now=now)
    assert isinstance(answer, Changes), answer
    return answer


def refusal_of(execution: Execution | None, kind: type[facts.Fact], **given: Any) -> Refusal:
    answer = answer_to(execution, say(kind, execution, **given))
    assert isinstance(answer, Refusal), answer
    return answer


def after(execution: Execution | None, kind: type[facts.Fact], *, now: int = NOW, **given: Any) -> Execution:
    """The execution once the fact is committed at `now`."""
    changed = execution_after(View(PARTITION, execution), changes_of(execution, kind, now=now, **given), now)
    assert changed is not None
    return check(changed)


# ---- executions ---------------------------------------------------------------------------------------------------


def ready(**start: Any) -> Execution:
    return after(None, facts.Start, **start)


def delayed(**start: Any) -> Execution:
    return after(None, facts.Start, **{"delay_ms": 5_000, **start})


def dependent(**start: Any) -> Execution:
    return after(None, facts.Start, after_dependencies=True, **start)


def active(**start: Any) -> Execution:
    return after(ready(**start), facts.Claim)


def undoable(**start: Any) -> Execution:
    """Active, and one of its steps has registered an undo."""
    return after(active(**start), facts.StepRecorded, unwinds=True)


def parental(**start: Any) -> Execution:
    """Active, and it has started a child."""
    return after(active(**start), facts.StepRecorded, adopts=("order-42/ship", ParentClose.CANCEL))


def suspended(**start: Any) -> Execution:
    """Waits for the event `plan`."""
    return after(active(**start), facts.Suspend)


def sleeping(**start: Any) -> Execution:
    """Waits for a timer, ten seconds from now."""
    return after(active(**start), facts.Suspend, reason="timer", waits=(), wake_at=NOW + 10_000)


def backing_off(**start: Any) -> Execution:
    """Failed once, and waits before it is tried again."""
    return after(active(**{"retry": RETRIES, **start}), facts.Fail)


def held(execution: Execution) -> Execution:
    return after(execution, facts.Hold)


def asked_to_cancel(execution: Execution) -> Execution:
    return after(execution, facts.CancelRequested)


def succeeded(**start: Any) -> Execution:
    return after(active(**start), facts.Complete)


def failed(**start: Any) -> Execution:
    return after(active(**start), facts.Fail, retryable=False)


def cancelled(**start: Any) -> Execution:
    return after(ready(**start), facts.CancelRequested)


def expired(**start: Any) -> Execution:
    return after(active(**{"deadline_ms": 60_000, **start}), facts.DeadlinePassed)


def skipped(**start: Any) -> Execution:
    return after(dependent(**start), facts.Skip)


OPEN_ONES = {"ready": ready, "delayed": delayed, "dependent": dependent, "active": active}
OPEN_ONES |= {"suspended": suspended, "sleeping": sleeping, "backing_off": backing_off}
ENDED_ONES = {"succeeded": succeeded, "failed": failed, "cancelled": cancelled, "expired": expired, "skipped": skipped}


# ---- what was answered --------------------------------------------------------------------------------------------


def patch_of(changes: Changes, kind: str = Execution.KIND) -> dict[str, Any]:
    """The fields that the change patches in the one record of this kind; none if it patches none."""
    patches = [write.fields for write in changes.writes if isinstance(write, Patch) and write.key.kind == kind]
    assert len(patches) <= 1, "two patches of one record"
    return dict(patches[0]) if patches else {}


def inserts_of(changes: Changes, kind: type[R]) -> list[R]:
    return [w.record for w in changes.writes if isinstance(w, Insert) and isinstance(w.record, kind)]


def insert_of(changes: Changes, kind: type[R]) -> R:
    [record] = inserts_of(changes, kind)
    return record


def additions_of(changes: Changes) -> list[Add]:
    return [write for write in changes.writes if isinstance(write, Add)]


def deletes_of(changes: Changes) -> list[Key]:
    return [write.key for write in changes.writes if isinstance(write, Delete)]


# Guards, spelled out here a second time: the tests must notice when the machine forgets a field of them.


def fence(execution: Execution) -> Matches:
    """The holder's: same epoch, still active."""
    return Matches(execution.key, {"status": Status.ACTIVE, "epoch": execution.epoch})


def fence_of_an_end(execution: Execution) -> Matches:
    """The holder's, who leaves no child behind."""
    fields = {"status": Status.ACTIVE, "epoch": execution.epoch, "has_children": execution.has_children}
    return Matches(execution.key, fields)


def fence_and_inbox(execution: Execution, inbox: int | None = None) -> Matches:
    """The holder's, if nothing may have come from outside."""
    seen = execution.inbox if inbox is None else inbox
    fields = {"status": Status.ACTIVE, "epoch": execution.epoch, "inbox": seen}
    return Matches(execution.key, {**fields, "has_children": execution.has_children})


def as_it_was(execution: Execution) -> Matches:
    """Everybody else's: all that they decided upon."""
    names = ("status", "epoch", "generation", "waits", "held", "unwinds", "has_children", "cancel_requested")
    return Matches(execution.key, {name: getattr(execution, name) for name in names})


def open_and_waiting_as(execution: Execution) -> Matches:
    """Of a message that wakes nobody: nothing that its holder writes, but for what it waits for."""
    fields = {"waits": execution.waits, "journal_generation": execution.journal_generation, "finished_at": None}
    return Matches(execution.key, fields)


NOTHING_TO_UNDO = Matches(KEY, {"unwinds": False})
