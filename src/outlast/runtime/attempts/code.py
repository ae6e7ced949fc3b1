"""The user's workflow code under way, in its two colours: `async def` in a loop of its own, `def` in a thread.

Both look the same to the attempt: they begin, call operations, are idle or busy, can be cancelled, and end once.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from itertools import islice
from types import CoroutineType
from typing import Any, Protocol, cast

from outlast.errors import WrongPlace
from outlast.machine.attempt import AttemptMachine
from outlast.runtime.attempts.operation import Kind, Operation
from outlast.runtime.attempts.signals import Signal
from outlast.runtime.attempts.workflow_loop import Branch, LoopOwner, NobodysLoop, WorkflowLoop, without_loop


class Code(Protocol):
    def begin(self) -> None: ...

    def nudge(self) -> None:
        """Something may be deliverable: look when the code is idle."""
        ...

    def look(self) -> None:
        """Look now: asked in a callback of the real loop."""
        ...

    @property
    def can_move(self) -> bool:
        """Whether the code may go on by itself, without an outcome being delivered."""
        ...

    def cancel(self) -> None: ...

    def interject(self, call: Callable[[], None]) -> None:
        """Call this in the code's place, while it is idle."""
        ...

    def close(self) -> None: ...

    def lines(self) -> list[str]:
        """Where the code stands."""
        ...


class Owner(LoopOwner, Protocol):
    """Whose code it is."""

    def code_ended(self, value: Any, error: BaseException | None) -> None: ...


class Calls(Owner, Protocol):
    """Who begins what `def` code calls."""

    @property
    def machine(self) -> AttemptMachine[Operation, Any, Any]: ...

    @property
    def signal(self) -> type[Signal]: ...

    def operation(self, kind: Kind, future: ThreadFuture[Any], below: int = 0) -> Operation: ...

    def begin_call(self, operation: Operation) -> None: ...


LOOKED_AT_MAX = 10
"""A collection without a coroutine among so many of its first holds none that is kept there to be awaited later."""
_COLLECTIONS = (list, tuple, dict)
_NOWHERE = contextvars.Context()


class _Nobody(NobodysLoop):
    """Whoever would have liked to hear of the end has gone."""

    def code_ended(self, value: Any, error: BaseException | None) -> None:
        return None


_NOBODY = _Nobody()


async def _raises(error: Exception) -> Any:
    raise error


def _not_awaited(tasks: Iterable[asyncio.Task[Any]]) -> list[CoroutineType[Any, Any, Any]]:
    """What the code has called and keeps in its variables to await it later. It will, when it is replayed: Python need
    not complain that it never was. Every suspension looks: this is short of calls."""
    kept: list[CoroutineType[Any, Any, Any]] = []
    seen: set[object] = set()
    look: list[Any] = [task.get_coro() for task in tasks]
    while look:
        found: Any = look.pop()
        if type(found) is not CoroutineType or found in seen:
            continue
        coroutine = cast("CoroutineType[Any, Any, Any]", found)
        seen.add(coroutine)
        if (frame := found.cr_frame) is None:
            continue
        if not coroutine.cr_suspended and not coroutine.cr_running:
            kept.append(coroutine)
        look.append(coroutine.cr_await)
        for value in frame.f_locals.values():
            if type(value) is CoroutineType:
                look.append(value)
            elif type(value) in _COLLECTIONS and value:
                held: Iterable[Any] = cast("dict[Any, Any]", value).values() if type(value) is dict else value
                if [one for one in islice(held, LOOKED_AT_MAX) if type(one) is CoroutineType]:
                    look += held
    return kept


