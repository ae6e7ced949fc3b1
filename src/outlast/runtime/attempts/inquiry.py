"""Queries: what the code of an execution shows, read from its state without writing anything.

The state of an execution is what its code makes of its journal. Where the code is at rest in this process, it is asked
as it stands. Otherwise the journal is replayed here, as in a rehearsal, up to its end: nothing that the code would do
next is begun. It does not matter whether the execution runs elsewhere, sleeps, or has ended: its journal is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import ExecutionRefused, OutlastError
from outlast.machine.changes import Code
from outlast.model.status import Status
from outlast.runtime.attempts.endings import Diverged, Ending, Gone, Raised
from outlast.runtime.attempts.rehearsal import PATIENCE_S, Rehearsal, as_claimed, played
from outlast.runtime.holder import BegunAnew
from outlast.runtime.parts import Parts, WorkflowDefinition

if TYPE_CHECKING:
    from outlast.model.execution import Execution
    from outlast.model.lease import ClaimedExecution
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation

DefinitionOf = Callable[[str, str], WorkflowDefinition]
"""By name and version; `UnknownWorkflow` if this program does not have it."""
ResidentOf = Callable[[str, str], "LiveAttempt | None"]
"""The attempt that this process runs of an execution, if it does."""


class Inquiries:
    def __init__(self, parts: Parts, definition_of: DefinitionOf, resident_of: ResidentOf) -> None:
        self._parts = parts
        self._definition_of = definition_of
        self._resident_of = resident_of

    async def ask(self, execution: Execution, name: str, data: bytes) -> bytes:
        """The answer, encoded: whoever asked shares nothing with the code."""
        live = self._resident_of(execution.namespace, execution.id)
        # Of the same epoch: a lease that was lost unnoticed has fallen behind.
        held = live is not None and execution.status is Status.ACTIVE and execution.epoch == live.execution.epoch
        # Not while a commit is under way: it may be recorded already, and others have seen so.
        if live is not None and held and live.at_rest and not live.busy:
            return live.asked.inquire(name, data)
        return await self._replayed(execution, name, data)

    async def _replayed(self, seen: Execution, name: str, data: bytes) -> bytes:
        execution = seen
        while True:
            definition = self._definition_of(execution.workflow, execution.version)
            claimed = await as_claimed(self._parts, execution)
            inquiry = None if claimed is None else _Inquiry(self._parts, claimed, definition, name, data)
            ending, lines = (None, []) if inquiry is None else await played(inquiry, PATIENCE_S)
            anew = await self._parts.holder.ask(execution, BegunAnew())
            if anew is None:
                return _answer(execution, inquiry, ending, lines)
            execution = anew

    async def close(self) -> None:
        await self._parts.close()


def _answer(execution: Execution, inquiry: _Inquiry | None, ending: Ending | None, lines: list[str]) -> bytes:
    if inquiry is None:
        raise ExecutionRefused(execution.id, Code.NOT_ALLOWED, "its code has not begun: it has no input yet")
    if inquiry.answer is not None:
        return inquiry.answer
    if inquiry.error is not None:
        raise inquiry.error
    match ending:
        case None:
            where = ", ".join(lines) or "an unknown line"
            raise TimeoutError(
                f"the code of execution {execution.id!r} does not come to rest within {PATIENCE_S:g} s, at {where}"
            )
        case Diverged(error) | Raised(error):  # the latter: its arguments are not what this code takes
            raise error
        case _:
            raise OutlastError(f"execution {execution.id!r} was not asked: {ending}")


class _Inquiry(Rehearsal):
    """Replays all that is recorded, and asks when the code is idle there, or has ended."""

    def __init__(
        self, parts: Parts, claimed: ClaimedExecution, workflow: WorkflowDefinition, name: str, data: bytes
    ) -> None:
        super().__init__(parts, claimed, workflow)
        self._question = (name, data)
        self.answer: bytes | None = None
        self.error: Exception | None = None

    def _begin(self, operation: Operation) -> None:
        """What comes next is not begun; other branches may have recorded more."""

    def nothing_runs(self) -> None:
        self._ask()
        self._end(Gone("asked"))

    def finish(self, ending: Ending) -> None:
        """The code has ended: what it leaves can be asked, too."""
        self._ask()
        super().finish(ending)

    def _ask(self) -> None:
        try:
            self.answer = self.asked.inquire(*self._question)
        except Exception as error:
            self.error = error
