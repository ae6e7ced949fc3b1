"""A durable operation of workflow code: named when it is called, settled when its outcome is in the journal.

What it does is its kind's to say: each kind is a class of its own in `operations/`.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future as ThreadFuture
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct

from outlast import limits
from outlast.codec.failures import decode_failure, encode_failure, failure_of, raised_again
from outlast.errors import ExecutionCancelled
from outlast.model.journal import SUCCEEDED, UPDATE_SCOPE, JournalEntry, OperationKey
from outlast.runtime.attempts.effects import NO_EFFECTS, Effects

if TYPE_CHECKING:
    import asyncio
    import contextvars

    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts

_PACKAGE = str(Path(limits.__file__).parent)  # all of Outlast, wherever this module lives
_LIBRARY = (_PACKAGE, str(Path(sys.modules["asyncio"].__file__ or "asyncio").parent))
_OURS: dict[int, CodeType] = {}
"""Code of Outlast that was seen below user code, by its `id`: to hash code takes longer than to compare file names."""


class Kind:
    """What an operation does. `Performed` (operations/performed.py) does something, `Wait` (operations/wait.py) waits
    for something durable."""

    __slots__ = ()

    OP: ClassVar[str]
    """Its word in the journal."""
    NOTED: ClassVar[bool] = True
    """Whether it is worth a note in the journal that the code gave it up."""

    @property
    def name(self) -> str:
        """Its name in the journal."""
        raise NotImplementedError

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        """What a recorded success comes to, the same live and replayed."""
        raise NotImplementedError

    def given_up(self, parts: Parts, execution: Execution, too_late: JournalEntry | None) -> Effects:
        """What it means for others that the code gave it up, without having seen its outcome; `too_late` is that, if
        there is one."""
        return NO_EFFECTS


class Outcome(Struct, frozen=True):
    """What the code will see, and its bytes for the journal."""

    data: bytes | None
    value: Any = None
    error: Exception | None = None
    tries: int = 1
    consumes: tuple[str, str] | None = None
    """The event (name, dedup) that is received by it, in the same commit."""
    effects: Effects = NO_EFFECTS
    """What it does to others, in the same commit."""
    unwinds: bool = False
    """It registers an undo."""
    entry: JournalEntry | None = None
    """Recorded already, with what it did."""

    @property
    def does_more(self) -> bool:
        """Than to be recorded."""
        return self.effects is not NO_EFFECTS or self.consumes is not None or self.unwinds


class Watcher(Protocol):
    def give_up(self, operation: Operation) -> None:
        """The code gave it up (a timeout, a failed sibling)."""
        ...


class Operation(Struct, eq=False):
    """One call, waiting for its outcome. `future` belongs to the code that called it.

    Where a future is handed out, it is called back itself if the code gives that up: a callback of its own would be
    four objects more.
    """

    key: OperationKey
    kind: Kind
    future: asyncio.Future[Any] | ThreadFuture[Any]
    context: contextvars.Context
    place: tuple[CodeType, int]
    """Its code, and where in it."""
    watcher: Watcher | None = None
    """Who hears of it if the code gives the future up."""
    doing: asyncio.Task[Any] | None = None
    """The task that performs it, if anything must be done for it."""
    dropped: bool = False
    """Nobody wants its outcome any more: the code gave it up, or the attempt has ended."""

    def __call__(self, future: asyncio.Future[Any]) -> None:
        if self.watcher is not None and future.cancelled():
            self.watcher.give_up(self)

    def unwatch(self) -> None:
        """The code has its outcome, or has given it up: a callback less to run."""
        if self.watcher is not None:
            self.future.remove_done_callback(self)  # type: ignore[union-attr]
            self.watcher = None

    @property
    def line(self) -> str:
        code, place = self.place
        numbers = (number for begin, end, number in code.co_lines() if begin <= place < end)
        return f"{code.co_filename}:{next(numbers, None) or code.co_firstlineno}"

    def __str__(self) -> str:
        return described(self.kind.OP, self.key)

    def __repr__(self) -> str:
        """Where asyncio tells of a future, it tells of who is called back."""
        return f"<{self}>"


class ResultOf(Struct, frozen=True):
    """What to call its result in an error: a text only if there is one."""

    operation: Operation

    def __str__(self) -> str:
        return f"result of {self.operation}"


def failed_with(values: Values, error: Exception, *, tries: int = 1) -> Outcome:
    """What an operation comes to that the engine itself cannot go on with."""
    return Outcome(values.seal(encode_failure(failure_of(error))), error=error, tries=tries)


def ended_with(what: object, raised: BaseException) -> RuntimeError:
    """What is told instead of an end that a future cannot carry, or that would end more than its own code."""
    error = RuntimeError(f"{what} ended with {type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


def was_cancelled(execution_id: str, reason: str) -> ExecutionCancelled:
    return ExecutionCancelled(f"execution {execution_id!r} was cancelled" + (f": {reason}" if reason else ""))


def carried(operation: Operation, error: Exception) -> Exception:
    """What a future can carry of it: a `def` child may end with StopIteration, and a deferred be rejected with it."""
    return ended_with(operation, error) if isinstance(error, StopIteration) else error


def recorded_outcome(values: Values, execution_id: str, operation: Operation, entry: JournalEntry) -> Outcome:
    """What a recorded operation comes to, decoded as it was the first time."""
    data = entry.value or b"null"
    if entry.outcome == SUCCEEDED:
        return Outcome(data, value=operation.kind.decode(values, data, ResultOf(operation)))
    failure = decode_failure(values.unseal(data))
    error = raised_again(failure, execution_id=execution_id, what=str(operation))
    return Outcome(data, error=error)


def described(op: str, key: OperationKey) -> str:
    scope, name, occurrence = key
    which = "" if occurrence == 1 else f", call {occurrence}"
    where = f" in branch {scope.rstrip('.')}" if scope and scope != UPDATE_SCOPE else ""
    return f"{op} {name!r}{which}{where}"


def calling_place(below: int) -> tuple[CodeType, int]:
    """Where user code called: the nearest frame outside of Outlast and asyncio; so many frames are Outlast's for sure.
    Which line that is, is found out if somebody asks (`Operation.line`)."""
    frame = sys._getframe(1 + below)  # pyright: ignore[reportPrivateUsage]
    while True:
        code = frame.f_code
        if id(code) not in _OURS:
            if not code.co_filename.startswith(_LIBRARY):
                break
            _OURS[id(code)] = code
        if frame.f_back is None:
            break
        frame = frame.f_back
    return code, frame.f_lasti
