"""What runs in a harness, and who moves its time: processes on one store, and a driver that lets them take turns.

The driver waits until everything is quiet (no call of the store under way, no step running), gives every beat a turn if
something has changed, and when nothing changes any more lets the clock go to what is due next: a timer of a process, or
a time in the store. It looks at the records themselves for that, so it knows of everything that anybody waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.app import App
from outlast.client.offers import Offers, offers_in
from outlast.client.waiters import Waiters
from outlast.errors import ExecutionNotFound, OutlastError
from outlast.machine.replay import BESIDE
from outlast.model.execution import Execution
from outlast.model.flow import Edge, Flow, Member, flow_key, member_key, whole_of
from outlast.model.journal import JournalEntry, OperationKey
from outlast.model.outbox import Delivery
from outlast.model.record import Record, settled
from outlast.model.session import Session
from outlast.model.status import OPEN, Status
from outlast.opened import Opened
from outlast.runtime.attempts.rehearsal import Divergence, rehearse
from outlast.runtime.engine import Engine
from outlast.runtime.entropy import Entropy
from outlast.runtime.local_holder import LocalHolder, local_parts
from outlast.runtime.parts import Parts
from outlast.runtime.settings import WorkerKeywords, WorkerSettings
from outlast.store.port import Query, Store
from outlast.testing.points import CrashPoints
from outlast.testing.virtual import VirtualClock, VirtualTiming
from outlast.testing.watched import Traffic, WatchedStore
from outlast.tokens import for_replay

_log = logging.getLogger(__name__)

STILL_ROUNDS = 25
"""So many turns of a loop that does not show what is ready, without a call of the store: whoever had something to do
has asked for it by then."""
STEP_PATIENCE_S = 0.5
"""For so long (of real time) `advance` waits for steps that run, before it lets time pass under them."""
STUCK_S = 2.0
"""When somebody awaits a result, nothing is due and nothing happens for so long, they are told so."""
STUCK_SHOWN = 20


class Stuck(OutlastError, AssertionError):
    """A result is awaited that cannot come: nothing is due, and nothing runs."""


def required_by(app: App) -> frozenset[str]:
    """The capabilities that its workflows ask for."""
    return frozenset(word for workflow in app.registry for word in workflow.definition_requires)


class Times(Struct, frozen=True, kw_only=True):
    """Whether a lease is held, whether something in the store is due now, and when the next is."""

    active: bool
    due_now: frozenset[str]
    """The reconcilers that have something to do."""
    ahead: int | None
    due_then: frozenset[str] = frozenset()


class Process:
    """An app on a store of its own, in this event loop: what a process is to the store."""

    def __init__(self, app: App, store: WatchedStore) -> None:
        self.app = app
        self.store = store
        self.opened: Opened | None = None
        self.settings: WorkerKeywords = {}

    @property
    def is_crashed(self) -> bool:
        return self.store.dead.is_set()


class World:
    def __init__(
        self,
        url: str,
        clock: VirtualClock,
        make_store: Callable[[], Store],
        *,
        namespace: str,
        points: CrashPoints,
        entropy: Entropy | None,
    ) -> None:
        self.url = url
        self.clock = clock
        self.namespace = namespace
        self.points = points
        self.entropy = entropy
        self.traffic = Traffic()
        self.activity = self.traffic.activity
        self.timing = VirtualTiming(clock, self.activity)
        self.stand_ins: dict[str, Callable[..., Any]] = {}
        self.workers: list[Process] = []
        self.auto = True
        self.crashes = 0
        self.performed_again: list[str] = []
        self._clients: list[Process] = []
        self._make_store = make_store
        self._moving = asyncio.Lock()
        self._moving_is_wanted = 0
        """So many wait to move the clock themselves."""
        self._driver: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self._known: tuple[tuple[int, int], Times] | None = None
        clock.moved_by(self.advance_to)

    # ---- processes ------------------------------------------------------------------------------------------------

    def new_process(self, app: App) -> Process:
        return Process(app, WatchedStore(self._make_store(), self.traffic))

    def add_client(self, app: App, process: Process) -> None:
        self._clients.append(process)
        app.opened().waiters.on_wait = self.activity.set

    def worker_of(self, app: App) -> Process | None:
        return next((process for process in self.workers if process.app is app), None)

    async def start_worker(self, app: App, settings: WorkerKeywords) -> Process:
        process = self.new_process(app)
        store = cast("Store", process.store)
        await store.open()
        process.settings = settings
        # What has not ended when it is told to stop waits for time, which nobody moves meanwhile: it is handed back.
        chosen: WorkerKeywords = {"drain": 0, "capabilities": required_by(app)}
        chosen.update(settings)
        process.opened = Opened(app, store, WorkerSettings(**chosen))
        assert process.opened.parts is not None
        process.opened.parts.stand_ins = self.stand_ins
        process.opened.parts.on_perform = self._performs
        process.opened.begin()
        self.workers.append(process)
        self.activity.set()
        return process

    def _performs(self, execution: Execution, key: OperationKey) -> None:
        if (execution.id, execution.journal_generation, *key) in self.traffic.recorded:
            self.performed_again.append(f"{execution.id}: {key[0]}{key[1]}#{key[2]}")

    async def stop_worker(self, app: App) -> None:
        process = self.worker_of(app)
        if process is None or process.opened is None:
            return
        async with self._moving:
            await self._settle(asyncio.get_running_loop().time() + STEP_PATIENCE_S)
            self.workers.remove(process)
            await process.opened.close()
        self.activity.set()

    async def kill_workers(self) -> None:
        async with self._moving:
            for process in list(self.workers):
                await self._bury(process)

    async def _bury(self, process: Process) -> None:
        """As a killed process: nothing is finished, handed back or told; its leases run out."""
        self.crashes += 1
        self.workers.remove(process)
        process.store.dead.set()
        leaving = asyncio.ensure_future(process.opened.abandon()) if process.opened is not None else None
        for _ in range(STILL_ROUNDS):
            await asyncio.sleep(0)  # what hangs in a call of the store is cancelled; what still hangs then, is told
        process.store.bury()
        if leaving is not None:
            await leaving

    async def _replace_the_dead(self) -> bool:
        dead = [process for process in self.workers if process.is_crashed]
        for process in dead:
            await self._bury(process)
            reborn = await self.start_worker(process.app, process.settings)
            reborn.store.plans = process.store.plans
        return bool(dead)

    # ---- life -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._driver = asyncio.create_task(self._drive(), name="outlast harness")

    async def end(self) -> None:
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
        for process in list(self.workers):
            self.workers.remove(process)
            if process.is_crashed:
                process.store.bury()
            if process.opened is not None:
                # Nobody moves the clock any more: what still waits for time would wait for ever.
                await process.opened.abandon()
        if self._broken is not None:
            raise self._broken

    async def _drive(self) -> None:
        try:
            while True:
                await self.activity.wait()
                self.activity.clear()
                moved = False
                async with self._moving:
                    await self._settle()
                    while not (going := bool(self._running())) and self.auto and self._awaited():
                        moved = await self._jump(None)
                        if not moved or self._moving_is_wanted:
                            break
                    await self._look_everywhere()
                if moved:
                    self.activity.set()
                elif going:
                    await self._until_something_happens(self._running())
                elif self.auto and self._awaited():
                    await self._until_stuck()
        except Exception as error:
            self._broken = error
            for waiters in self._all_waiters():
                waiters.give_up(error)
            raise

    async def _until_something_happens(self, running: list[asyncio.Future[Any]]) -> None:
        heard = asyncio.ensure_future(self.activity.wait())
        await asyncio.wait((heard, *running), return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        self.activity.set()

    async def _until_stuck(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.activity.wait(), STUCK_S)
            return
        awaited = [execution_id for _, execution_id in self._awaited()]
        if not awaited:
            return
        found = await self._open_executions()
        waiting = [e for e in found if e.id in awaited or e.flow in awaited]
        waiting += [e for e in found if e.status is Status.READY and e not in waiting]
        offers = await offers_in(self._store)
        reasons = ", ".join([self._why(e, offers) for e in waiting[:STUCK_SHOWN]])
        more = f", and {len(waiting) - STUCK_SHOWN} more" if len(waiting) > STUCK_SHOWN else ""
        error = Stuck(f"nothing is due and nothing runs, but a result is awaited: {reasons or awaited}{more}")
        for waiters in self._all_waiters():
            waiters.give_up(error)

    def _why(self, e: Execution, offers: Offers) -> str:
        """Why it does not go on, as `handle.info()` has it; and what to write if no worker of this harness takes it."""
        reason = offers.reason(e)
        why = f"{e.id} is {e.status}{f' ({reason})' if reason else ''}"
        if e.status is not Status.READY:
            return why
        if not self.workers:
            return f"{why}, and no worker runs: await h.restart()"
        lanes = {lane for offer in offers.by_worker.values() if offer is not None for lane in offer.lanes}
        if e.lane not in lanes:
            return f"{why} in lane {e.lane!r}, which no worker here serves: harness(app, lanes=[…])"
        if reason is not None and reason.startswith("capability:"):
            return f"{why}, which no worker here offers: harness(app, capabilities=[…])"
        return why

    def _all_waiters(self) -> list[Waiters]:
        return [client.app.opened().waiters for client in self._clients]

    def _awaited(self) -> list[tuple[str, str]]:
        return [name for waiters in self._all_waiters() for name in waiters.awaited]

    # ---- time -----------------------------------------------------------------------------------------------------

    async def advance_to(self, to_ms: int) -> None:
        """All that falls due until then happens, in order, each at its time."""
        self._moving_is_wanted += 1
        async with self._moving:
            self._moving_is_wanted -= 1
            until_s = asyncio.get_running_loop().time() + STEP_PATIENCE_S
            await self._settle(until_s)
            while self.clock.now_ms() < to_ms:
                await self._jump(to_ms, until_s)
            await self._look_everywhere(until_s)
        self.activity.set()

    async def _jump(self, to_ms: int | None, until_s: float = 0.0) -> bool:
        """To what is due next, or to `to_ms` if that is sooner; false if nothing is."""
        timers = [parts.timers.next_at for parts in self._parts()]
        known = await self._times()
        times = [time for time in (self.timing.next_ms(), known.ahead, to_ms, *timers) if time is not None]
        ahead = [time for time in times if time > self.clock.now_ms()]
        if not ahead:
            return False
        self.clock.set_ms(min(ahead))
        if known.active:
            await self._renew()
        await self._look_at_timers()
        self.timing.fire_timers()
        if self.clock.now_ms() == known.ahead:
            self.timing.fire_beats(known.due_then)
        await self._settle(until_s, rung=False)
        return True

    async def _settle(self, until_s: float = 0.0, *, rung: bool = True) -> None:
        """Until nothing changes any more at this time. Until `until_s` of the loop, steps that run are waited for."""
        looked_at = -1
        traffic = self.traffic
        traffic.rung = traffic.rung or rung
        await self._quiet(until_s)
        while True:
            before = self._progress()
            await self._look_at_timers()
            self.timing.fire_timers()
            if traffic.rung:
                traffic.rung = False
                self.timing.fire_expectant()
            await self._quiet(until_s)
            if await self._replace_the_dead() or self._progress() != before or traffic.rung:
                continue
            due_now = (await self._times()).due_now
            if before == looked_at or not due_now:
                return
            # What is due at this very time is for the reconcilers. If they leave it, so be it.
            looked_at = before
            self.timing.fire_beats(due_now)

    async def _look_everywhere(self, until_s: float = 0.0) -> None:
        """Everybody looks, also who has nothing that is due: renewals, retention, what repairs the unexpected."""
        self.timing.fire_beats()
        await self._settle(until_s)

    async def _renew(self) -> None:
        """Its processes have lived all the while, and what they hold must not be taken from them."""
        for process in self.workers:
            if process.opened is not None and process.opened.worker is not None:
                with suppress(OutlastError):  # the worker's own loop says so
                    await process.opened.worker.renew()

    async def _look_at_timers(self) -> None:
        for parts in self._parts():
            next_at = parts.timers.next_at
            if next_at is not None and next_at <= self.clock.now_ms():
                await parts.timers.look()

    async def _quiet(self, until_s: float) -> None:
        """Until no call of the store is under way and the event loop has nothing to run."""
        loop, traffic = asyncio.get_running_loop(), self.traffic
        ready: Sized | None = getattr(loop, "_ready", None)  # asyncio's own loop has it, uvloop does not
        still = 0
        while still < STILL_ROUNDS:
            if traffic.in_flight:
                await traffic.calm.wait()
                still = 0
                continue
            calls = traffic.calls
            await asyncio.sleep(0)
            if calls != traffic.calls:
                still = 0
            elif self._thinks():
                await asyncio.sleep(0.0005)  # a def workflow: its thread tells nobody
                still = 0
            else:
                still = STILL_ROUNDS if ready is not None and not ready else still + 1
            if still >= STILL_ROUNDS and loop.time() < until_s and (running := self._running()):
                await asyncio.wait(running, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                still = 0

    def _parts(self) -> list[Parts]:
        living = [process.opened for process in self.workers if process.opened and not process.is_crashed]
        return [opened.parts for opened in living if opened.parts]

    def _progress(self) -> int:
        return self.traffic.progress + self.crashes

    def _running(self) -> list[asyncio.Future[Any]]:
        """Steps that run, and do not only wait for virtual time."""
        workers = [p.opened.worker for p in self.workers if p.opened is not None and not p.is_crashed]
        attempts = [attempt for worker in workers if worker is not None for attempt in worker.attempts]
        return [task for attempt in attempts for task in attempt.under_way if task not in self.timing.asleep]

    def _thinks(self) -> bool:
        workers = [p.opened.worker for p in self.workers if p.opened is not None and not p.is_crashed]
        return any(attempt.thinks for worker in workers if worker is not None for attempt in worker.attempts)

    # ---- what the store knows -------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return cast("Store", self._clients[0].store)

    async def rehearse(self, app: App, execution_id: str) -> Divergence | None:
        engine = Engine(self._store, timing=self.timing)
        found = await engine.look(self.namespace, execution_id)
        if found is None:
            raise ExecutionNotFound(self.namespace, execution_id)
        config = app.config
        parts = local_parts(
            LocalHolder(engine),
            app.values,
            threads=1,
            tokens=for_replay(config.token_keys),
            token_ttl_ms=config.token_ttl_ms,
        )
        try:
            return (await rehearse(parts, found, app.definition_of(found.workflow, found.version))).divergence
        finally:
            await parts.close()

    async def _open_executions(self) -> list[Execution]:
        found: list[Execution] = []
        after = None
        while True:
            page = await self._store.find(Query(namespace=self.namespace, status=OPEN, after=after, limit=1_000))
            found += page.executions
            after = page.cursor
            if after is None:
                return found

    async def _times(self) -> Times:
        """What the store has in its records of time; read again only when something has changed."""
        now, progress = self.clock.now_ms(), self._progress()
        if self._known is None or self._known[0] != (now, progress):
            self._known = ((now, progress), await self._read_times(now))
        return self._known[1]

    async def _read_times(self, now: int) -> Times:
        executions = await self._open_executions()
        active = any(e.status is Status.ACTIVE for e in executions)
        owed = await self._scan(Delivery.KIND) if self.traffic.deliveries else []
        deliveries = [one for one in owed if isinstance(one, Delivery)]
        found: dict[str, list[int | None]] = {
            "timer": [settled(e.wake_at) for e in executions],
            "execution_deadline": [settled(e.deadline_at) for e in executions],
            "attempt_timeout": [settled(e.attempt_deadline_at) for e in executions],
            "lease_expiry": await self._leases_of_the_dead() if active else [],
            "outbox": [settled(one.due_at) for one in deliveries],
        }
        times = [(time, name) for name, some in found.items() for time in some if time is not None]
        if not times and not active:
            times = await self._owed_by_flows(executions)
        ahead = min((time for time, _ in times if time > now), default=None)
        return Times(
            active=active,
            due_now=frozenset(name for time, name in times if time <= now),
            ahead=ahead,
            due_then=frozenset(name for time, name in times if time == ahead),
        )

    async def _owed_by_flows(self, executions: list[Execution]) -> list[tuple[int, str]]:
        """What a process that died left to the reconcilers, once its grace is over. Looked for only when nothing else
        is to come: it takes some reading."""
        found: dict[str, list[int | None]] = {"cancel_backlog": [], "sibling_cancel": []}
        for flow_id in {e.flow for e in executions if e.flow is not None}:
            [flow] = await self._store.load([flow_key(self.namespace, flow_id)])
            if isinstance(flow, Flow):
                found["cancel_backlog"].append(settled(flow.cancel_at))
            found["sibling_cancel"] += [settled(one.siblings_at) for one in await self._members(flow_id)]
        return [(time, name) for name, some in found.items() for time in some if time is not None]

    async def _members(self, flow_id: str) -> list[Member]:
        found: list[Member] = []
        after = None
        while True:
            page = await self._store.scan(
                Edge.KIND, (self.namespace, whole_of(flow_id)), after=after, limit=limits.LOAD_MAX_KEYS
            )
            keys = [member_key(self.namespace, one.downstream) for one in page if isinstance(one, Edge)]
            found += [one for one in (await self._store.load(keys) if keys else []) if isinstance(one, Member)]
            if len(page) < limits.LOAD_MAX_KEYS:
                return found
            after = page[-1].key

    async def _leases_of_the_dead(self) -> list[int | None]:
        alive = {p.opened.worker.name for p in self.workers if p.opened is not None and p.opened.worker is not None}
        sessions = [one for one in await self._scan(Session.KIND) if isinstance(one, Session)]
        return [settled(session.expires_at) for session in sessions if session.worker not in alive]

    async def _scan(self, kind: str) -> list[Record]:
        found: list[Record] = []
        for partition in range(self._store.partitions):
            found += await self._store.scan(kind, (partition,), limit=10_000)
        return found

    async def timer_names(self) -> list[str]:
        return sorted(await self._timers())

    async def timer_due(self, name: str) -> int | None:
        return (await self._timers()).get(name)

    async def _timers(self) -> dict[str, int]:
        """The named timers that are set, and when each is due first."""
        found: dict[str, int] = {}
        for execution in await self._open_executions():
            prefix = (execution.namespace, execution.id, execution.journal_generation)
            entries = await self._store.scan(JournalEntry.KIND, prefix, limit=10_000)
            over = {entry.name for entry in entries if isinstance(entry, JournalEntry) and entry.scope != BESIDE}
            for entry in entries:
                if isinstance(entry, JournalEntry) and entry.scope == BESIDE and entry.name not in over:
                    due_ms = msgspec.json.decode(entry.value or b"0", type=int)
                    found[entry.name] = min(due_ms, found.get(entry.name, due_ms))
        return found
