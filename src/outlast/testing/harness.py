"""A user's own app in a small world of its own: a private store, a virtual clock, processes that can die.

    async with harness(app) as h:
        handle = await checkout.start(order)
        await h.clock.advance("90d")             # runs all that falls due, in order
        assert await handle.result() == "paid"   # or: time passes by itself while somebody waits for a result

The test is a client; workers are processes beside it, so that they can crash while the test goes on waiting. Nothing
global is touched: what is the app's own (its store, its time) is put back when the block ends.
"""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Unpack, cast

from outlast.app import App, WorkerKeywords, store_for
from outlast.authoring.step import Step
from outlast.authoring.workflow import Workflow
from outlast.client.handle import Handle
from outlast.client.info import Info
from outlast.errors import InvalidInput
from outlast.model.status import Status
from outlast.runtime.attempts.rehearsal import Divergence
from outlast.runtime.entropy import SeededEntropy
from outlast.store.port import Store
from outlast.testing.journal import Journal, journal_of
from outlast.testing.points import CrashPoints
from outlast.testing.virtual import VirtualClock, moment_ms
from outlast.testing.watched import WRITES, CrashPlan, journaled
from outlast.testing.world import Process, World

_log = logging.getLogger(__name__)

START = datetime(2030, 1, 1, tzinfo=UTC)
"""When it is, unless a test says otherwise: the same for every test, and in nobody's past."""


class Harness:
    """What `harness(app)` gives."""

    def __init__(self, app: App, world: World, settings: WorkerKeywords) -> None:
        self.app = app
        self.points = world.points
        """The store's own crash points, for those who test stores."""
        self._world = world
        self._settings = settings
        self._stack = AsyncExitStack()

    # ---- time -----------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> VirtualClock:
        return self._world.clock

    @property
    def auto_advance(self) -> bool:
        """Whether time passes by itself while somebody awaits a result and nothing can go on without."""
        return self._world.auto

    @auto_advance.setter
    def auto_advance(self, on: bool) -> None:
        self._world.auto = on
        self._world.activity.set()

    async def settle(self) -> None:
        """Until all that can happen now has happened; time stands still."""
        await self._world.advance_to(self.clock.now_ms())

    async def fire_timer(self, name: str) -> datetime:
        """Let time pass until the timer of that name (`sleep("7d", name="trial")`) is due, and what follows."""
        await self.settle()
        due_ms = await self._world.timer_due(name)
        if due_ms is None:
            pending = ", ".join(await self._world.timer_names()) or "none"
            raise AssertionError(f"no timer {name!r} is set; those that are: {pending}")
        await self._world.advance_to(max(due_ms, self.clock.now_ms()))
        return self.clock.now

    # ---- steps ----------------------------------------------------------------------------------------------------

    def stub(self, step: Step[Any, Any] | str, outcome: Any = None) -> Stub:
        """Let a step or transaction give a value, raise an exception, or call a function of the test instead.

        Its type, its retries and its timeout stay. What comes back counts its calls: `h.stub(charge, "paid").calls`.
        """
        name = _step_name("stub", step)
        made = Stub(name, outcome)
        self._world.stand_ins[name] = made
        return made

    def unstub(self, step: Step[Any, Any] | str) -> None:
        """Let a step be itself again."""
        self._world.stand_ins.pop(_step_name("unstub", step), None)

    # ---- crashes --------------------------------------------------------------------------------------------------

    def crash_at(self, point: str | Step[Any, Any] | None = None, *, nth: int = 1, when: When = "before") -> None:
        """Let the worker's process die, as by SIGKILL, then start another one.

        Without a point at the nth await whose outcome is recorded; with the name of a step (or timer, or event) at the
        nth of that name. `before`: it was done, and is not recorded. `after`: it is recorded, and the code does not
        know yet. The points `"commit"`, `"claim"` and `"write"` (either) count the worker's calls of the store.
        """
        if nth < 1:
            raise InvalidInput(f"nth must be at least 1, not {nth}")
        if when not in ("before", "after"):
            raise InvalidInput(f'when must be "before" or "after", not {when!r}')
        name = None if point is None else _step_name("crash_at", point)
        plan = CrashPlan(counts=_counter(name), left=nth, after=when == "after")
        for process in self._world.workers:
            process.store.plans.append(plan)

    async def crash(self) -> None:
        """Let every worker die now; `restart` starts another one."""
        await self._world.kill_workers()

    async def restart(self) -> None:
        """Start a worker where `crash` or `stop` left none."""
        if self._world.worker_of(self.app) is None:
            await self._world.start_worker(self.app, self._settings)

    @property
    def performed_again(self) -> list[str]:
        """What was recorded as done, and was done again all the same: nothing, or there is a bug in Outlast.

        (A step that `retry(from_step=…)` or a fork runs anew under an old key counts as well.)
        """
        return self._world.performed_again

    @property
    def crashes(self) -> int:
        """How many workers have died so far."""
        return self._world.crashes

    # ---- deploys --------------------------------------------------------------------------------------------------

    async def deploy(self, app: App, **settings: Unpack[WorkerKeywords]) -> None:
        """Another program on the same store: its client opens, and a worker of its own starts beside the others."""
        _check_app("deploy", app)
        await self._enter(app)
        await self._world.start_worker(app, settings)

    async def stop(self, app: App | None = None) -> None:
        """The worker of an app (its own, if none is named) drains and is gone. The client stays."""
        await self._world.stop_worker(app or self.app)

    # ---- looking --------------------------------------------------------------------------------------------------

    async def journal(self, execution: Handle[Any] | str) -> Journal:
        """What an execution has recorded, to assert on; all that can happen now has happened."""
        await self.settle()
        handle = self.app.execution(execution) if isinstance(execution, str) else execution
        return journal_of(handle.id, await handle.journal())

    async def info(self, execution: Handle[Any] | str) -> Info:
        """An execution as it is once all that can happen now has happened."""
        await self.settle()
        return await self.app.execution(execution if isinstance(execution, str) else execution.id).info()

    async def open_executions(self) -> list[Info]:
        await self.settle()
        return await self.app.find(status=[status for status in Status if not status.terminal], limit=1_000)

    async def replay(self, execution: Handle[Any] | str, *, app: App | None = None) -> Divergence | None:
        """Whether the code of the app (or of another one) still does what the execution has recorded: None, or where
        it does something else. Nothing is run and nothing is written.
        """
        await self.settle()
        return await self._world.rehearse(app or self.app, execution if isinstance(execution, str) else execution.id)

    # ---- life -----------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        await self._enter(self.app)
        await self._world.start_worker(self.app, self._settings)
        self._world.begin()

    async def end(self) -> None:
        await self._world.end()
        await self._stack.aclose()

    async def _enter(self, app: App) -> None:
        world = self._world
        stores: list[Process] = []

        def client_store() -> Store:
            process = world.new_process(app)
            stores.append(process)
            return cast("Store", process.store)

        self._stack.enter_context(
            app.elsewhere(
                store=client_store,
                timing=world.timing,
                entropy=world.entropy,
                url=world.url,
                namespace=world.namespace,
                doorbell=False,
                reconcile_shared=False,
            )
        )
        await self._stack.enter_async_context(app.client())
        world.add_client(app, stores[0])


