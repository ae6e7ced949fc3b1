"""The user's own tables: what a function does there and the change that it gives are one commit, or neither is.

A store that has no such tables says so (`capabilities.transactions`), and has no `transact`.
"""

from __future__ import annotations

from typing import Any

from outlast.errors import StatementRefused
from outlast.machine.changes import Changes
from outlast.model.journal import JournalEntry
from outlast.store.port import Body, Store, Transacted, Transacting
from outlast.testing.conformance.actors import commit_one, completes, decided, records, running, steps
from outlast.testing.conformance.harness import Conformance, OwnTable, World, refused
from outlast.testing.points import Crash

LIMIT_MS = 5_000


class Work:
    """A user's function: so many statements, then the change, or an exception."""

    def __init__(self, store: Store, *statements: str, gives: Changes | Exception) -> None:
        self.calls = 0
        self.read: list[str] = []
        """The first column of what the last statement gave."""
        self._statements = statements
        self._gives = gives
        self._is_async = store.capabilities.transactions == "async def"

    @property
    def body(self) -> Body:
        return self._async_body if self._is_async else self._body

    def _body(self, connection: Any) -> Changes:
        self.calls += 1
        for sql in self._statements:
            self.read = [str(row[0]) for row in list(connection.execute(sql))]
        return self._given()

    async def _async_body(self, connection: Any) -> Changes:
        self.calls += 1
        for sql in self._statements:
            self.read = [str(row[0]) for row in await connection.fetch(sql)]
        return self._given()

    def _given(self) -> Changes:
        if isinstance(self._gives, Exception):
            raise self._gives
        return self._gives


async def transact(store: Store, check: Changes, work: Work, limit_ms: int = LIMIT_MS) -> Transacted:
    assert isinstance(store, Transacting)
    return await store.transact(check, work.body, limit_ms=limit_ms)


async def ledger(store: Store, own: OwnTable, check: Changes) -> list[str]:
    """What the user's table holds; read in a transaction that leaves nothing."""
    work = Work(store, own.create, own.read, gives=LookupError("only looking"))
    await transact(store, check, work)
    return work.read


async def names(store: Store) -> list[str]:
    return [entry.name for entry in await records(store, JournalEntry)]


def own_table(world: World, store: Store) -> OwnTable | None:
    """None for a store that has no tables of a user's; then it has no `transact` either."""
    own = world.own_table
    assert (own is None) == (store.capabilities.transactions is None), "its harness has the statements for it"
    assert isinstance(store, Transacting) == (own is not None)
    return own


class TransactionConformance(Conformance):
    async def test_what_it_did_and_its_change_are_one_commit(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        work = Work(store, own.create, own.add, gives=change)
        done = await transact(store, change, work)
        assert done.raised is None
        assert done.verdict is not None
        assert (done.verdict.applied, done.verdict.again) == (True, False)
        assert done.now >= (await records(store, JournalEntry))[0].recorded_at  # type: ignore[operator]
        assert (await names(store), await ledger(store, own, decided(store, held, steps(held, "look")))) == (
            ["paid"],
            ["done"],
        )

    async def test_what_it_raises_rolls_all_of_it_back_and_is_given_back(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        error = ValueError("no money")
        done = await transact(store, change, Work(store, own.create, own.add, gives=error))
        assert (done.verdict, done.raised) == (None, error)
        assert (await names(store), await ledger(store, own, change)) == ([], [])

    async def test_a_change_that_would_be_refused_is_refused_before_it_is_called(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        assert (await commit_one(store, decided(store, held, completes(held)))).applied
        change = decided(store, held, steps(held, "paid"))
        work = Work(store, own.create, own.add, gives=change)
        done = await transact(store, change, work)
        assert done.verdict is not None
        assert (done.verdict.applied, work.calls) == (False, 0)
        assert await names(store) == []

    async def test_the_same_again_is_answered_and_not_done_again(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        await transact(store, change, Work(store, own.create, own.add, gives=change))
        again = Work(store, own.create, own.add, gives=change)
        done = await transact(store, change, again)
        assert done.verdict is not None
        assert (done.verdict.applied, done.verdict.again, again.calls) == (True, True, 0)
        assert await ledger(store, own, decided(store, held, steps(held, "look"))) == ["done"]

    async def test_it_cannot_reach_what_is_outlasts_own_nor_end_the_transaction(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        for sql in (own.reach_in, "COMMIT", "ROLLBACK"):
            error = None
            try:
                error = (await transact(store, change, Work(store, own.create, own.add, sql, gives=change))).raised
            except StatementRefused as raised:
                error = raised
            assert isinstance(error, StatementRefused), sql
        assert (await names(store), await ledger(store, own, change)) == ([], [])

    async def test_it_is_stopped_when_it_takes_too_long_and_leaves_nothing(self, world: World) -> None:
        store = await world.store()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        error: BaseException | None = None
        try:
            error = (
                await transact(store, change, Work(store, own.create, own.add, own.endless, gives=change), limit_ms=50)
            ).raised
        except TimeoutError as late:
            error = late
        assert isinstance(error, TimeoutError)
        assert (await names(store), await ledger(store, own, change)) == ([], [])
        assert (await commit_one(store, change)).applied, "others can write again"

    async def test_a_crash_before_the_commit_leaves_neither(self, world: World) -> None:
        store, points = await world.with_points()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        points.crash_at("transact:commit")
        await refused(transact(store, change, Work(store, own.create, own.add, gives=change)), Crash)
        other = await world.store()
        assert (await names(other), await ledger(other, own, change)) == ([], [])

    async def test_a_crash_after_the_commit_leaves_both_and_whoever_repeats_it_is_told(self, world: World) -> None:
        store, points = await world.with_points()
        own = own_table(world, store)
        if own is None:
            return
        held = await running(store)
        change = decided(store, held, steps(held, "paid"))
        points.crash_at("transact:reply")
        await refused(transact(store, change, Work(store, own.create, own.add, gives=change)), Crash)
        other = await world.store()
        again = Work(other, own.create, own.add, gives=change)
        done = await transact(other, change, again)
        assert done.verdict is not None
        assert (done.verdict.applied, done.verdict.again, again.calls) == (True, True, 0)
        assert await ledger(other, own, decided(other, held, steps(held, "look"))) == ["done"]
