"""Carries what one commit owes to other executions: at once in this process, by the reconciler otherwise.

Exactly once in effect. Where the target lives in the partition of the debt, the word and the striking off are one
commit. Elsewhere the fact itself is idempotent: its records carry its own change id, and stand until the debt is struck
off. A word that its target refuses for good (it has ended, or is gone) is struck off too, and the execution that sent
it keeps a record of that.

Some debts are errands: bounded work over many records (closing children, forgetting old generations, answering edges of
a flow), a part at a time, struck off with the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from outlast.errors import OutlastError, StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import Changes, Code, Insert, Refusal
from outlast.machine.decide import decide
from outlast.machine.upkeep import debt_refused, debt_struck, same_life
from outlast.model.deferred import Deferred, deferred_key
from outlast.model.event import CANCEL, Event, answer_id, event_key
from outlast.model.execution import Execution, execution_key
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.record import Key
from outlast.model.status import Status
from outlast.runtime.family import close_children
from outlast.runtime.flows.reopening import reopen_members
from outlast.runtime.flows.subflows import is_over, start_flow
from outlast.runtime.forgetting import forget

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine, Told

_log = logging.getLogger(__name__)

POSTED_MAX = 1_000
"""So much is carried at once in this process; what comes on top is left to the reconciler."""
NOT_YET_S = (0.01, 0.05, 0.2, 0.5)
"""A word to an execution that is not there is told again after these pauses, before it is undeliverable."""
PAGE, PAGES_MAX = 1_000, 20
"""So many debts are looked through for the start of whom a word is for."""
LINES_MAX, LEFT_MAX = 10_000, 100
"""So much is remembered of what had to be left for later."""
WORDS = (facts.EventSent, facts.DeferredResolved, facts.CancelRequested)
CLOSE_S = 5.0
"""So long a process that ends carries on with what it has begun: some of it takes minutes, such as a large retry."""


class Undelivered(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender keeps of a word that was refused."""

    target: str
    fact: str
    code: str
    message: str