When = Literal["before", "after"]


def _counter(point: str | None) -> Callable[[str, tuple[Any, ...]], int]:
    if point == "write":
        return lambda call, args: int(call in WRITES)
    if point in WRITES:
        return lambda call, args: int(call == point)

    def recorded(call: str, args: tuple[Any, ...]) -> int:
        entries = journaled(args[0]) if call == "commit" else []
        return sum(1 for entry in entries if point is None or entry.name == point)

    return recorded


def _check_app(what: str, app: object) -> None:
    if not isinstance(app, App):
        raise InvalidInput(f"{what} takes an app, not {app!r}")


def _step_name(what: str, step: object) -> str:
    if isinstance(step, str):
        return step
    if isinstance(step, Step):
        return cast("Step[Any, Any]", step).name
    instead = "; stub the steps that it calls" if isinstance(step, Workflow) and what == "stub" else ""
    raise InvalidInput(f"{what} takes a step, a transaction or a name, not {step!r}{instead}")


def _raises(outcome: object) -> bool:
    return isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException))


class Stub:
    """What is called instead of a step. `calls` holds the arguments of each call."""

    def __init__(self, name: str, outcome: Any) -> None:
        self.name = name
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._outcome = outcome

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        outcome = self._outcome
        if _raises(outcome):
            raise outcome
        if not callable(outcome):
            return outcome
        given: Any = outcome(*args, **kwargs)
        return await given if inspect.isawaitable(given) else given

    def __repr__(self) -> str:
        return f"<stub of step {self.name!r}, called {len(self.calls)} times>"


@asynccontextmanager
async def harness(
    app: App,
    *,
    url: str | None = None,
    start: datetime = START,
    auto_advance: bool = True,
    seed: int | None = None,
    **settings: Unpack[WorkerKeywords],
) -> AsyncGenerator[Harness]:
    """The app as the user wrote it, on a private store with a virtual clock, with a worker; closed with the block.

    The store is an SQLite file in a temporary folder, unless `url` names another that is empty. `seed` makes ids and
    random numbers of the engine the same every time. Settings are those of `app.run_worker`.
    """
    _check_app("harness", app)
    clock = VirtualClock(moment_ms("start", start))
    points = CrashPoints()
    with tempfile.TemporaryDirectory(prefix="outlast-", ignore_cleanup_errors=True) as folder:
        where = url or f"sqlite:///{Path(folder) / 'private.db'}?synchronous=NORMAL"  # nobody outlasts a test
        world = World(
            where,
            clock,
            lambda: store_for(where, clock=clock, points=points, inline=url is None),
            namespace=app.config.namespace,
            points=points,
            entropy=None if seed is None else SeededEntropy(seed),
        )
        world.auto = auto_advance
        opened = Harness(app, world, settings)
        try:
            await opened.begin()
            yield opened
        finally:
            await opened.end()
