"""What code can ask about itself: the time, random numbers, who it is; and what it can show while it works.

due = outlast.now() + timedelta(days=3)        # in workflows: the same when the code is replayed
ticket = outlast.uuid4()
order = outlast.current().id                   # in workflows and steps
outlast.progress(0.5, "half of the pages")
outlast.emit({"page": 12})
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from hashlib import sha256
from random import Random
from typing import Any, cast
from uuid import UUID

from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded, WrongPlace
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.current import attempt_var, operation_var, step_var
from outlast.runtime.attempts.stream import Progress
from outlast.runtime.attempts.workflow_loop import scope_var


class Current(Struct, frozen=True, kw_only=True):
    """The execution that the running code belongs to, as it was when this attempt began.

    `attempt` and `worker` differ when code is replayed: they are for logs, and no branch may depend on them.
    """

    id: str
    namespace: str
    workflow: str
    version: str
    lane: str
    attempt: int
    generation: int
    tags: dict[str, str]
    parent: str | None
    worker: str | None
    step: str | None = None
    """The step whose body is running; None in the workflow's own code."""
    call: str | None = None
    """Which call of the step it is, unique and the same for every try: an idempotency key for the outside world."""


def now() -> datetime:
    """The time of the last outcome that the workflow's code has seen, by the store's clock, in UTC.

    A replay sees the same. It stands still between two durable operations.
    """
    return datetime.fromtimestamp(workflow_code("now").now_ms / 1_000, UTC)


def random() -> Random:
    """Random numbers that are the same when the code is replayed: `outlast.random().choice(hosts)`.

    Each branch of the code (`asyncio.gather`, …) has its own. They are no secrets: make those in a step. A fork has
    the original's in what it keeps, and others behind that.
    """
    attempt, scope = workflow_code("random"), scope_var.get()
    attempt.asked.refuse_change("random()")
    e, origin = attempt.execution, attempt.replay.origin
    whose = (e.id, e.journal_generation) if origin is None else (origin.id, origin.generation)
    seed = "\n".join((e.namespace, *map(str, whose), scope.path))
    numbers = attempt.random.get(seed)
    if numbers is None:
        numbers = attempt.random[seed] = Random(sha256(seed.encode()).digest())
    return numbers


def uuid4() -> UUID:
    """A new UUID, the same when the code is replayed. No secret: make those in a step."""
    workflow_code("uuid4")
    return UUID(int=random().getrandbits(128), version=4)


def current() -> Current:
    """The execution that this code belongs to; in workflows and steps."""
    attempt = any_code("current")
    e, operation = attempt.execution, operation_var.get()
    call = None
    if operation is not None:
        scope, name, occurrence = operation.key
        call = f"{e.namespace}/{e.id}/{e.journal_generation}/{scope}{name}/{occurrence}"
    return Current(
        id=e.id,
        namespace=e.namespace,
        workflow=e.workflow,
        version=e.version,
        lane=e.lane,
        attempt=e.attempt,
        generation=e.generation,
        tags=e.tag_map,
        parent=e.parent,
        worker=e.worker,
        step=step_var.get(),
        call=call,
    )


def progress(fraction: float, text: str = "") -> None:
    """Say how far the work is, from 0 to 1, and in words: seen in `handle.info()` and `outlast show`.

    Only the newest is kept. In workflows and steps; not awaited, and not in the journal.
    """
    attempt, given = any_code("progress"), cast("object", fraction)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InvalidInput(f"progress must be a number from 0 to 1, not {fraction!r}")
    if not 0 <= given <= 1:
        raise InvalidInput(f"progress must be between 0 and 1, not {given}")
    said = cast("object", text)
    if not isinstance(said, str):
        raise InvalidInput(f"the text of a progress must be a string, not {text!r}")
    if len(said) > limits.PROGRESS_TEXT_MAX_CHARS:
        most = limits.PROGRESS_TEXT_MAX_CHARS
        raise LimitExceeded("the text of a progress", actual=len(said), limit=most, unit="characters")
    attempt.parts.values.refuse_unstorable(said, "progress", "text")
    attempt.asked.refuse_change("progress()")
    attempt.stream.show(Progress(float(given), said))


def emit(frame: Any) -> None:
    """Add a frame (plain JSON) to the execution's stream, for `handle.frames()`. In workflows and steps; not awaited.

    Workflow code emits each frame once, whatever crashes. A step that is performed again emits again.
    """
    attempt, operation = any_code("emit"), operation_var.get()
    attempt.asked.refuse_change("emit()")
    attempt.stream.emit(frame, None if operation is None else operation.key)


def workflow_code(what: str) -> LiveAttempt:
    """The attempt whose workflow code calls."""
    step = step_var.get()
    if step is not None:
        raise WrongPlace(
            f"{what}() was called inside step {step!r}: it is for a workflow's own code, which is replayed"
        )
    attempt = attempt_var.get()
    if attempt is None:
        raise WrongPlace(f"{what}() was called outside of a workflow: it is for a workflow's own code")
    return attempt


def any_code(what: str) -> LiveAttempt:
    """The attempt whose workflow or step calls."""
    attempt = attempt_var.get()
    if attempt is None:
        raise WrongPlace(f"{what}() was called outside of a workflow: it is for workflows and their steps")
    return attempt