class AsyncCode:
    """An `async def` workflow."""

    __slots__ = ("_args", "_context", "_fn", "_kwargs", "_main", "_owner", "loop")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: contextvars.Context,
        owner: Owner,
        real: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = WorkflowLoop(real, owner)
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._context = context
        self._owner = owner
        self._main: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        self.loop.begin(self._make, self._began)

    def _make(self) -> None:
        try:
            code = self._fn(*self._args, **self._kwargs)
        except Exception as error:  # of a decorator around it, which is user code too
            code = _raises(error)
        self._main = Branch(code, self.loop, None, self._context)
        self.loop.tasks.add(self._main)

    def _began(self) -> None:
        """It has run until it first waited for something, or ended. Branches that it leaves have their turn before its
        end is told; most code leaves none."""
        main = self._main
        assert main is not None
        if main.done() and not self.loop.spins:
            self._done(main)
        else:
            main.add_done_callback(self._done)

    def _done(self, main: asyncio.Task[Any]) -> None:
        self.loop.tasks.discard(main)
        if self.loop.tasks:
            for branch in [*self.loop.tasks]:
                branch.cancel()
        if main.cancelled():
            self._owner.code_ended(None, asyncio.CancelledError())
        else:
            error = main.exception()
            self._owner.code_ended(None if error else main.result(), error)

    def nudge(self) -> None:
        self.loop.wake()

    def look(self) -> None:
        self.loop.look()

    @property
    def can_move(self) -> bool:
        return self.loop.spins

    def cancel(self) -> None:
        if self._main is not None and not self._main.done():
            self._main.cancel()

    def interject(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def close(self) -> None:
        """Let go of the code at once. Its `finally` bodies run; durable operations in them raise and write nothing."""
        if self.loop.tasks:
            self._leave_branches()
        self.loop.close()
        # No circle is left: all of it is freed now, and not by a collection of garbage.
        self._main, self._owner, self._context = None, _NOBODY, _NOWHERE

    def _leave_branches(self) -> None:
        loop = self.loop
        kept = _not_awaited(loop.tasks)
        for _ in range(100):  # code that awaits again while it is being closed gets a hundred chances
            for branch in [*loop.tasks]:
                branch.cancel()
            loop.pump()
            if not loop.tasks:
                break
        for coroutine in kept:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def lines(self) -> list[str]:
        found: list[str] = []
        for branch in self.loop.tasks:
            frames = branch.get_stack(limit=1)
            found += [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames]
        return found


class ThreadCode:
    """A `def` workflow: it runs in a thread and blocks there for each operation."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: contextvars.Context,
        owner: Calls,
        real: asyncio.AbstractEventLoop,
    ) -> None:
        self._real = real
        self._call = (fn, args, kwargs)
        self._context = context
        self._owner = owner
        self._waiting: ThreadFuture[Any] | None = None
        self._cancel_asked = False
        self._nudged = False
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        self.thread = threading.Thread(target=self._context.run, args=(self._run,), name="outlast def", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        fn, args, kwargs = self._call
        value, error = None, None
        try:
            value = fn(*args, **kwargs)
        except BaseException as raised:
            error = raised
        self._tell(self._owner.code_ended, value, error)

    def _tell(self, callback: Callable[..., Any], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending, and another worker will go on
            self._real.call_soon_threadsafe(callback, *args)

    def call(self, kind: Kind) -> Any:
        """An operation: blocks the thread until its outcome is durable."""
        if threading.current_thread() is not self.thread:
            raise WrongPlace(
                f"{kind.OP} {kind.name!r} was called in a thread of the workflow's own, whose order nobody can replay: "
                "call it in the workflow's thread, or make it an async def workflow and use asyncio.gather"
            )
        future: ThreadFuture[Any] = ThreadFuture()
        self._real.call_soon_threadsafe(self._begin, self._owner.operation(kind, future), future)
        return future.result()

    def _begin(self, operation: Operation, future: ThreadFuture[Any]) -> None:
        """`def` code hears of a cancel at its next operation. When that has begun, the code is idle."""
        owner = self._owner
        if owner.machine.left:
            future.set_exception(owner.signal())
        elif self._cancel_asked:
            self._cancel_asked = False
            future.set_exception(asyncio.CancelledError())
        else:
            if owner.machine.hears_cancel():
                owner.machine.outstanding[operation.key] = operation
            else:
                owner.begin_call(operation)
            self._waiting = future
            self.nudge()

    def delivered(self) -> None:
        self._waiting = None

    def nudge(self) -> None:
        if not self._nudged:
            self._nudged = True
            self._real.call_soon(self.look)

    def look(self) -> None:
        self._nudged = False
        if self._waiting is not None:
            self._owner.idle()

    @property
    def can_move(self) -> bool:
        return self._waiting is None

    def cancel(self) -> None:
        future, self._waiting = self._waiting, None
        if future is not None and not future.done():
            future.set_exception(asyncio.CancelledError())
        else:
            self._cancel_asked = True

    def interject(self, call: Callable[[], None]) -> None:
        """The thread is blocked meanwhile: the two never run together."""
        without_loop(call)
        self.nudge()

    def close(self) -> None:
        """The thread leaves the code at its operation, or at the next one."""
        future, self._waiting = self._waiting, None
        if future is not None and not future.done():
            future.set_exception(Signal())

    def lines(self) -> list[str]:
        return []
