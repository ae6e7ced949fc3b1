"""A worker: claims as fast as capacity frees, runs what it claimed, keeps its leases, hands back what it does not run.

It looks for work when somebody rings (in this process or another), when capacity frees, and, as the net, every poll
interval. Losing a lease stops the user's code at once. Draining claims nothing more, suspends what only waits, and lets
what runs finish or hands it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from outlast import limits
from outlast.errors import CodecHookFailed, OutlastError
from outlast.machine.facts import HandBack, Wake
from outlast.machine.upkeep import session_ended, session_offers
from outlast.model.execution import Execution, parse_route
from outlast.model.lease import ClaimedExecution, ClaimRequest, Leases, Renewed
from outlast.model.partition import partition_of
from outlast.model.record import Now, settled
from outlast.model.session import OFFERS_PARTITION, Offer, Session, encode_offer
from outlast.model.status import Reason, Status
from outlast.observe.events import WorkerDrained, WorkerDrains, WorkerStarted
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.mishaps import put_off
from outlast.runtime.engine import Engine
from outlast.runtime.parts import Parts, WorkflowDefinition
from outlast.runtime.spawning import spawn
from outlast.store.port import Query

_log = logging.getLogger(__name__)

Name = tuple[str, str]

ANSWER_DISTANCE_S = 0.05
"""Between two looks for what came from outside, when somebody rings all the time."""
PASSED_OVER_S = 0.005
"""Half of the first pause before a worker looks again at what it was not given; each one is twice as long."""
UNKNOWN_FOR = 0.25
"""For such a part of its lease a claim may be known to the store and not yet to its worker, whose loop may be busy.
It is less than the distance of two renewals that nobody rang for."""
HALVED_MIN = 32
"""Room for fewer is filled by one claim."""
CUT_SHORT_S = 0.5
"""So long a drain that was cut short takes for handing back."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    lanes: tuple[str, ...] = ("default",)
    capabilities: frozenset[str] = frozenset()
    concurrency: int = 100
    lease_ttl_ms: int = 10_000
    poll_ms: int = 1_000
    drain_ms: int = 30_000


