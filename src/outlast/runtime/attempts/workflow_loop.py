"""A small event loop in which one attempt's workflow code runs: deterministic, without I/O or a clock of its own.

Workflow code must take the same way again when it is replayed, so it runs in a loop that only knows what is durable:
callbacks in the order given, tasks whose scopes are numbered as they are created, and futures that durable operations
resolve one at a time. When nothing is left to do, the loop is idle, and the attempt knows exactly what is awaited.
`asyncio.gather`, `TaskGroup`, `as_completed`, `wait` and `timeout` work as ever. Sockets, threads and subprocesses do
not: they belong into steps, which run in the process's real loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from outlast import limits
from outlast.errors import InvalidDuration, LimitExceeded, WrongPlace
from outlast.model.journal import OperationKey
from outlast.runtime.attempts.signals import LEFT

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SLICE = 1_000
"""After so many callbacks the real loop has its turn: leases are renewed while a long journal is replayed."""
SPIN_SLICES = 20
"""Code that is not idle for so long waits by going round in circles (`asyncio.sleep(0)`): it is given what came."""
REST_S = 0.001
"""… and the real loop rests between its slices. One that never does keeps the interpreter's lock from the threads of
this process: what such code waits for would take seconds to be written."""


class LoopOwner(Protocol):
    """Whose code runs in a loop. Named by itself and not by its methods: each would be an object more per attempt."""

    now_ms: int
    """The time of the last outcome that the code has seen, by the store's clock: a replay sees the same."""

    @property
    def context(self) -> contextvars.Context:
        """In which the code is looked after: of its loop, and not of whoever woke it."""
        ...

    def idle(self) -> bool:
        """Asked when nothing is ready: whether there is more to run."""
        ...

    def set_timer(self, when_s: float, fire: Callable[[], None]) -> asyncio.Future[Any]:
        """Makes a durable timer; its future is cancelled with it."""
        ...


class NobodysLoop:
    """Of a loop that is closed."""

    context = contextvars.Context()
    now_ms = 0

    def idle(self) -> bool:
        return False

    def set_timer(self, when_s: float, fire: Callable[[], None]) -> NoReturn:
        raise RuntimeError("the workflow's code has ended")


_NOBODY = NobodysLoop()


class Scope:
    """A branch of the code: operations are numbered per name within it, tasks that it creates are its children."""

    __slots__ = ("_children", "_occurrences", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._children = 0
        self._occurrences: dict[str, int] = {}

    def child(self) -> Scope:
        self._children += 1
        return Scope(f"{self.path}{self._children}.")

    def occurrence(self, name: str) -> int:
        self._occurrences[name] = number = self._occurrences.get(name, 0) + 1
        return number


scope_var: contextvars.ContextVar[Scope] = contextvars.ContextVar("outlast_scope")

SCOPE_MARKS_CHARS = 24
"""What stands beside a call has a scope that is so much longer, at most."""
SCOPE_OWN_MAX_CHARS = limits.SCOPE_MAX_CHARS - SCOPE_MARKS_CHARS


def next_key(name: str) -> OperationKey:
    """The key of the operation that the running code calls now: its place in the order of the program."""
    scope = scope_var.get()
    path = scope.path
    if len(path) > SCOPE_OWN_MAX_CHARS:
        actual, limit = len(path), SCOPE_OWN_MAX_CHARS
        raise LimitExceeded("nested branches (scope)", actual=actual, limit=limit, unit="characters")
    return path, name, scope.occurrence(name)


FIRST_NUMBER_BIT = 16
"""The bits of a hash below this one count what a loop made, so that a small set keeps the order of creation. The bits
above are the time when the code began: asyncio holds the tasks of all loops in one set, where they must not collide."""


_init_task: Callable[..., None] = vars(asyncio.Task)["__init__"]  # by `super()` it takes twice as long


class Branch(asyncio.Task[T]):
    """A task of workflow code. Its hash is its number in the order of creation, not its address in memory: a set of
    tasks, of the user or of asyncio, has the same order when the code is replayed."""

    __slots__ = ("_number",)

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: WorkflowLoop,
        name: str | None,
        context: contextvars.Context,
    ) -> None:
        loop.number += 1
        self._number = loop.number  # first: asyncio puts a new task into a set
        _init_task(self, coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[T]):
    """A future that asyncio makes for workflow code (`shield`, a lock, a queue). Its hash is a number like that of
    `Branch`, given when it is first asked for: few futures are ever in a set, and how many asyncio makes differs
    between versions of Python."""

    __slots__ = ("_number",)

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            loop = cast("WorkflowLoop", self.get_loop())
            loop.number += 1
            self._number = loop.number
            return self._number


