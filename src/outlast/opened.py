"""An app with its parts running: client, engine, worker, reconcilers and doorbell, opened and closed together."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

from outlast.authoring.changed import warn_of_changed_code
from outlast.client.client import Client
from outlast.client.flows import FlowClient
from outlast.client.waiters import Waiters
from outlast.errors import StoreClosed
from outlast.machine.changes import ends_channel, lane_channel, partition_channel
from outlast.observe.log import LogObserver
from outlast.observe.telemetry import Telemetry
from outlast.reconcilers import Reconcilers, rows_for
from outlast.reconcilers.sharing import Sharing
from outlast.runtime.attempts.inquiry import Inquiries
from outlast.runtime.collecting import room_for
from outlast.runtime.engine import Engine
from outlast.runtime.local_holder import LocalHolder, local_parts
from outlast.runtime.parts import Parts
from outlast.runtime.settings import WorkerSettings
from outlast.runtime.watchdog import Watchdog
from outlast.runtime.worker import Worker, WorkerOptions
from outlast.store.port import RESCAN, Store, Subscription
from outlast.tokens import Tokens, for_replay

if TYPE_CHECKING:
    from outlast.app import App

_log = logging.getLogger(__name__)

RELISTEN_S = 1.0
COMPARED_AFTER_S = 1.0
"""A process that starts looks for work first. Processes of a fleet start together, and each would keep the others."""


class Opened:
    """An app with its parts running in this event loop."""

    def __init__(self, app: App, store: Store, settings: WorkerSettings | None, *, for_portal: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self._app = app
        self._store = store
        self._telemetry = Telemetry([LogObserver()])
        self._engine = Engine(store, entropy=app.entropy, timing=app.timing, carries=True, telemetry=self._telemetry)
        self.waiters = Waiters(store, self._engine.timing, self._engine.outages)
        self._holder = LocalHolder(self._engine, committed=self.waiters.committed)
        self.worker: Worker | None = None
        self.reconcilers: Reconcilers | None = None
        self._subscription: Subscription | None = None
        self._listening: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self.parts: Parts | None = None
        self._watchdog: Watchdog | None = None
        self._collecting = ExitStack()
        self._room = 0 if settings is None else settings.concurrency
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self.for_portal = for_portal
        if settings is not None:
            self.worker = worker = self._new_worker(settings)
            self.waiters.runs_here = lambda namespace, name: worker.resident(namespace, name) is not None
        self._inquiries = Inquiries(
            self._new_parts(for_replay(app.config.token_keys), threads=1),
            app.definition_of,
            lambda namespace, name: None if self.worker is None else self.worker.resident(namespace, name),
        )
        self._engine.flows.values = app.values
        engine, values, namespace = self._engine, app.values, app.config.namespace
        self.flows = FlowClient(
            engine, values, self.waiters, namespace=namespace, owner=app, registry=app.registry, started=self._kick
        )
        self.client = Client(
            engine,
            values,
            self.waiters,
            namespace=namespace,
            owner=app,
            started=self._kick,
            inquiries=self._inquiries,
            flows=self.flows,
        )

    def _new_parts(self, tokens: Tokens, *, threads: int) -> Parts:
        config = self._app.config
        return local_parts(
            self._holder,
            self._app.values,
            threads=threads,
            resident_ms=config.resident_ms,
            tokens=tokens,
            token_ttl_ms=config.token_ttl_ms,
        )

    def _new_worker(self, settings: WorkerSettings) -> Worker:
        app, config = self._app, self._app.config
        self.parts = self._new_parts(Tokens(config.token_keys), threads=settings.concurrency)
        lanes = settings.lanes or tuple(sorted({w.definition_lane for w in app.registry} or {"default"}))
        name = f"{socket.gethostname()}-{os.getpid()}-{app.entropy.new_id()[-6:]}"
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
        worker = Worker(self.parts, self._engine, options, serves=app.registry.served, definition=app.definition_of)
        if config.fast_path:
            self._engine.rooms = worker
            self._engine.flows.downstreams.remembers = True
        return worker

    def begin(self) -> None:
        if self._app.config.doorbell:
            self._subscription = self._store.listen()
            self._listening = asyncio.create_task(self._listen(self._subscription), name="outlast listen")
        if self.worker is not None:
            self._comparing = asyncio.create_task(self._compare_signatures(), name="outlast signatures")
            self.worker.start()
            if self._app.config.collect_seldom:
                self._collecting.enter_context(room_for(self._room))
            self._watchdog = Watchdog(self.loop)
            self._watchdog.start()
        if self.reconcilers is not None:
            self.reconcilers.start()

    async def _compare_signatures(self) -> None:
        """A warning is worth a look, and no more: work goes on without it, and begins before it."""
        await self._engine.timing.beat(COMPARED_AFTER_S)
        try:
            await warn_of_changed_code(self._store, self._app.config.namespace, list(self._app.registry))
        except Exception as error:
            what = "whether code was changed under open executions could not be found out"
            self._engine.outages.report(_log, what, error)

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
                what = "the doorbell is not heard, and hung anew; polling goes on meanwhile"
                self._engine.outages.report(_log, what, error)
            await self._engine.timing.sleep(RELISTEN_S)
            try:
                await subscription.close()
                subscription = self._subscription = self._store.listen()  # it begins with a rescan: nothing is missed
            except StoreClosed:
                return
            except Exception as error:
                self._engine.outages.report(_log, "the doorbell could not be hung", error)

    async def _hear_all(self, subscription: Subscription) -> None:
        numbers = range(self._store.partitions)
        homes, ends = {partition_channel(n): n for n in numbers}, {ends_channel(n): n for n in numbers}
        async for heard in subscription:
            try:
                await self._heard(heard, homes, ends)
            except StoreClosed:
                raise
            except Exception as error:
                self._engine.outages.report(_log, "what rang could not be looked at; polling looks again", error)

    async def _heard(self, heard: frozenset[str], homes: dict[str, int], ends: dict[str, int]) -> None:
        partitions = [homes[channel] for channel in heard if channel in homes]
        with_ends = [ends[channel] for channel in heard if channel in ends]
        if self.worker is not None:
            if RESCAN in heard or self._lanes & heard:
                self.worker.kick()
            if RESCAN in heard or partitions:
                self.worker.heard(homes.values() if RESCAN in heard else partitions)
        if RESCAN in heard:
            await self.waiters.rescan()
        elif partitions or with_ends:
            await self.waiters.rescan(partitions, with_ends)

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
            last.callback(self._collecting.close)
            last.callback(self._telemetry.close)
            if self._watchdog is not None:
                last.callback(self._watchdog.stop)
            if self.parts is not None:
                last.push_async_callback(self.parts.close)
            last.push_async_callback(self._inquiries.close)
            last.push_async_callback(self._store.close)
            last.push_async_callback(self._engine.close)
            last.push_async_callback(self.waiters.close)
            last.push_async_callback(self.flows.close)
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

    @property
    def stands_still(self) -> bool:
        """Whether this thread, which opened it, is not running its loop just now: waiting for it would be for ever."""
        return not self.loop.is_running() and self._thread == threading.get_ident()