class Worker:
    """`worker.start()`, later `await worker.drain()`."""

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        options: WorkerOptions,
        *,
        serves: Callable[[], frozenset[tuple[str, str]]],
        definition: Callable[[str, str], WorkflowDefinition],
    ) -> None:
        self._parts = parts
        self._engine = engine
        self._options = options
        self._serves = serves
        self._definition = definition
        self.loop = asyncio.get_running_loop()
        self._attempts: dict[Name, LiveAttempt] = {}
        self._running: dict[LiveAttempt, asyncio.Task[None]] = {}
        self._kick = asyncio.Event()
        self._freed = asyncio.Event()
        self._rung = asyncio.Event()
        self._rung_in: set[int] = set()
        """The partitions in which something may have come from outside."""
        self._offered: tuple[tuple[str, str], ...] | None = None
        self._draining = False
        # Where calls may follow one another, a claim asks for half of the room, and the next one is sent when it is
        # answered: so the server is at that, and at the last ends, while the code of this one runs.
        self._halves = engine.store.capabilities.in_line and options.concurrency >= HALVED_MIN
        self._most = min(options.concurrency // (2 if self._halves else 1), limits.CLAIM_MAX)
        self._claiming = 0
        self._promised = 0
        """Room that is kept for what is being started here."""
        self._leaving: set[LiveAttempt] = set()
        """Whose code has ended, and whose end is on its way to the store: others may have their room."""
        self._lanes_empty = False
        """The last look took all that was ready."""
        self._passed_over = 0
        """So many looks in a row left something that there was room for. All but the first of them took nothing."""
        self._unknown: dict[tuple[Name, int], float] = {}
        self._renewed_at = engine.timing.time_s()
        self._unreached: dict[int, float] = {}
        """Partitions that could not be asked at the last renewal, and when the last good one was asked for."""
        self._errands: set[asyncio.Task[None]] = set()
        self._duties: list[asyncio.Task[None]] = []
        self._begun: set[Name] | None = set()
        """What began here before this worker had looked for what waits for its code."""

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def attempts(self) -> list[LiveAttempt]:
        """What it runs."""
        return list(self._attempts.values())

    def resident(self, namespace: str, execution_id: str) -> LiveAttempt | None:
        """What it runs of an execution, if it does."""
        return self._attempts.get((namespace, execution_id))

    @property
    def busy(self) -> int:
        return len(self._running)

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        options, tell = self._options, self._engine.telemetry.tell
        tell(WorkerStarted(options.name, options.lanes, options.capabilities, options.concurrency))
        self._duties = [
            asyncio.create_task(self._claim_for_ever(), name="outlast claim"),
            asyncio.create_task(self._renew_for_ever(), name="outlast renew"),
            asyncio.create_task(self._answer_for_ever(), name="outlast answer"),
        ]

    def kick(self) -> None:
        """There may be work."""
        self._kick.set()

    async def drain(self) -> None:
        """Claim nothing more; let what runs finish for a while, then hand it back. Whoever cuts this short still leaves
        nothing behind: what cannot be handed back at once is abandoned."""
        try:
            await self._drain()
        except asyncio.CancelledError:
            self.errand(self.stop())
            await asyncio.wait(self._errands, timeout=CUT_SHORT_S)
            await self.abandon()
            raise

    async def _drain(self) -> None:
        self._draining = True
        self._kick.set()
        self._freed.set()
        claim, *others = self._duties or [None]
        if claim is not None:
            await asyncio.gather(claim, return_exceptions=True)
        await self._until_promises_are_kept()
        for attempt in self._attempts.values():
            attempt.suspending.hurry()
        options, tell = self._options, self._engine.telemetry.tell
        tell(WorkerDrains(options.name, tuple(name for _, name in self._attempts), options.drain_ms))
        if self._running:
            await asyncio.wait(self._running.values(), timeout=options.drain_ms / 1_000)
        left = tuple(name for _, name in self._attempts)
        await self.stop()
        await asyncio.gather(*self._errands, return_exceptions=True)
        for duty in others:
            if duty is not None:
                duty.cancel()
        await asyncio.gather(*(duty for duty in others if duty is not None), return_exceptions=True)
        self._duties = []
        await self._end_sessions()
        tell(WorkerDrained(options.name, handed_back=left))

    async def _until_promises_are_kept(self) -> None:
        """Starts under way are answered soon, and handed back then; nobody waits for ever for a store that is gone."""
        with suppress(TimeoutError):
            async with self._engine.timing.limit(self._options.drain_ms / 1_000):
                while self._promised:
                    self._freed.clear()
                    await self._freed.wait()

    async def abandon(self) -> None:
        """Stop without a word, as a killed process does; its leases run out."""
        self._draining = True
        for attempt in self._attempts.values():
            attempt.lose("abandoned")
        tasks = (*self._duties, *self._running.values(), *self._errands)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()  # one that was cancelled before its first turn has not left by itself

    async def stop(self) -> None:
        """Hand back what runs, now."""
        await asyncio.gather(
            *(attempt.hand_back() for attempt in list(self._attempts.values())), return_exceptions=True
        )
        if self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _end_sessions(self) -> None:
        """A drained worker says that it is gone, unless leases still hang on its sessions."""
        engine, options = self._engine, self._options
        try:
            renewed = await self._parts.holder.renew(options.name, options.lease_ttl_ms)
            if renewed.held:
                return
            gone = [
                session_ended(partition, options.name, engine.entropy.new_id())
                for partition in range(engine.store.partitions)
            ]
            # All at once: they share a commit, or one for each server, instead of as many as there are partitions.
            await asyncio.gather(*(engine.group.commit(changes) for changes in gone))
        except OutlastError as error:
            _log.warning("the sessions of worker %s run out by themselves: %s", options.name, error)

    # ---- claiming -------------------------------------------------------------------------------------------------

    async def _claim_for_ever(self) -> None:
        await self._announce()
        await self._say_what_it_offers()
        timing = self._engine.timing
        looking = asyncio.create_task(self._wake_what_waits_for_code(), name="outlast code")
        try:
            # Before the first claim, as a rule. But one server that is away keeps nobody from what lives on the others.
            with suppress(TimeoutError):
                async with timing.limit(self._options.lease_ttl_ms / 3_000):
                    await asyncio.shield(looking)
            await self._claim_until_drained()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _claim_until_drained(self) -> None:
        while not self._draining:
            # One look for all that rings or ends together, such as a batch of ends, or a start here and its doorbell.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if self._draining:
                break
            self._freed.clear()
            free = self._free()
            if free > 0:
                self._kick.clear()
                while (more := await self._claim(min(free, self._most))) and self._halves and not self._draining:
                    if (free := self._free()) <= 0:
                        break
                if more:
                    self._kick.set()  # there may be more: look again as soon as capacity frees
                    await asyncio.sleep(0)
                    if self._free() > 0:
                        continue
            # Until somebody kicks; without room, until an attempt ends. The net: look anyway.
            await self._engine.timing.beat(self._pause_s(), unless=self._kick if free > 0 else self._freed)

    def _pause_s(self) -> float:
        """Nobody rings for what the last looks passed over, such as a row that a commit had locked: look again soon."""
        poll_s = self._options.poll_ms / 1_000
        return min(PASSED_OVER_S * 2 ** min(self._passed_over, 20), poll_s) if self._passed_over else poll_s

    async def _announce(self) -> None:
        """A session in every partition, before anything is claimed: a claim makes only those that it takes from, and
        what is started here (`promise`) may live in any."""
        if self._engine.store.partitions > 1:
            try:
                await self.renew()
            except OutlastError as error:
                _log.warning("the first renewal failed, and is tried again: %s", error)

    def _free(self) -> int:
        """Room is for code. But a worker for one at a time has nothing else under way before that is durable."""
        concurrency = self._options.concurrency
        leaving = min(len(self._leaving), concurrency - 1)
        return concurrency - len(self._running) + leaving - self._promised

    async def _claim(self, limit: int) -> bool:
        """Take up to so many; whether there may be more to take."""
        serves = self._serves()
        if not serves:
            return False
        options = self._options
        # Two suspects never share a process: the one that kills it must not take another along.
        has_suspect = any(parse_route(attempt.execution.route).suspect for attempt in self._attempts.values())
        request = ClaimRequest(
            namespace=options.namespace,
            lanes=options.lanes,
            serves=serves,
            capabilities=options.capabilities,
            worker=options.name,
            claim_id=self._engine.entropy.new_id(),
            limit=limit,
            lease_ttl_ms=options.lease_ttl_ms,
            leap=2 + int(self._engine.entropy.random() * (limits.LEAP_MAX - 1)),
            suspects=0 if has_suspect else 1,
            first=True,
        )
        self._claiming = limit
        try:
            claimed = await self._parts.holder.claim(request)
            for one in claimed.executions:
                self._begin(one)
        except Exception as error:  # whatever it is: a worker that claims no more must not live on
            self._lanes_empty, unexpected = False, not isinstance(error, OutlastError)
            if not self._engine.group.refusals.explain(error):
                _log.warning("claiming failed, and is tried again: %s", error, exc_info=unexpected)
            return False
        finally:
            self._claiming = 0
        self._passed_over = int(claimed.passed_over) if claimed.executions else (self._passed_over + 1) * claimed.more
        self._lanes_empty = not claimed.more or len(claimed.executions) < limit
        return not self._lanes_empty

    # ---- what is started here -------------------------------------------------------------------------------------

    @property
    def _others_wait(self) -> bool:
        """Whether there may be ready work that nobody has asked for yet. What is being claimed has its room kept."""
        return not self._lanes_empty or self._kick.is_set()

    def promise(self, lane: str, requires: frozenset[str]) -> str | None:
        """The name to claim under, if what is started now may begin here at once: there is room for it, and nothing
        that waits is overtaken. The room is kept until `keep` or `release`."""
        options = self._options
        if self._others_wait or self._draining or self._free() <= self._claiming:
            return None
        if lane not in options.lanes or not requires <= options.capabilities:
            return None
        self._promised += 1
        return options.name

    def promise_next(self, execution: Execution, *, in_place_of: Execution | None) -> str | None:
        """The same for what follows on an attempt that ends here. In place of that, it takes the room which that
        leaves: as long as there is more, nobody waits for just that."""
        options, route = self._options, parse_route(execution.route)
        if self._draining or execution.namespace != options.namespace or route.suspect:
            return None
        served = execution.lane in options.lanes and route.requires <= options.capabilities
        if not served or (execution.workflow, execution.version) not in self._serves():
            return None
        if in_place_of is None and (self._others_wait or self._free() <= self._claiming):
            return None
        if in_place_of is not None and (self._others_wait or self._claiming) and self._free() <= 0:
            return None
        self._promised += 1
        leaving = in_place_of and self.resident(in_place_of.namespace, in_place_of.id)
        if leaving is not None:
            self._leaving.add(leaving)  # not counted twice; nobody is told, because nothing is free
        return options.name

    def keep(self, execution: Execution, data: bytes) -> None:
        """What was started under this worker's name begins; a draining worker hands it back."""
        self._promised -= 1
        if self._draining:
            self._freed.set()
            self.errand(self._hand_back(execution.namespace, execution.id, execution.epoch))
        else:
            self._begin(ClaimedExecution(execution, data))

    def release(self) -> None:
        """The room is not needed."""
        self._promised -= 1
        self._freed.set()

    # ---- running --------------------------------------------------------------------------------------------------

    def _begin(self, claimed: ClaimedExecution) -> None:
        execution = claimed.execution
        group = self._engine.group
        group.now = max(group.now, settled(execution.claimed_at) or 0)
        definition = self._definition(execution.workflow, execution.version)
        attempt = LiveAttempt(self._parts, claimed, definition, self)
        name = (execution.namespace, execution.id)
        if name in self._attempts:  # our lease ran out unnoticed, and we are the one who claimed it anew
            self._attempts[name].lose("the lease ran out, and it was claimed anew")
        self._attempts[name] = attempt
        if self._begun is not None:
            self._begun.add(name)
        self._running[attempt] = spawn(attempt.real, self._run(name, attempt), f"outlast {execution.id}")

    def leaves(self, attempt: LiveAttempt) -> None:
        """Its code has ended: others may have its room."""
        self._leaving.add(attempt)
        self._freed.set()

    async def _run(self, name: Name, attempt: LiveAttempt) -> None:
        try:
            try:
                await attempt.run()
            except CodecHookFailed as error:
                await put_off(attempt, error)
        except Exception as error:
            # Ours, not the user's: the lease runs out, and the execution is tried again.
            if not self._engine.group.refusals.explain(error):
                _log.exception("execution %s: the attempt broke", name[1])
        finally:
            if self._attempts.get(name) is attempt:
                del self._attempts[name]
            # At once: whoever waits for the result finds the room that it leaves.
            self._running.pop(attempt, None)
            self._leaving.discard(attempt)
            self._freed.set()

    async def _say_what_it_offers(self) -> None:
        """So that anybody can tell why something is not claimed. It is said again when more is registered."""
        options, engine = self._options, self._engine
        serves = tuple(sorted(self._serves()))
        if serves == self._offered:
            return
        offer = Offer(
            namespace=options.namespace,
            lanes=options.lanes,
            serves=serves,
            capabilities=tuple(sorted(options.capabilities)),
        )
        session = Session(
            partition=OFFERS_PARTITION,
            worker=options.name,
            expires_at=Now(options.lease_ttl_ms),
            started_at=Now(),
            offers=encode_offer(offer),
        )
        said = session_offers(session, engine.entropy.new_id())
        try:
            # Leases are renewed after this: if the one server that must hear it is away, the others do not wait long.
            async with engine.timing.limit(options.lease_ttl_ms / 3_000):
                await engine.group.commit(said)
        except (OutlastError, TimeoutError) as error:
            what = str(error) or "no answer in time"
            if not engine.group.refusals.explain(error):
                _log.warning("what worker %s offers could not be said, and is tried again: %s", options.name, what)
        else:
            self._offered = serves

    async def _wake_what_waits_for_code(self) -> None:
        """A replay that diverged waits for code that fits. A worker that starts may have it: let it try, once. What
        its own code finds not to fit meanwhile is not woken by it again."""
        engine = self._engine
        serves = self._serves()
        while self._begun is not None:
            try:
                async for execution in self._waiting_for_code():
                    begun = (execution.namespace, execution.id) in self._begun
                    if (execution.workflow, execution.version) in serves and not begun:
                        fact = Wake(change_id=engine.entropy.new_id(), cause=Reason.VERSION)
                        await engine.tell(execution.namespace, execution.id, fact, seen=execution)
                self._begun = None
            except OutlastError as error:
                _log.warning("looking for what waits for a version failed, and is tried again: %s", error)
                await engine.timing.beat(self._options.lease_ttl_ms / 3_000)

    async def _waiting_for_code(self) -> AsyncIterator[Execution]:
        """The store finds them: there may be many more that sleep."""
        after = None
        while True:
            query = Query(
                namespace=self._options.namespace,
                status=frozenset({Status.SUSPENDED}),
                reason=Reason.VERSION,
                after=after,
                limit=limits.FIND_MAX,
            )
            page = await self._engine.store.find(query)
            for execution in page.executions:
                yield execution
            after = page.cursor
            if after is None:
                return

    def errand(self, work: Coroutine[Any, Any, None]) -> None:
        errand = asyncio.create_task(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    # ---- leases ---------------------------------------------------------------------------------------------------

    async def _renew_for_ever(self) -> None:
        ttl_s = self._options.lease_ttl_ms / 1_000
        timing = self._engine.timing
        self._renewed_at = timing.time_s()
        while True:
            await timing.beat(ttl_s / 3)
            await self._say_what_it_offers()
            try:
                async with timing.limit(ttl_s):  # a frozen process may hold the file: this one must notice
                    await self.renew()
            except Exception as error:
                unexpected, what = not isinstance(error, OutlastError | TimeoutError), str(error) or "no answer in time"
                if not self._engine.group.refusals.explain(error):
                    _log.warning("renewing the leases failed, and is tried again: %s", what, exc_info=unexpected)
                if timing.time_s() - self._renewed_at > ttl_s:
                    for attempt in list(self._attempts.values()):
                        attempt.lose("the lease could not be renewed in time")

    def heard(self, partitions: Iterable[int]) -> None:
        """Somebody rang at home: something may have come from outside for what runs here."""
        self._rung_in.update(partitions)
        self._rung.set()

    async def _answer_for_ever(self) -> None:
        """One look for many rings: they do not say for whom they are, and most are this process's own ends."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            rung_in, self._rung_in = frozenset(self._rung_in), set()
            mine = self._mine(rung_in)
            if mine:
                try:
                    self._compare(mine, await self._parts.holder.held(self.name, rung_in))
                except Exception as error:  # whatever it is: nobody rings again for the same
                    _log.warning("looking for what came from outside failed, and is tried again: %s", error)
                    self.heard(rung_in)
                await self._engine.timing.beat(ANSWER_DISTANCE_S)

    async def renew(self) -> None:
        """Keep the leases, learn what came from outside, and put right what differs."""
        store, options = self._engine.store, self._options
        mine = self._mine(frozenset(range(store.partitions)))
        asked_at = self._engine.timing.time_s()
        renewed = await self._parts.holder.renew(options.name, options.lease_ttl_ms)
        over = self._not_renewed_in_time(renewed, asked_at)
        self._renewed_at = asked_at
        self._compare(mine, renewed, over)
        self._notice_unknown(renewed)

    def _mine(self, partitions: frozenset[int]) -> dict[Name, int]:
        """The epochs of what runs here and lives there."""
        number = self._engine.store.partitions
        everywhere = len(partitions) == number
        return {
            name: attempt.execution.epoch
            for name, attempt in self._attempts.items()
            if everywhere or partition_of(*name, number) in partitions
        }

    def _compare(self, mine: dict[Name, int], leases: Leases, over: frozenset[int] = frozenset()) -> None:
        """What ran here when the store was asked, with what it says. `over`: where the leases have run out."""
        held = {(one.namespace, one.id): one for one in leases.held}
        for name, epoch in mine.items():
            attempt = self._attempts.get(name)
            if attempt is None or attempt.execution.epoch != epoch:
                continue
            home = partition_of(*name, self._engine.store.partitions) if leases.unreached else -1
            if home in leases.unreached:
                if home in over:
                    attempt.lose("the lease could not be renewed in time")
            elif name not in held or held[name].epoch != epoch:
                attempt.lose("another holds it, or it has ended")
            else:
                attempt.hear(held[name].inbox)

    def _not_renewed_in_time(self, renewed: Renewed, asked_at: float) -> frozenset[int]:
        """The partitions of servers that are away for longer than a lease lasts."""
        before = self._unreached
        # One that was reached until now was renewed a beat ago, at the latest when the last renewal was asked for.
        self._unreached = {p: before.get(p, self._renewed_at) for p in renewed.unreached}
        ttl_s = self._options.lease_ttl_ms / 1_000
        return frozenset(p for p, since in self._unreached.items() if asked_at - since > ttl_s)

    def _notice_unknown(self, renewed: Renewed) -> None:
        """What the store says is ours and we do not run, and that not only because its claim has just been answered:
        a claim that was never begun."""
        now_s = self._engine.timing.time_s()
        before, self._unknown = self._unknown, {}
        for one in renewed.held:
            name = (one.namespace, one.id)
            if name in self._attempts:
                continue
            since_s = self._unknown[name, one.epoch] = before.get((name, one.epoch), now_s)
            if not self._claiming and now_s - since_s >= self._options.lease_ttl_ms / 1_000 * UNKNOWN_FOR:
                if not self._engine.group.refusals.under_way:
                    _log.warning("execution %s is held and does not run here: handed back", one.id)
                self.errand(self._hand_back(one.namespace, one.id, one.epoch))

    async def _hand_back(self, namespace: str, execution_id: str, epoch: int) -> None:
        engine = self._engine
        try:
            await engine.tell(namespace, execution_id, HandBack(change_id=engine.entropy.new_id(), epoch=epoch))
        except OutlastError as error:
            if not engine.group.refusals.explain(error):
                _log.warning("execution %s could not be handed back, and is tried again: %s", execution_id, error)
