"""The composition root: from options to parts that work together.

app = App()                      # $OUTLAST_URL, else sqlite:///outlast.db

async with app: ...              # embedded: client, engine, worker and reconcilers in this process
async with app.client(): ...     # a client only: starts, waits, tells; runs no user code
app.run_worker()                 # a worker process; also `outlast worker module:app`
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from msgspec import structs

from outlast import limits
from outlast.authoring.changed import warn_of_changed_code
from outlast.authoring.decorators import StepDecorator, TransactionDecorator, WorkflowDecorator
from outlast.authoring.registry import Registry
from outlast.authoring.step import AsyncStep, StepOptions, SyncStep, check_step_options, make_step
from outlast.authoring.transaction import AsyncTransaction, SyncTransaction, make_transaction
from outlast.authoring.workflow import (
    AsyncWorkflow,
    Bound,
    SyncWorkflow,
    WorkflowKeywords,
    check_bound,
    make_workflow,
    workflow_options,
)
from outlast.client.client import Client
from outlast.client.handle import Handle
from outlast.client.info import CompletionInfo, Info
from outlast.client.portal import call_in, portal, refuse_on_loop
from outlast.client.waiters import Waiters
from outlast.codec.values import CodecHook, Values
from outlast.config import Config
from outlast.errors import InvalidConfig, InvalidInput, StoreClosed, WrongPlace
from outlast.machine.changes import lane_channel, partition_channel
from outlast.model.duration import Duration
from outlast.model.names import check_name
from outlast.model.status import Status
from outlast.reconcilers import Reconcilers, rows_for
from outlast.reconcilers.sharing import Sharing
from outlast.runtime.current import connection_var, inside
from outlast.runtime.engine import Engine
from outlast.runtime.entropy import Entropy, SystemEntropy
from outlast.runtime.fast_path import FastPath
from outlast.runtime.inquiry import Inquiries
from outlast.runtime.parts import Parts, WorkflowDefinition
from outlast.runtime.settings import WorkerKeywords, WorkerSettings
from outlast.runtime.timing import Timing
from outlast.runtime.watchdog import Watchdog
from outlast.runtime.worker import Worker, WorkerOptions
from outlast.runtime.workflow_loop import WorkflowLoop
from outlast.store.port import RESCAN, Clock, Filter, Points, Query, Store, Subscription
from outlast.tokens import Tokens

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger(__name__)

RELISTEN_S = 1.0


def store_for(url: str, *, clock: Clock | None = None, points: Points | None = None) -> Store:
    """The store that a URL names."""
    scheme = url.partition("://")[0] if "://" in url else "sqlite"
    if scheme == "sqlite":
        from outlast.store.sqlite import SqliteStore

        return SqliteStore(url, clock=clock, points=points)
    if scheme in ("postgresql", "postgres"):
        try:
            from outlast.store.postgres import PostgresStore
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise InvalidConfig(f"{scheme}:// needs a driver: pip install 'outlast[postgres]'") from missing
        return PostgresStore(url, clock=clock, points=points)
    if scheme.partition("+")[0] in ("valkey", "valkeys", "redis", "rediss"):
        try:
            from outlast.store.valkey import ValkeyStore
        except ModuleNotFoundError as missing:
            if missing.name != "hiredis":
                raise
            raise InvalidConfig(f"{scheme}:// needs a driver: pip install 'outlast[valkey]'") from missing
        return ValkeyStore(url, clock=clock, points=points)
    raise InvalidConfig(
        f"no store for {scheme}://: use sqlite:///file.db, postgresql://user@host/database or valkey://host:6379"
    )


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop for a worker process, where it is installed (`outlast[uvloop]`); None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class App:
    """The workflows and steps of a program, and the store that they live in."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        lease_ttl: Duration | None = None,
        codec: CodecHook | None = None,
        store: Callable[[], Store] | None = None,
        entropy: Entropy | None = None,
        timing: Timing | None = None,
        **options: Any,
    ) -> None:
        self.config = Config.load(os.environ, url=url, namespace=namespace, lease_ttl=lease_ttl, **options)
        self.registry = Registry()
        self.values = Values(codec, allow_pickle=self.config.allow_pickle)
        self.entropy: Entropy = entropy or SystemEntropy()
        self.timing: Timing | None = timing
        self._make_store = store or (lambda: store_for(self.config.url))
        self._opened: Opened | None = None
        self._opening = False

    # ---- authoring ------------------------------------------------------------------------------------------------

    @overload
    def step(  # pyright: ignore[reportOverlappingOverload]: the first that fits is meant
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[StepOptions]
    ) -> AsyncStep[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, **options: Unpack[StepOptions]) -> SyncStep[P, R]: ...
    @overload
    def step(self, /, **options: Unpack[StepOptions]) -> StepDecorator: ...
    def step(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """`@app.step`, `@app.step(retry=…, timeout=…)`, or `app.step(callable, name=…)`."""
        checked = check_step_options(options)
        if fn is not None:
            return make_step(fn, checked)

        def decorate(decorated: object) -> Any:
            return make_step(decorated, checked)

        return decorate

    @overload
    def transaction(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[StepOptions]
    ) -> AsyncTransaction[P, R]: ...
    @overload
    def transaction(self, fn: Callable[P, R], /, **options: Unpack[StepOptions]) -> SyncTransaction[P, R]: ...
    @overload
    def transaction(self, /, **options: Unpack[StepOptions]) -> TransactionDecorator: ...
    def transaction(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """`@app.transaction`: a step whose SQL (`outlast.connection()`) is committed with the journal, exactly once."""
        checked = check_step_options(options)

        def decorate(decorated: object) -> Any:
            return make_transaction(decorated, checked)

        return decorate if fn is None else decorate(fn)

    @overload
    def workflow(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[WorkflowKeywords]
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[P, R], /, **options: Unpack[WorkflowKeywords]) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(self, /, **options: Unpack[WorkflowKeywords]) -> WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """`@app.workflow`, or `@app.workflow(name=…, version=…, lane=…, retry=…, timeout=…, deadline=…)`."""
        checked = workflow_options(options)

        def decorate(decorated: object) -> Any:
            workflow = make_workflow(self, decorated, checked)
            self.registry.add(workflow)
            return workflow

        return decorate if fn is None else decorate(fn)

    def definition_of(self, workflow: str, version: str) -> WorkflowDefinition:
        """What the runtime must know of a workflow; `UnknownWorkflow` if it is not registered."""
        return self.registry.get(workflow, version).definition

    # ---- opening --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> App:
        await self._open(WorkerSettings())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[App]:
        """Open for starting, waiting and telling; user code runs elsewhere."""
        await self._open(None)
        try:
            yield self
        finally:
            await self._close()

    @contextmanager
    def elsewhere(
        self, *, store: Callable[[], Store], timing: Timing, entropy: Entropy | None = None, **options: Any
    ) -> Generator[App]:
        """The same app in other surroundings, for tests: its next openings are on that store, by that time.

        `options` are fields of its `Config`. Everything is as before when the block ends.
        """
        before = self.config, self._make_store, self.timing, self.entropy
        self.config = structs.replace(self.config, **options)
        self._make_store, self.timing, self.entropy = store, timing, entropy or self.entropy
        try:
            yield self
        finally:
            self.config, self._make_store, self.timing, self.entropy = before

    @asynccontextmanager
    async def worker(self, **settings: Unpack[WorkerKeywords]) -> AsyncGenerator[Worker]:
        """Open as `run_worker` does, in this event loop."""
        await self._open(WorkerSettings(**settings))
        opened = self._opened
        assert opened is not None
        assert opened.worker is not None
        try:
            yield opened.worker
        finally:
            await self._close()

    async def _open(self, settings: WorkerSettings | None, *, for_portal: bool = False) -> None:
        await self._close_portal()
        if self._opening or (self._opened is not None and self._opened.here):
            raise WrongPlace("this app is open already: one `async with app` at a time")
        self._opening = True
        try:
            store = self._make_store()
            await store.migrate()
            await store.open()
            opened = Opened(self, store, settings, for_portal=for_portal)
            try:
                opened.begin()
            except BaseException:
                await opened.close()
                raise
            self._opened = opened
        finally:
            self._opening = False

    async def _close_portal(self) -> None:
        """What the blocking face opened by itself gives way to a proper `async with app`."""
        opened = self._opened
        if opened is None or not opened.here or not opened.for_portal:
            return
        self._opened = None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.close(), opened.loop))

    async def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def opened(self) -> Client:
        """The client of the open app."""
        if self._opened is None or not self._opened.here:
            raise WrongPlace("this app is not open: use `async with app:` (or app.client()), or the .sync face")
        running = asyncio._get_running_loop()
        if isinstance(running, WorkflowLoop):
            raise WrongPlace(
                "a workflow's own code, which is replayed, cannot use the app or a handle: do it in a step"
            )
        if running is not None and running is not self._opened.loop:
            raise WrongPlace("this app is open in another event loop: use it there, or `async with app:` here")
        return self._opened.client

    def blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run async work for code that has no event loop: in the loop where the app is open, else in the portal."""
        refuse_on_loop()
        if connection_var.get() is not None:
            raise WrongPlace("a transaction holds the store that this call would wait for: do it before or after")
        if self._opened is not None and self._opened.here:
            return call_in(self._opened.loop, work)

        async def opened_first() -> T:
            while self._opening:  # noqa: ASYNC110 (another thread's call opens it, perhaps in another loop)
                await asyncio.sleep(0.001)
            if self._opened is None or not self._opened.here:
                self._opened = None
                await self._open(None, for_portal=True)
            return await work()

        return portal().call(opened_first)

    # ---- running --------------------------------------------------------------------------------------------------

    def run_worker(self, **settings: Unpack[WorkerKeywords]) -> None:
        """A worker process, until SIGTERM or SIGINT: drains, then returns. A second signal ends it at once."""
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(self.serve(**settings))

    async def serve(self, **settings: Unpack[WorkerKeywords]) -> None:
        """As `run_worker`, in an event loop of the caller's."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        hard = asyncio.Event()

        def on_signal() -> None:
            (hard if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            await self._open(WorkerSettings(**settings))
            gc.freeze()  # what is there by now stays: collections need not look at it again
            await stop.wait()
            closing = asyncio.create_task(self._close())
            hurry = asyncio.create_task(hard.wait())
            await asyncio.wait((closing, hurry), return_when=asyncio.FIRST_COMPLETED)
            if not closing.done():
                os._exit(1)
            hurry.cancel()
            await closing
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    # ---- using ----------------------------------------------------------------------------------------------------

    async def start_many(self, bound: Iterable[Bound[R]]) -> list[Handle[R]]:
        """Start thousands in one call: `await app.start_many(checkout.bind(order) for order in orders)`."""
        return await self.opened().start_many([check_bound(one) for one in bound])

    def execution(self, execution_id: str) -> Handle[Any]:
        """A handle on an execution that was started before. In a workflow, telling it something is durable."""
        check_name("id", execution_id, max_chars=limits.ID_MAX_CHARS)
        if inside() is None:
            self.opened()
        return Handle(self, execution_id, Any)

    async def find(
        self,
        *,
        status: str | Status | Iterable[str | Status] | None = None,
        reason: str | None = None,
        workflow: str | None = None,
        lane: str | None = None,
        tags: dict[str, str] | None = None,
        limit: int = 100,
    ) -> list[Info]:
        """Executions, newest first. `reason` is the stored one: `timer`, `event:plan`, `version`, …"""
        return await self.opened().find(self._query(status, reason, workflow, lane, tags, limit))

    async def count(
        self,
        *,
        status: str | Status | Iterable[str | Status] | None = None,
        reason: str | None = None,
        workflow: str | None = None,
        lane: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> int:
        return await self.opened().count(self._query(status, reason, workflow, lane, tags, 1))

    def completions(
        self, *, after: str | None = None, namespace: str | None = None, tags: dict[str, str] | None = None
    ) -> AsyncIterator[CompletionInfo]:
        """Every end, in commit order, from a cursor on; of executions that have all of `tags`."""
        tag = next(iter(tags.items())) if tags else None  # the store looks at one, the client at the others
        return self.opened().completions(
            after=after, filter=Filter(namespace=namespace or self.config.namespace, tag=tag), tags=tags or {}
        )

    async def resolve_token(self, token: str, value: Any = None) -> None:
        """Resolve the deferred that a token names: for callers that have nothing else. `InvalidToken` if it is not
        ours; that it is, is checked before anything else."""
        await self.opened().resolve_token(Tokens(self.config.token_keys), token, value)

    async def reject_token(self, token: str, why: str | Exception = "rejected") -> None:
        await self.opened().reject_token(Tokens(self.config.token_keys), token, why)

    async def purge(self, older_than: Duration) -> int:
        return await self.opened().purge(older_than)

    def _query(
        self, status: Any, reason: str | None, workflow: str | None, lane: str | None, tags: Any, limit: int
    ) -> Query:
        words = [] if status is None else [status] if isinstance(status, str) else list(status)
        try:
            statuses = frozenset(Status(word) for word in words)
        except ValueError as error:
            known = ", ".join(Status)
            raise InvalidInput(f"{error}; known: {known}") from error
        return Query(
            namespace=self.config.namespace,
            status=statuses,
            reason=reason,
            workflow=workflow,
            lane=lane,
            tags=tags or {},
            limit=limit,
        )


class Opened:
    """An app with its parts running in this event loop."""

    def __init__(self, app: App, store: Store, settings: WorkerSettings | None, *, for_portal: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self._app = app
        self._store = store
        self._engine = Engine(store, entropy=app.entropy, timing=app.timing, carries=True)
        self.waiters = Waiters(store, self._engine.timing)
        self.worker: Worker | None = None
        self.reconcilers: Reconcilers | None = None
        self._subscription: Subscription | None = None
        self._listening: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self.parts: Parts | None = None
        self._watchdog: Watchdog | None = None
        self._pid = os.getpid()
        self.for_portal = for_portal
        fast_path: FastPath | None = None
        if settings is not None:
            self.worker = self._new_worker(settings)
            fast_path = FastPath(self._engine, self.worker) if app.config.fast_path else None
        self._inquiries = Inquiries(
            self._new_parts(threads=1),
            app.definition_of,
            lambda namespace, name: None if self.worker is None else self.worker.resident(namespace, name),
        )
        self.client = Client(
            self._engine,
            app.values,
            self.waiters,
            namespace=app.config.namespace,
            owner=app,
            started=self._kick,
            inquiries=self._inquiries,
            fast_path=fast_path,
        )

    def _new_parts(self, *, threads: int) -> Parts:
        config = self._app.config
        return Parts(
            self._engine,
            self._app.values,
            threads=threads,
            committed=self.waiters.committed,
            resident_ms=config.resident_ms,
            tokens=Tokens(config.token_keys),
            token_ttl_ms=config.token_ttl_ms,
        )

    def _new_worker(self, settings: WorkerSettings) -> Worker:
        app, config = self._app, self._app.config
        self.parts = self._new_parts(threads=settings.concurrency)
        lanes = settings.lanes or tuple(sorted({w.definition_lane for w in app.registry} or {"default"}))
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        options = WorkerOptions(
            name=name,
            namespace=config.namespace,
            lanes=lanes,
            capabilities=settings.capabilities,
            concurrency=settings.concurrency,
            lease_ttl_ms=config.lease_ttl_ms,
            poll_ms=settings.poll_ms,
            drain_ms=settings.drain_ms,
        )
        self._lanes = {lane_channel(config.namespace, lane) for lane in lanes}
        if settings.reconcilers:
            sharing = Sharing(self._store, name) if config.reconcile_shared else None
            self.reconcilers = Reconcilers(self._engine, rows_for(config), sharing=sharing)
        return Worker(
            self.parts,
            options,
            serves=app.registry.served,
            definition=app.definition_of,
        )

    def begin(self) -> None:
        if self._app.config.doorbell:
            self._subscription = self._store.listen()
            self._listening = asyncio.create_task(self._listen(self._subscription), name="outlast listen")
        if self.worker is not None:
            self._comparing = asyncio.create_task(self._compare_signatures(), name="outlast signatures")
            self.worker.start()
            self._watchdog = Watchdog(self.loop)
            self._watchdog.start()
        if self.reconcilers is not None:
            self.reconcilers.start()

    async def _compare_signatures(self) -> None:
        """A warning is worth a look, and no more: work goes on without it."""
        try:
            await warn_of_changed_code(self._store, self._app.config.namespace, list(self._app.registry))
        except Exception as error:
            _log.warning("whether code was changed under open executions could not be found out: %s", error)

    def _kick(self) -> None:
        """The fast path: what was started here starts here at once, if there is room."""
        if self.worker is not None and self._app.config.fast_path:
            self.worker.kick()

    async def _listen(self, subscription: Subscription) -> None:
        """Nothing ends this but the app: without it all would still work, but slowly, and nobody would know why."""
        while True:
            try:
                await self._hear_all(subscription)
                return  # closed, and the app with it
            except StoreClosed:
                return
            except Exception as error:
                _log.warning("the doorbell is not heard, and hung anew; polling goes on meanwhile: %s", error)
            await asyncio.sleep(RELISTEN_S)
            try:
                await subscription.close()
                subscription = self._subscription = self._store.listen()  # it begins with a rescan: nothing is missed
            except StoreClosed:
                return
            except Exception as error:
                _log.warning("the doorbell could not be hung: %s", error)

    async def _hear_all(self, subscription: Subscription) -> None:
        homes = {partition_channel(n): n for n in range(self._store.partitions)}
        async for heard in subscription:
            try:
                await self._heard(heard, homes)
            except StoreClosed:
                raise
            except Exception as error:
                _log.warning("what rang could not be looked at; polling looks again: %s", error)

    async def _heard(self, heard: frozenset[str], homes: dict[str, int]) -> None:
        partitions = [number for channel, number in homes.items() if channel in heard]
        if self.worker is not None:
            if RESCAN in heard or self._lanes & heard:
                self.worker.kick()
            if RESCAN in heard or partitions:
                self.worker.heard()
        if RESCAN in heard:
            await self.waiters.rescan()
        elif partitions:
            await self.waiters.rescan(partitions)

    async def abandon(self) -> None:
        """Leave everything as a killed process would: nothing is finished, handed back or told."""
        if self.worker is not None:
            await self.worker.abandon()
            self.worker = None
        await self._engine.outbox.abandon()
        await self.close()

    async def close(self) -> None:
        """Everything is let go of, whatever fails on the way; what failed is raised at the end."""
        async with AsyncExitStack() as last:
            if self._watchdog is not None:
                last.callback(self._watchdog.stop)
            if self.parts is not None:
                last.push_async_callback(self.parts.close)
            last.push_async_callback(self._inquiries.close)
            last.push_async_callback(self._store.close)
            last.push_async_callback(self._engine.close)
            last.push_async_callback(self.waiters.close)
            last.push_async_callback(self._stop_listening)
            if self.reconcilers is not None:
                last.push_async_callback(self.reconcilers.stop)
            if self.worker is not None:
                last.push_async_callback(self.worker.drain)

    async def _stop_listening(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        for task in (self._listening, self._comparing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def here(self) -> bool:
        """Whether this is the process that opened it: a fork has the object, but neither its threads nor its loop."""
        return self._pid == os.getpid()
