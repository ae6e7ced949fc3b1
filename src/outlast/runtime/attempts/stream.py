"""What an attempt shows while it works: the frames of its stream, and how far it is.

Frames wait here for a moment, and are written together, in the order in which they were emitted, fenced by the lease.
They are written before the outcome of the step that emitted them, and before the execution waits or ends.

A step that is performed again emits again. Workflow code that is replayed does not: each of its frames has a number of
its own, and what the stream has is left out. Progress is a gauge: only the newest is written, and none of a replay.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.errors import CorruptState, LimitExceeded
from outlast.machine import facts
from outlast.model.journal import OperationKey
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.attempts.workflow_loop import scope_var
from outlast.runtime.holder import FRAMES_PAGE, ReadFrames

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt

EMIT = "outlast:emit"
ROOM_POLL_S = 0.002


class Envelope(Struct, frozen=True, omit_defaults=True):
    """A frame as it is stored: what was emitted, by which step or (`number`) by the workflow's own code."""

    value: msgspec.Raw
    step: str = ""
    number: str = ""
    epoch: int = 0


class Progress(Struct, frozen=True):
    """How far it is: `fraction` of all the work, from 0 to 1, and in words."""

    fraction: float
    text: str = ""


class Stream:
    """Of one attempt. `emit` and `show` may be called from any thread."""

    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt: LiveAttempt = weakref.proxy(attempt)  # no circle: what has ended is freed at once
        self._real = attempt.real
        self._thread = attempt.thread_id
        self._frames: list[tuple[str, bytes]] = []
        self._written = 0
        self._known: set[str] | None = None
        self._progress: Progress | None = None
        self._writing: asyncio.Task[None] | None = None
        self._lost = False

    # ---- called by user code --------------------------------------------------------------------------------------

    def emit(self, frame: Any, operation: OperationKey | None) -> None:
        """One frame more, of a step or of workflow code. Complains at once about what cannot be stored."""
        attempt, values = self._attempt, self._attempt.parts.values
        data = values.plain(frame, "frame")
        values.refuse_unstorable(frame, "frame")
        number = "" if operation is not None else self._number()
        step = "" if operation is None else operation[1]
        envelope = Envelope(msgspec.Raw(data), step, number, attempt.execution.epoch)
        with encoding():
            sealed = values.seal(msgspec.json.encode(envelope), "frame")
        if len(sealed) > limits.FRAME_MAX_BYTES:
            raise LimitExceeded("frame", actual=len(sealed), limit=limits.FRAME_MAX_BYTES, unit="bytes")
        if self._written >= limits.FRAMES_MAX:
            raise LimitExceeded("frames", actual=self._written + 1, limit=limits.FRAMES_MAX, unit="frames")
        if self._finds_room():
            self._frames.append((number, sealed))
            self._wake()

    def show(self, progress: Progress) -> None:
        self._progress = progress
        self._wake()

    def _number(self) -> str:
        """Which frame of the workflow's code it is: the same when it is replayed."""
        scope = scope_var.get()
        return f"{self._attempt.execution.journal_generation}:{scope.path}{scope.occurrence(EMIT)}"

    def _finds_room(self) -> bool:
        """A thread waits until there is room. A loop cannot: its code must let others run now and then."""
        most = limits.FRAMES_UNWRITTEN_MAX
        if self.on_the_loop and len(self._frames) >= most:
            raise LimitExceeded("frames that wait to be written", actual=most + 1, limit=most, unit="frames")
        while len(self._frames) >= most:
            if self._attempt.over:
                return False  # nobody writes any more
            time.sleep(ROOM_POLL_S)
        return True

    @property
    def on_the_loop(self) -> bool:
        """Whether the caller is in the thread of the loop."""
        return threading.get_ident() == self._thread

    def _wake(self) -> None:
        if self.on_the_loop:
            self._write()
        else:
            self._real.call_soon_threadsafe(self._write)

    # ---- writing --------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether something waits to be written. The progress of a replay is no news, until the code goes on."""
        return bool(self._frames) or self._news() is not None or self._writing is not None

    def replayed(self) -> None:
        """The code has caught up with its journal."""
        if self._progress is not None:
            self._write()

    def _write(self) -> None:
        if self.owes and self._writing is None and not self._attempt.over:
            self._attempt.accompany(self._begin())

    def _begin(self) -> asyncio.Task[None]:
        self._writing = self._real.create_task(self._write_all(), name="outlast stream")
        return self._writing

    async def flushed(self) -> None:
        """All that was emitted is written; or nothing more can be, and whoever writes next will learn why."""
        while self.owes and not self._lost:
            await asyncio.gather(self._writing or self._begin(), return_exceptions=True)

    async def _write_all(self) -> None:
        try:
            while self._frames or self._news() is not None:
                progress, batch = self._news(), self._frames[:FRAMES_PAGE]
                del self._frames[: len(batch)]
                await self._append([sealed for number, sealed in batch if not await self._is_written(number)])
                if progress is not None:
                    await self._tell(progress)
                    if self._progress is progress:
                        self._progress = None
        except BaseException:
            self._lost = True
            raise
        finally:
            self._writing = None

    def _news(self) -> Progress | None:
        return None if self._attempt.replay and not self._attempt.over else self._progress

    async def _append(self, frames: list[bytes]) -> None:
        if not frames:
            return
        attempt = self._attempt
        self._written = await attempt.parts.holder.append(attempt.execution, attempt.lease.new_id(), frames)

    async def _is_written(self, number: str) -> bool:
        """Whether the stream has this frame of the workflow's code, from an attempt before."""
        if not number:
            return False
        if self._known is None:
            self._known = await self._numbers()
        return number in self._known

    async def _numbers(self) -> set[str]:
        e = self._attempt.execution
        known: set[str] = set()
        if e.epoch == 1 and e.generation == 1:
            return known
        after = 0
        while True:
            page = await self._attempt.lease.ask(ReadFrames(after))
            known |= {envelope_of(self._attempt.parts.values.unseal(frame.value)).number for frame in page}
            if len(page) < FRAMES_PAGE:
                return known
            after = page[-1].seq

    async def _tell(self, progress: Progress) -> None:
        attempt = self._attempt
        value = attempt.parts.values.seal(msgspec.json.encode(progress), "progress")
        await attempt.lease.tell(
            facts.Progressed(change_id=attempt.lease.new_id(), epoch=attempt.execution.epoch, value=value)
        )


_envelope = msgspec.json.Decoder(Envelope)


def envelope_of(data: bytes) -> Envelope:
    try:
        return _envelope.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptState(f"a frame that Outlast did not write: {error}") from error