class _Line:
    """From one execution to another."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.left: dict[str, Key] = {}
        """What could not be carried, and is owed until later: where it is, because there may be much of it."""

    def leave(self, delivery: Delivery) -> None:
        if len(self.left) < LEFT_MAX:
            self.left[delivery.id] = delivery.key


class Outbox:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines: dict[tuple[str, str, str], _Line] = {}
        self._posted: dict[asyncio.Task[None], Delivery] = {}
        self._closed = False

    # ---- at once --------------------------------------------------------------------------------------------------

    def post(self, changes: Changes) -> None:
        """These changes are committed: carry what they owe."""
        for write in changes.writes:
            if type(write) is Insert and type(write.record) is Delivery:
                if self._closed or len(self._posted) >= POSTED_MAX:
                    return
                task = asyncio.get_running_loop().create_task(self._carry(write.record), name="outlast outbox")
                self._posted[task] = write.record
                task.add_done_callback(self._posted.pop)

    def carrying(self, namespace: str, target: str) -> list[asyncio.Task[None]]:
        """What is under way to a target."""
        return [task for task, one in self._posted.items() if (one.namespace, one.target) == (namespace, target)]

    async def _carry(self, delivery: Delivery) -> None:
        try:
            await self.deliver(delivery)
        except OutlastError as error:
            _log.info("what is owed to %s is left to the reconciler: %s", delivery.target, error)

    async def close(self) -> None:
        """What is under way is carried to its end, if that is near. The rest is owed: a reconciler goes on with it."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + CLOSE_S
        while self._posted and (left_s := ends_s - loop.time()) > 0:
            await asyncio.wait(self._posted, timeout=left_s)
        await self.abandon()

    async def abandon(self) -> None:
        """As a killed process does."""
        self._closed = True
        for task in self._posted:
            task.cancel()
        await asyncio.gather(*self._posted, return_exceptions=True)

    # ---- one delivery ---------------------------------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> Told | None:
        """Carry it to its target, then strike it off; None if it was an errand, or was carried before. Repeating it is
        harmless."""
        fact, engine = facts.decode_debt(delivery.fact), self._engine
        match fact:
            case facts.CloseChildren():
                await close_children(engine, delivery.namespace, delivery.target, fact)
                await self.strike(delivery)
                return None
            case facts.Forget():
                await forget(engine, delivery.namespace, delivery.target, fact)
                await self.strike(delivery)
                return None
            case facts.MemberEnded():
                if not await engine.flows.member_ended(delivery, fact):
                    await self.strike(delivery)
                return None
            case facts.ReopenMembers():
                if not await reopen_members(engine, delivery):
                    await self.strike(delivery)
                return None
            case facts.StartFlow():
                refusal = await start_flow(engine, delivery, fact)
                await (self.strike(delivery) if refusal is None else self._refused(delivery, fact, refusal))
                return None
            case facts.Start() | facts.EventSent() | facts.DeferredResolved() | facts.CancelRequested():
                async with self._turn(delivery):
                    return await self._tell(delivery, fact)
            case _:
                return await self._tell(delivery, fact)

    @asynccontextmanager
    async def _turn(self, delivery: Delivery) -> AsyncGenerator[None]:
        """What one execution says to another arrives in the order in which it was said: if a word had to be left for
        later, those behind it are, too."""
        name = (delivery.namespace, delivery.source, delivery.target)
        line = self._lines.setdefault(name, _Line())
        line.users += 1
        try:
            async with line.turn:
                if await self._owes_more(line, delivery):
                    line.leave(delivery)
                    raise StoreUnavailable(f"{delivery.target!r} was not told yet what was said before")
                try:
                    yield
                except StoreUnavailable:
                    line.leave(delivery)
                    raise
                line.left.pop(delivery.id, None)
        finally:
            line.users -= 1
            if not line.users and (not line.left or len(self._lines) > LINES_MAX):
                self._lines.pop(name, None)

    async def _owes_more(self, line: _Line, delivery: Delivery) -> bool:
        """Whether something that was said before, and left for later, is still owed: others may have carried it."""
        before = {one: key for one, key in line.left.items() if one < delivery.id}
        if not before:
            return False
        found = await self._engine.store.load(list(before.values()))
        for one, there in zip(before, found, strict=True):
            if there is None:
                line.left.pop(one, None)
        return any(there is not None for there in found)

    async def _tell(self, delivery: Delivery, fact: facts.AnyFact) -> Told | None:
        """None if somebody else carried it before."""
        engine = self._engine
        closing = fact if isinstance(fact, facts.Start) and fact.closes else None
        acks = delivery if closing is None and self._is_near(delivery) else None
        seen: Execution | None = None
        if acks is None or isinstance(fact, facts.Start):  # else the change itself is guarded by the debt
            target = execution_key(delivery.namespace, delivery.target)
            record, *owed = await engine.store.load([target] if acks is not None else [target, delivery.key])
            assert record is None or isinstance(record, Execution)
            if owed == [None]:
                return None  # … perhaps so long ago that its target has ended since, and was purged
            seen = record
        if isinstance(fact, facts.Start) and fact.parent is not None and seen is not None:
            await self._answer(fact, fact.parent, seen)
        told = await engine.tell(delivery.namespace, delivery.target, fact, seen=seen, acks=acks)
        if isinstance(fact, facts.Start) and fact.parent is not None and seen is None:
            await self._answer_late(fact, fact.parent, told)
        for pause_s in NOT_YET_S if isinstance(fact, WORDS) else ():
            if told.refusal is None or told.refusal.code is not Code.UNKNOWN:
                break
            # Whoever told the sender of it may have started it just now: that start may still be on its way.
            await engine.timing.sleep(pause_s)
            told = await engine.tell(delivery.namespace, delivery.target, fact, acks=acks)
        unknown = told.refusal is not None and told.refusal.code is Code.UNKNOWN
        if unknown and isinstance(fact, WORDS) and (start := await self._start_owed(delivery)) is not None:
            await self._tell(*start)
            told = await engine.tell(delivery.namespace, delivery.target, fact, acks=acks)
        if closing is not None:
            await self._close_late(delivery, closing)
        refusal = told.refusal or _conflict(fact, told)
        said = refusal is not None and refusal.code is not Code.ALREADY and not isinstance(fact, facts.ChildCompleted)
        if refusal is not None and said and not await self._was_heard(fact, told):
            await self._refused(delivery, fact, refusal)
        elif closing is not None or not self._settled(delivery, told):
            await self.strike(delivery)
        return told

    async def _was_heard(self, fact: facts.Fact, told: Told) -> bool:
        """Whether somebody carried it before, and had not struck it off when its target ended."""
        target = told.before
        if target is None or not target.status.terminal:
            return False
        name = (target.namespace, target.id)
        match fact:
            case facts.EventSent():
                key = event_key(*name, fact.name, fact.dedup or fact.change_id)
            case facts.CancelRequested():
                key = event_key(*name, CANCEL, fact.change_id)
            case facts.DeferredResolved():
                key = deferred_key(*name, target.journal_generation, fact.name)
            case _:
                return False
        [heard] = await self._engine.store.load([key])
        return isinstance(heard, Event | Deferred) and heard.change_id == fact.change_id

    async def _start_owed(self, word: Delivery) -> tuple[Delivery, facts.Start] | None:
        """The start of whom the word is for, if its sender owes that, too. It may have been put off, because a server
        was away when it was to be carried."""
        after = None
        for _ in range(PAGES_MAX):
            page = await self._engine.store.scan(Delivery.KIND, (word.partition,), after=after, limit=PAGE)
            for debt in page:
                assert isinstance(debt, Delivery)
                mine = (debt.namespace, debt.source, debt.target) == (word.namespace, word.source, word.target)
                if mine and isinstance(fact := _read(debt), facts.Start):
                    return debt, fact
            if len(page) < PAGE:
                return None
            after = page[-1].key
        raise StoreUnavailable(f"too much is owed to tell whether {word.target!r} will be started: later")

    async def _close_late(self, delivery: Delivery, start: facts.Start) -> None:
        """A parent that ended before its child began has not found it. One that ends from here on will, and if this
        process dies, the debt stands, and all of this is done again."""
        assert start.parent is not None
        child = await self._engine.look(delivery.namespace, delivery.target)
        if child is not None and await is_over(self._engine, delivery.namespace, start.parent):
            reason = f"its parent {start.parent!r} ended before it began"
            cancel = facts.CancelRequested(change_id=f"{start.change_id}/close", reason=reason)
            await self._engine.tell(
                delivery.namespace, delivery.target, cancel, seen=child, only_if=(same_life(child),)
            )

    def _settled(self, delivery: Delivery, told: Told) -> bool:
        """Whether what was told struck the debt off by itself. What was told before, by somebody who then died, did not
        necessarily."""
        return told.applied and told.verdict is not None and not told.verdict.again and self._is_near(delivery)

    def _is_near(self, delivery: Delivery) -> bool:
        """Whether its target lives where the debt does: then the word and the striking off are one commit."""
        home = partition_of(delivery.namespace, delivery.target, self._engine.store.partitions)
        return home == delivery.partition

    async def _answer(self, fact: facts.Start, parent: str, existing: Execution) -> None:
        """There is one with that id. A parent that would wait for it must not wait for a word that will not come."""
        decided = decide(self._engine.view(existing.namespace, existing.id, existing), fact, self._engine.group.now)
        refusal = decided if isinstance(decided, Refusal) else None
        if refusal is not None and refusal.code is Code.CONFLICT:
            end, generation, cause = Status.FAILED, 0, refusal.message
        elif existing.parent != parent:
            end, generation, cause = Status.FAILED, 0, f"is not a child of {parent!r}: whoever started it hears of it"
        elif existing.status.terminal and refusal is not None:
            end, generation, cause = existing.status, existing.generation, existing.cause
        else:
            return
        answer = facts.ChildCompleted(
            change_id=answer_id(fact.change_id),
            child=fact.id,
            status=end,
            value=None,
            generation=generation,
            cause=cause,
        )
        await self._engine.tell(fact.namespace, parent, answer)

    async def _answer_late(self, fact: facts.Start, parent: str, told: Told) -> None:
        """There was none when it was looked for: somebody was faster. The debt stands until the parent has heard."""
        if told.refusal is not None and told.before is not None:
            await self._answer(fact, parent, told.before)

    async def _refused(self, delivery: Delivery, fact: facts.Fact, refusal: Refusal) -> None:
        """Struck off, and recorded with its sender, if that is still there. Not if somebody else carried it meanwhile:
        then the target has heard it, and may have ended since."""
        what, why = type(fact).__name__, refusal.message if refusal.code is Code.UNKNOWN else f"it {refusal.message}"
        _log.warning("%s: %s for %s is refused: %s", delivery.source, what, delivery.target, why)
        note = Undelivered(target=delivery.target, fact=what, code=refusal.code, message=refusal.message)
        verdict = await self._engine.group.commit(debt_refused(delivery, msgspec.json.encode(note)))
        if not verdict.applied:
            await self.strike(delivery)

    async def strike(self, delivery: Delivery) -> None:
        """Nothing is owed any more."""
        await self._engine.group.commit(debt_struck(delivery, self._engine.entropy.new_id()))


def _read(debt: Delivery) -> facts.Fact | None:
    """What it says, if that can be read: the reconciler strikes off what cannot."""
    try:
        return facts.decode_debt(debt.fact)
    except msgspec.DecodeError:
        return None


def _conflict(fact: facts.Fact, told: Told) -> Refusal | None:
    """A deferred that was resolved otherwise before."""
    stands = told.instead
    if not isinstance(fact, facts.DeferredResolved) or not isinstance(stands, Deferred):
        return None
    if stands.resolution is fact.resolution and stands.value == fact.value:
        return None
    return Refusal(Code.CONFLICT, f"has deferred {fact.name!r} {stands.resolution} with another value")