class _Call(asyncio.Handle):
    """What is to be called next; made with every turn of the code, without what debugging would take."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: WorkflowLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Pumped by the real loop."""

    def __init__(self, real: asyncio.AbstractEventLoop, owner: LoopOwner) -> None:
        self._real = real
        self._owner = owner
        self._context = owner.context
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: dict[asyncio.TimerHandle, asyncio.Future[Any]] = {}
        self._pump_due = False
        self._pumping = False
        self._closed = False
        self.number = 0
        """Of the task or future that was numbered last."""
        self._slices = 0
        self._circles = False
        """Whether it went round in circles when it was last looked at."""
        self.tasks: set[asyncio.Task[Any]] = set()
        if "set" not in _ASYNCIO_TASKS:
            _ASYNCIO_TASKS["set"] = _set_in_given_order

    @property
    def spins(self) -> bool:
        """Whether the code goes round in circles: it holds the worker."""
        return bool(self._ready)

    # ---- running --------------------------------------------------------------------------------------------------

    def begin(self, make: Callable[[], None], began: Callable[[], None]) -> None:
        """Let the first task be made, and run it at once: no turn of the real loop is waited for. `began` is called
        when it has had its first turn, before anything else has one."""
        self._pump_due = True
        self.number = self._owner.now_ms << FIRST_NUMBER_BIT
        make()
        self.pump(began)

    def look(self) -> None:
        """Run at once, unless that is due anyway: of code that goes round in circles, every look would else leave one
        pump more behind."""
        if not self._pump_due:
            self.pump()

    def go_on(self, deliver: Callable[[Unpack[Ts]], None], *args: *Ts) -> bool:
        """Deliver this to code that rests, and run at once what it wakes. False, if something runs or is about to."""
        if self._ready or self._pump_due or self._pumping or self._closed:
            return False
        self._pump_due = True  # what is delivered need not ask for a pump
        try:
            deliver(*args)
        except BaseException:
            self._pump_due = False
            raise
        self.pump()
        return True

    def pump(self, began: Callable[[], None] | None = None) -> None:
        """Run until idle, or for a slice."""
        self._pump_due = False
        if self._pumping or self._closed:
            return
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._finalize)  # firstiter and finalizer: by name it takes three times as long
        self._pumping = True
        left = SLICE
        try:
            if began is not None:
                self._run(1)
                began()
            while True:
                if self._ready:
                    left = self._run(left)
                    if self._ready:
                        self._slices += 1
                        if self._slices < SPIN_SLICES:
                            break
                    self._circles = bool(self._ready)
                    self._slices = 0
                if not self._owner.idle():
                    break
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self._pumping = False
        if self._ready:
            self.wake()

    def _run(self, most: int) -> int:
        """Run what is ready, but not more than so much; what is left of that. Only then this is the running loop: to
        say so takes as long as many a callback."""
        ready = self._ready
        events._set_running_loop(self)
        try:
            while ready and most:
                most -= 1
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:  # as `Handle._run` does, with a call less
                    handle._context.run(handle._callback, *handle._args)
                except SystemExit:
                    continue  # its task has ended with it; it does not end the worker
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    self._complain(handle, error)
        finally:
            events._set_running_loop(self._real)
        return most

    def _complain(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": f"exception in {handle!r}", "exception": error, "handle": handle})

    def _finalize(self, agen: AsyncGenerator[Any, Any]) -> None:
        """An async generator that was left before its end: its `finally` runs here, in a branch of the code."""
        if events._get_running_loop() is self:
            self.create_task(agen.aclose())
        elif not self._closed:
            self.call_soon_threadsafe(self._finalize, agen)

    def wake(self) -> None:
        """Look soon whether there is something to run or to deliver."""
        if not self._pump_due and not self._pumping and not self._closed:
            self._pump_due = True
            if self._circles:
                self._real.call_later(REST_S, self.pump, context=self._context)
            else:
                self._real.call_soon(self.pump, context=self._context)

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self._owner = _NOBODY

    # ---- what asyncio asks of a loop ------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, self, context)
        self._ready.append(handle)
        if not self._pumping:
            self.wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, self, context)
        self._real.call_soon_threadsafe(self._take, handle)
        return handle

    def _take(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        self.wake()

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if when - self.time() > limits.DURATION_MAX_MS / 1_000:
            raise InvalidDuration(f"a timer of {when - self.time():,.0f} s is over a hundred years")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers[timer] = self._owner.set_timer(when, lambda: self._fire(timer))
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if self._timers.pop(timer, None) is not None:
            self._ready.append(timer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        durable = self._timers.pop(handle, None)
        if durable is not None:
            durable.cancel()

    def time(self) -> float:
        """The code's: it stands still between two outcomes."""
        return self._owner.now_ms / 1_000

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A branch with a scope of its own, numbered in the order of creation, which is the order of the program."""
        context = contextvars.copy_context() if context is None else context.copy()
        parent = context.get(scope_var)
        context.run(scope_var.set, Scope() if parent is None else parent.child())
        task = Branch(coro, self, name, context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard, context=context)
        return task

    get_debug = staticmethod(bool)  # pyright: ignore[reportAssignmentType]
    """No. Every future and every task asks, and nothing answers faster."""

    def get_task_factory(self) -> None:
        """None: tasks are branches, which this loop makes itself. Libraries ask for it (anyio)."""

    def is_running(self) -> bool:
        return self._pumping

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), LEFT):
            return  # a branch was left with the code: nobody is there who would retrieve that
        self._real.call_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._real.default_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        return None

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> NoReturn:
        self._belongs_into_a_step("a thread")

    async def create_connection(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._belongs_into_a_step("a connection")

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._belongs_into_a_step("a name lookup")

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._belongs_into_a_step("a subprocess")

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._belongs_into_a_step("a subprocess")

    def _belongs_into_a_step(self, what: str) -> NoReturn:
        raise WrongPlace(
            f"{what} cannot be used in a workflow's own code, which is replayed after a crash: "
            "move it into a step (@app.step), where it runs once and is recorded"
        )


def without_loop(call: Callable[[], T]) -> T:
    """Call what may not begin anything that goes on by itself: a plain function in the thread of a loop."""
    outer = events._get_running_loop()
    events._set_running_loop(None)
    try:
        return call()
    finally:
        events._set_running_loop(outer)


_ASYNCIO_TASKS: dict[str, Any] = asyncio.tasks.__dict__


def _set_in_given_order(*members: Iterable[Any]) -> Any:
    """Stands for `set` in the module `asyncio.tasks`, from the first workflow loop of the process on. `as_completed`
    makes a task of each coroutine in the order of a set of them. Coroutines are hashed by their address, which nothing
    can change, so a replay would number the tasks in another order. Outside of a workflow loop it is the plain `set`.
    It stands in the module, not around `as_completed`, which other modules may have imported by name before."""
    if members and isinstance(events._get_running_loop(), WorkflowLoop):
        return dict.fromkeys(members[0])
    return set[Any](*members)
