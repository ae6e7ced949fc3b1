"""Children: executions that workflow code starts, and waits for.

A child is named under its parent and lives in its partition: it starts in the commit of the journal entry that says so.
One that is detached is placed on its own, and starts through the outbox. Either way the same start, repeated, is the
same child, and the parent hears of its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct, structs

from outlast import limits
from outlast.codec.failures import decode_failure, raised_again, settle_failure
from outlast.errors import (
    CodecError,
    CodecHookFailed,
    ExecutionConflict,
    ExecutionExpired,
    ExecutionNotFound,
    ExecutionRefused,
)
from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.machine.decide_start import conflict_with
from outlast.model.execution import ParentClose
from outlast.model.journal import CHILD, NOTHING, START, SUCCEEDED
from outlast.model.names import check_name
from outlast.model.status import Reason, Status
from outlast.runtime.attempts.effects import NO_EFFECTS, Effects
from outlast.runtime.attempts.operation import Operation, Outcome, was_cancelled
from outlast.runtime.holder import EndOfChild, LookAt
from outlast.runtime.operations.performed import BackOff, Performed
from outlast.runtime.operations.tell import debt_id, owing
from outlast.runtime.operations.wait import Limit, Wait, timed_out

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.child import ChildEnd
    from outlast.model.execution import Execution
    from outlast.model.journal import JournalEntry, OperationKey
    from outlast.runtime.attempts.mail import Mail
    from outlast.runtime.parts import Parts


class Started(Struct, frozen=True, omit_defaults=True):
    """What the journal keeps of a start: which child, under which change id it was asked for, and by whom. A fork has
    the entry too, but not the child: for it there is no `start`. `called`: nobody holds the child but the call, whose
    place gave it its name."""

    id: str
    start: str | None
    by: str = ""
    called: bool = False


class StartChild(Performed):
    __slots__ = ("called", "detached", "given", "parent", "parent_close", "start")

    OP: ClassVar = START

    def __init__(
        self,
        start: facts.Start,
        *,
        called: bool,
        parent: str,
        given: str | None,
        detached: bool,
        parent_close: ParentClose | None,
    ) -> None:
        self.start = start
        self.called = called
        self.parent = parent
        self.given = given
        self.detached = detached
        if parent_close is None:
            parent_close = ParentClose.ABANDON if detached else ParentClose.CANCEL
        self.parent_close = parent_close

    @property
    def name(self) -> str:
        return self.start.workflow

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        try:
            fact = structs.replace(
                self.start,
                change_id=debt_id(parts, execution),
                id=self._id(parts, execution, operation.key, execution.journal_generation),
                parent=execution.id,
                closes=self.detached and self.parent_close is not ParentClose.ABANDON,
            )
            existing = None if self.detached else await parts.holder.ask(execution, LookAt(fact.id))
            retried = execution.failures > 0 or execution.generation > execution.journal_generation
            for attempt in (1, execution.attempt):
                if existing is not None and self.given is None and retried:
                    # Its start was in the journal, and a retry took it out: this is another child.
                    anew = self._id(parts, execution, operation.key, execution.generation, attempt)
                    fact = structs.replace(fact, id=anew)
                    existing = await parts.holder.ask(execution, LookAt(anew))
            effects = self._effects(fact, existing)
        except (ExecutionConflict, ValueError) as error:
            data, settled = settle_failure(error, execution_id=execution.id, what=str(operation))
            return Outcome(parts.values.seal(data), error=settled)
        started = Started(fact.id, fact.change_id, execution.id, self.called and self.given is None)
        data, _ = parts.values.settle(started, Started, str(operation))
        return Outcome(data, value=started, effects=effects)

    def _id(self, parts: Parts, execution: Execution, key: OperationKey, generation: int, attempt: int = 1) -> str:
        """Under its parent; where the code gave none, from its place in the code, so that a replay finds the same."""
        if self.detached:
            return parts.entropy.new_id() if self.given is None else self.given
        name = child_name(key, generation, attempt) if self.given is None else self.given
        return check_name("id", f"{execution.id}/{name}", max_chars=limits.ID_MAX_CHARS)

    def _effects(self, fact: facts.Start, existing: Execution | None) -> Effects:
        adopts = None if self.parent_close is ParentClose.ABANDON else (fact.id, self.parent_close)
        if existing is None and not self.detached:
            return Effects(starts=fact, adopts=adopts)
        conflict = None if existing is None else conflict_with(existing, fact)
        if conflict is not None:
            raise conflict
        return Effects(tells=(facts.Tell(fact.change_id, fact.id, facts.encode_fact(fact)),), adopts=adopts)

    def decode(self, values: Values, data: bytes, what: object) -> Started:
        started = values.decode(data, Started, what)
        return started if started.by in ("", self.parent) else structs.replace(started, start=None)

    def given_up(self, parts: Parts, execution: Execution, too_late: JournalEntry | None) -> Effects:
        """It has begun all the same: of a child that is called, as if the wait for it was given up."""
        started = None if too_late is None else started_by(parts.values, execution.id, too_late)
        return cancelling(parts, execution, started.id) if self.called and started is not None else NO_EFFECTS


def started_by(values: Values, parent: str, entry: JournalEntry) -> Started | None:
    """What this execution has started; None for any other entry, and for what cannot be read."""
    if entry.op != START or entry.outcome != SUCCEEDED or entry.value is None:
        return None
    try:
        started: Started = values.decode(entry.value, Started, f"start of {entry.name!r}")
    except CodecHookFailed:
        raise
    except CodecError:
        return None
    return started if started.by == parent else None


def cancelling(parts: Parts, execution: Execution, child: str) -> Effects:
    """Nobody else holds it."""
    parent, reason = execution.id, f"given up by {execution.id!r}"
    return owing(
        parts,
        execution,
        child,
        lambda change_id: facts.CancelRequested(change_id=change_id, reason=reason, child_of=parent),
    )


def child_name(key: OperationKey, generation: int, attempt: int = 1) -> str:
    """`ship.1`; in a branch of the code `ship.2-1`; after `continue_as_new` or a restart `ship.1@3`, and so if a retry
    by hand runs it anew; if a later attempt does, `ship.1@3.2`."""
    scope, workflow, occurrence = key
    branch = f"{scope.rstrip('.').replace('.', '-')}-" if scope else ""
    life = f"@{generation}.{attempt}" if attempt > 1 else f"@{generation}" if generation > 1 else ""
    return f"{workflow}.{branch}{occurrence}{life}"


class AwaitChild(Wait):
    """`own` if this execution started it; `start` is the change id of that start. Of others, only the result of one
    that has ended, or is this execution's child, can be waited for: nobody would tell of it. `cancels`: giving the wait
    up gives the child up."""

    __slots__ = ("annotation", "cancels", "child", "limit", "start")

    OP: ClassVar = CHILD

    def __init__(
        self, child: str, annotation: Any, *, start: str | None, limit: Limit | None = None, cancels: bool = False
    ) -> None:
        self.child = child
        self.annotation = annotation
        self.start = start
        self.limit = limit
        self.cancels = cancels

    @property
    def name(self) -> str:
        return self.child

    @property
    def reason(self) -> str:
        return Reason.child(self.child)

    @property
    def what(self) -> str:
        return f"result of {self.child!r}"

    @property
    def looks_first(self) -> bool:
        return self.start is None

    async def look(self, mail: Mail, operation: Operation, until: int | None) -> Outcome | None:
        error = await self._not_ours(mail) if self.start is None else None
        end = None
        if error is None:
            try:
                end = await mail.ask(EndOfChild(self.child, self.start, until))
            except ExecutionNotFound as gone:
                error = gone
        if error is not None:
            data, settled = settle_failure(error, execution_id=mail.execution.id, what=str(operation))
            return Outcome(mail.values.seal(data), error=settled)
        return None if end is None else self._outcome(mail, operation, end)

    async def _not_ours(self, mail: Mail) -> Exception | None:
        child = await mail.ask(LookAt(self.child))
        if child is None:
            return ExecutionNotFound(mail.execution.namespace, self.child)
        if child.parent == mail.execution.id or child.status.terminal:
            return None
        return ExecutionRefused(
            self.child, Code.NOT_ALLOWED, f"is not a child of {mail.execution.id!r}: wait for it in a step"
        )

    def _outcome(self, mail: Mail, operation: Operation, end: ChildEnd) -> Outcome:
        data = end.value
        if end.status is Status.SUCCEEDED:
            return self.read(mail.values, operation, mail.execution.id, data or NOTHING)
        if data is not None:
            failure = decode_failure(mail.values.unseal(data))
            return Outcome(data, error=raised_again(failure, execution_id=mail.execution.id, what=str(operation)))
        if end.status is Status.CANCELLED:
            failed: Exception = was_cancelled(self.child, end.reason)
        elif end.status is Status.FAILED:
            failed = ExecutionConflict(self.child, existing=f"one that {end.cause}", given="a child")
        else:
            failed = ExecutionExpired(f"execution {self.child!r} {end.status}: {end.cause}")
        sealed, settled = settle_failure(failed, execution_id=mail.execution.id, what=str(operation))
        return Outcome(mail.values.seal(sealed), error=settled)

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return timed_out(parts, operation, execution_id, f"execution {self.child!r} did not end in time; it goes on")

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        return values.decode(data, self.annotation, what)

    def given_up(self, parts: Parts, execution: Execution, too_late: JournalEntry | None) -> Effects:
        return cancelling(parts, execution, self.child) if self.cancels and too_late is None else NO_EFFECTS
