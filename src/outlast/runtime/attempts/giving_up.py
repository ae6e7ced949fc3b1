"""What the code of an attempt gives up (a timeout, a failed sibling, a lost race) is noted in the journal, once.

The start of a called child that is on its way to the journal cannot be held back. Nobody but the call holds that child:
so the note waits for the start, and owes the child its cancel. A process that dies between the two leaves a start that
the replayed code gives up, and no note of it. That is made up for once all that is recorded was met.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outlast.machine.attempt import Note
from outlast.model.journal import START
from outlast.model.operation import OF_CHILDREN

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation


class GivingUp:
    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._unnoted: list[Operation] = []
        """Starts that are recorded, and that the replayed code gives up."""
        self._of_children: dict[asyncio.Task[None], None] = {}
        """Notes on their way that may owe a child its cancel."""

    def note(self, operation: Operation, settling: asyncio.Task[None] | None) -> None:
        """`settling` is under way with its outcome to the journal."""
        kind = operation.kind
        note = self._attempt.machine.note(operation.key, kind.OP, noted=kind.NOTED)
        if note is Note.NOW:
            self._note(operation, settling)
        elif note is Note.LATER:
            self._unnoted.append(operation)

    def replayed(self) -> None:
        """The code did what it had done before, so it is the same code."""
        unnoted, self._unnoted = self._unnoted, []
        for operation in unnoted:
            self._note(operation, None)

    def _note(self, operation: Operation, settling: asyncio.Task[None] | None) -> None:
        attempt, op = self._attempt, operation.kind.OP
        attempt.replay.given_up[operation.key] = op
        note = attempt.errand(self._write(operation, settling if op == START else None))
        if op in OF_CHILDREN:
            self._of_children[note] = None
            note.add_done_callback(self._of_children.pop)

    async def _write(self, operation: Operation, settling: asyncio.Task[None] | None) -> None:
        attempt = self._attempt
        if settling is not None:
            await asyncio.wait((settling,))
        too_late = attempt.replay.recorded.get(operation.key)
        effects = operation.kind.given_up(attempt.parts, attempt.execution, too_late)
        await attempt.lease.note_given_up(operation.key, operation.kind.OP, effects)

    async def settled(self) -> None:
        """Before the end: behind it, nobody cancels what the code gave up."""
        if self._of_children:
            await asyncio.wait(self._of_children)

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt
