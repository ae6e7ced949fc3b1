"""The composition root: from options to parts that work together.

app = App()                      # $OUTLAST_URL, else sqlite:///outlast.db

async with app: ...              # embedded: client, engine, worker and reconcilers in this process
async with app.client(): ...     # a client only: starts, waits, tells; runs no user code
app.run_worker()                 # a worker process; also `outlast worker module:app`
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec import structs

from outlast import limits
from outlast.authoring.builtin import gather_for
from outlast.authoring.decorators import StepDecorator, TransactionDecorator, WorkflowDecorator
from outlast.authoring.flow import Flow
from outlast.authoring.inside import uuid4
from outlast.authoring.mapping import map_for
from outlast.authoring.options import ParentCloses, parse_parent_close, parse_tags
from outlast.authoring.registry import Registry
from outlast.authoring.step import AsyncStep, StepOptions, SyncStep, check_step_options, make_step
from outlast.authoring.transaction import AsyncTransaction, SyncTransaction, make_transaction
from outlast.authoring.workflow import (
    AsyncWorkflow,
    Bound,
    SyncWorkflow,
    WorkflowKeywords,
    check_many,
    make_workflow,
    workflow_options,
)
from outlast.client.client import Client
from outlast.client.flow_handle import FlowHandle
from outlast.client.handle import Handle
from outlast.client.info import CompletionInfo, Info, to_epoch_ms
from outlast.client.portal import call_in, portal, refuse_on_loop
from outlast.codec.values import CodecHook, Values
from outlast.config import Config
from outlast.errors import InvalidConfig, InvalidInput, ReplyLost, StoreUnavailable, WrongPlace
from outlast.model.duration import Duration, to_ms
from outlast.model.names import check_id, check_name, check_text, check_word, id_made_of
from outlast.model.status import Status
from outlast.opened import Opened
from outlast.runtime.attempts.current import connection_var, inside
from outlast.runtime.attempts.workflow_loop import WorkflowLoop
from outlast.runtime.entropy import Entropy, SystemEntropy
from outlast.runtime.fastest_loop import fastest_loop
from outlast.runtime.parts import WorkflowDefinition
from outlast.runtime.patience import patiently
from outlast.runtime.serving import serve_until_signal
from outlast.runtime.settings import WorkerKeywords, WorkerSettings
from outlast.runtime.timing import LoopTiming, Timing
from outlast.runtime.worker import Worker
from outlast.store.port import Clock, Filter, Points, Query, Store
from outlast.tokens import Tokens

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OPEN_PATIENCE_S = 30.0
SILENT_S = 2.0
"""A worker process that has not opened its store by then says what it waits for."""
IN_A_STEP = "a workflow's own code, which is replayed, cannot use the app or a handle: do it in a step"

_log = logging.getLogger(__name__)


def store_for(url: str, *, clock: Clock | None = None, points: Points | None = None, inline: bool = False) -> Store:
    """The store that a URL names; `inline`: in the event loop itself, if it is a file. For tests."""
    scheme = url.partition("://")[0] if "://" in url else "sqlite"
    if scheme == "sqlite":
        from outlast.store.sqlite import SqliteStore

        return SqliteStore(url, clock=clock, points=points, inline=inline)
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
        self.values = Values(codec, allow_pickle=self.config.allow_pickle)
        self.entropy: Entropy = entropy or SystemEntropy()
        self.registry = Registry()
        self.gather = gather_for(self)
        self.expand = map_for(self)
        for own in (self.gather, self.expand):
            self.registry.add_own(own)
        self.timing: Timing | None = timing
        self.own_store = store
        """What makes its store; None: it is the one of its URL."""
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
        """`@app.workflow`, or `@app.workflow(name=…, version=…, lane=…, retry=…, timeout=…, deadline=…)`. An execution
        expires with the crash that makes `max_crashes` without any progress, or `max_crashes_in_life` in all."""
        checked = workflow_options(options)

        def decorate(decorated: object) -> Any:
            workflow = make_workflow(self, decorated, checked)
            self.registry.add(workflow)
            return workflow

        return decorate if fn is None else decorate(fn)

    def definition_of(self, workflow: str, version: str) -> WorkflowDefinition:
        """What the runtime must know of a workflow; `UnknownWorkflow` if it is not registered."""
        return self.registry.get(workflow, version).definition

    def flow(
        self,
        name: str,
        *,
        id: str | None = None,
        retention: Duration | None = None,
        parent_close: ParentCloses | None = None,
    ) -> Flow:
        """A DAG of workflows, to be written down and then started: `flow.add("extract", extract_data, day)`.

        Started in a workflow's own code it belongs to that execution: `parent_close` as for a child."""
        # The code of a workflow is replayed, and must come to the same id again.
        some_id = self.entropy.new_id if inside() is None else lambda: uuid4().hex
        return Flow(
            self,
            check_word("flow", name),
            id=check_id(id) if id is not None else id_made_of("flow", name, some_id()),
            parent_close=None if parent_close is None else parse_parent_close(parent_close),
            retention_ms=None if retention is None else to_ms(retention, what="retention"),
            namespace=self.config.namespace,
        )

    def flow_handle(self, flow_id: str) -> FlowHandle:
        """A handle on a flow that was started before."""
        self.opened()
        return FlowHandle(self, check_id(flow_id))

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
        before = self.config, self.own_store, self.timing, self.entropy
        self.config = structs.replace(self.config, **options)
        self.own_store, self.timing, self.entropy = store, timing, entropy or self.entropy
        try:
            yield self
        finally:
            self.config, self.own_store, self.timing, self.entropy = before

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

    def new_store(self) -> Store:
        """The store that it lives in, not open yet."""
        return store_for(self.config.url) if self.own_store is None else self.own_store()

    async def _open(
        self, settings: WorkerSettings | None, *, for_portal: bool = False, is_process: bool = False
    ) -> None:
        await self._close_portal()
        if self._opening or (self._opened is not None and self._opened.here):
            raise WrongPlace("this app is open already: one `async with app` at a time")
        self._opening = True
        try:
            store = self.new_store()
            await self._open_store(store, is_process=is_process)
            opened = Opened(self, store, settings, for_portal=for_portal)
            try:
                opened.begin()
            except BaseException:
                await opened.close()
                raise
            self._opened = opened
        finally:
            self._opening = False

    async def _open_store(self, store: Store, *, is_process: bool) -> None:
        """Whether it lasts may be confirmed late, as with every write. Only a worker process waits for a store that is
        not there: it may have been started in the middle of a restart or a failover."""

        async def opened() -> None:
            await store.migrate()
            await store.open()

        timing = self.timing or LoopTiming()
        said = None
        if is_process:
            said = timing.call_later(SILENT_S, _log.warning, "waiting for %s, which does not answer yet", store.url)
        try:
            await patiently(
                opened,
                patience_s=OPEN_PATIENCE_S,
                pause=timing.sleep,
                time_s=timing.time_s,
                over=StoreUnavailable if is_process else ReplyLost,
            )
        finally:
            if said is not None:
                said.cancel()

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
        opened, running = self._opened, asyncio._get_running_loop()
        if opened is not None and running is opened.loop:
            return opened.client  # in this process: a fork finds none running
        if opened is None or not opened.here:
            raise WrongPlace("this app is not open: use `async with app:` (or app.client()), or the .sync face")
        if isinstance(running, WorkflowLoop):
            raise WrongPlace(IN_A_STEP)
        if running is not None:
            raise WrongPlace("this app is open in another event loop: use it there, or `async with app:` here")
        return opened.client

    def blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run async work for code that has no event loop: in the loop where the app is open, else in the portal."""
        refuse_on_loop()
        if inside() is not None:
            raise WrongPlace(IN_A_STEP)
        if connection_var.get() is not None:
            raise WrongPlace("a transaction holds the store that this call would wait for: do it before or after")
        if self._opened is not None and self._opened.here:
            if self._opened.stands_still:
                raise WrongPlace(
                    "this app is open in an event loop that this thread does not run just now, so the blocking face "
                    "(.sync) would wait for ever: await the async one in that loop, or close the app first"
                )
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
        refuse_on_loop("run_worker", "`async with app.worker(…)`, or `await app.serve(…)`,")
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(self.serve(**settings))

    async def serve(self, **settings: Unpack[WorkerKeywords]) -> None:
        """As `run_worker`, in an event loop of the caller's."""
        if threading.current_thread() is not threading.main_thread():
            raise WrongPlace(
                "run_worker and serve stop at signals, which only the main thread gets: call them there, or use "
                "`async with app.worker(…)` in this thread"
            )
        opening = self._open(WorkerSettings(**settings), is_process=True)
        await serve_until_signal(opening, self._close, collect_seldom=self.config.collect_seldom)

    # ---- using ----------------------------------------------------------------------------------------------------

    async def start_many(self, bound: Iterable[Bound[R]]) -> list[Handle[R]]:
        """Start thousands in one call: `await app.start_many(checkout.bind(order) for order in orders)`."""
        return await self.opened().start_many(check_many(bound))

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
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Info]:
        """Executions, newest first. `reason` is as `info.reason` shows it: `timer`, `event:plan`, `version`, …

        `after=found[-1].cursor` goes on behind the last one of a call, whatever was started or purged meanwhile.
        """
        if isinstance(limit, bool) or not isinstance(cast("object", limit), int) or limit < 1:
            raise InvalidInput(f"limit must be a whole number, at least 1, not {limit!r}")
        if not isinstance(cast("object", after), str | None):
            raise InvalidInput(f"after must be the cursor of what find gave, such as found[-1].cursor, not {after!r}")
        query = self._query(status, reason, workflow, lane, tags, created_from, created_before)
        return await self.opened().find(structs.replace(query, limit=limit, after=after))

    async def count(
        self,
        *,
        status: str | Status | Iterable[str | Status] | None = None,
        reason: str | None = None,
        workflow: str | None = None,
        lane: str | None = None,
        tags: dict[str, str] | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
    ) -> int:
        """How many executions there are, by what `find` takes."""
        query = self._query(status, reason, workflow, lane, tags, created_from, created_before)
        return await self.opened().count(query)

    def completions(
        self, *, after: str | None = None, namespace: str | None = None, tags: dict[str, str] | None = None
    ) -> AsyncIterator[CompletionInfo]:
        """Every end, in commit order, from a cursor on; of executions that have all of `tags`."""
        if not isinstance(cast("object", after), str | None):
            raise InvalidInput(f"after must be the cursor of a completion, not {after!r}")
        checked = parse_tags(tags or {})
        tag = next(iter(checked.items()), None)  # the store looks at one, the client at the others
        of = check_name("namespace", self.config.namespace if namespace is None else namespace)
        return self.opened().completions(after=after, filter=Filter(namespace=of, tag=tag), tags=checked)

    async def resolve_token(self, token: str, value: Any = None) -> None:
        """Resolve the deferred that a token names: for callers that have nothing else. `InvalidToken` if it is not
        ours; that it is, is checked before anything else."""
        await self.opened().resolve_token(Tokens(self.config.token_keys), token, value)

    async def reject_token(self, token: str, why: str | Exception = "rejected") -> None:
        """Reject the deferred that a token names, as `resolve_token` resolves it."""
        await self.opened().reject_token(Tokens(self.config.token_keys), token, why)

    async def purge(self, older_than: Duration) -> int:
        """Delete what ended longer ago than that, in this namespace: `await app.purge(older_than="30d")`. How many."""
        return await self.opened().purge(older_than)

    def _query(
        self,
        status: Any,
        reason: str | None,
        workflow: str | None,
        lane: str | None,
        tags: Any,
        created_from: datetime | None,
        created_before: datetime | None,
    ) -> Query:
        words = [] if status is None else [status] if isinstance(status, str) else status
        try:
            statuses = frozenset(Status(word) for word in words)
        except (ValueError, TypeError) as error:
            known = ", ".join(Status)
            raise InvalidInput(f"status must be one or several, not {status!r}: {error}; known: {known}") from error
        for what, text in (("reason", reason), ("workflow", workflow), ("lane", lane)):
            if text is not None:
                check_text(what, text)
        return Query(
            namespace=self.config.namespace,
            status=statuses,
            reason=reason,
            workflow=workflow,
            lane=lane,
            tags=parse_tags(tags or {}),
            created_from=None if created_from is None else to_epoch_ms(created_from, what="created_from"),
            created_before=None if created_before is None else to_epoch_ms(created_before, what="created_before"),
        )
