"""Run a user's function on a connection to the store's database, in the transaction that commits what came of it.

Its connections are not those that the store writes with: they have the settings that the user's role has (search_path
above all). The guards are read before the function is called, without locks, so that a zombie does not begin and a
commit whose reply was lost is found; and again, under locks, in the last statement of the transaction. So nobody waits
for the user's function but those who want the same rows of the user's.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from outlast.errors import StatementRefused, StoreUnavailable, TransactionUnsupported, WrongPlace
from outlast.machine.changes import Absent, Changes, Insert, Matches
from outlast.machine.guards import failed_guard
from outlast.model.journal import JournalEntry
from outlast.store.port import Body, Transacted, Verdict
from outlast.store.postgres.commit import Call, explanation, seen_by
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.errors import UNDONE_BEFORE, KeyTaken, is_away, is_refused, sqlstate, was_undone
from outlast.store.postgres.functions import CALLS
from outlast.store.postgres.reading import load
from outlast.store.postgres.statements import statement
from outlast.store.postgres.time import StoreTime

T = TypeVar("T")

_LEADING = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORDS = re.compile(r"[a-z_]+")
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_OURS = re.compile(r'(?<![\w.])"?outlast"?\s*\.\s*(?!"?start"?\s*\()', re.IGNORECASE)
_ENDS = "BEGIN, COMMIT and ROLLBACK belong to Outlast: raise an exception to roll back, use savepoint() for a part"
_SESSION = "this would change the connection beyond the transaction; SET LOCAL does not"
_NEVER = {
    **dict.fromkeys(("abort", "begin", "commit", "end", "rollback", "start", "savepoint", "release"), _ENDS),
    **dict.fromkeys(("deallocate", "discard", "listen", "load", "prepare", "reset", "unlisten"), _SESSION),
}
GRACE_MS = 2_000
"""So much later than the process, the server itself stops what takes too long; so long a rollback may take."""
LATE_S = 0.5
"""A limit that is noticed so much later than it passed was not the function's to keep."""
CHANCES = 20
_LOST = {"57P01", "57P02", "57P03"}
savepoints_var: ContextVar[tuple[object, ...]] = ContextVar("outlast_savepoints", default=())
"""The savepoints that something is done in; also by a task that was begun there."""


class SqlConnection:
    """What `outlast.connection()` gives: SQL on the store's own database, in the step's own transaction.

    The methods are those of asyncpg, with values as `$1`, `$2`.
    """

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.error: Exception | None = None
        """What a statement raised, which the server has rolled back with all that came before; or that one was given
        up, or met another one, of which nobody knows what became."""
        self.crash: BaseException | None = None
        """A test's crash point: not the user's to catch."""
        self._under_way = False
        """Whether a statement is on its way."""
        self._savepoints: list[object] = []
        """Those that are open, the innermost last."""
        self._parts = 0
        """How many there were: each has a name of its own."""
        self._ended: str | None = None
        """One that has come to its end: it is released when the next one begins, or with the transaction."""
        self._met: StatementRefused | None = None
        """Why two were beside each other: no savepoint takes that back."""

    async def execute(self, sql: str, *values: Any) -> str:
        """Run a statement; what the server says of it, such as `UPDATE 3`."""

        async def executed(connection: Any) -> str:
            if values:
                return await connection.execute(sql, *values)
            # Prepared, because the server takes only one statement so.
            prepared = await connection.prepare(sql)
            await prepared.fetch()
            return prepared.get_statusmsg()

        return await self._done(sql, executed)

    async def executemany(self, sql: str, many: Iterable[Sequence[Any]]) -> None:
        await self._done(sql, lambda connection: connection.executemany(sql, many))

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """The rows, as asyncpg's records."""
        return await self._done(sql, lambda connection: connection.fetch(sql, *values))

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        """The first row, or None."""
        return await self._done(sql, lambda connection: connection.fetchrow(sql, *values))

    async def fetchval(self, sql: str, *values: Any) -> Any:
        """The first value of the first row, or None."""
        return await self._done(sql, lambda connection: connection.fetchval(sql, *values))

    async def fetch_ours(self, sql: str, *values: Any) -> list[Any]:
        """A statement of Outlast's own (`start_in`)."""
        return await self._done("", lambda connection: connection.fetch(sql, *values))

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """What fails in it is rolled back alone: `async with connection.savepoint(): …`."""
        self._parts += 1
        name, ended, self._ended = f"part_{self._parts}", self._ended, None
        begin = f"SAVEPOINT {name}" if ended is None else f"RELEASE {ended}; SAVEPOINT {name}"
        try:
            await self._done("", lambda connection: connection.execute(begin))
        except asyncio.CancelledError:
            await self._undo_part(name)  # the server has heard of it all the same
            raise
        around, mine = savepoints_var.get(), object()
        self._savepoints.append(mine)
        savepoints_var.set((*around, mine))
        try:
            yield
        except (Exception, asyncio.CancelledError):
            await self._undo_part(name)
            raise
        else:
            # Nothing is awaited here: a RELEASE that is given up could not be taken back.
            self._meets_another()
            self._usable("")
            self._ended = name
        finally:
            self._savepoints.remove(mine)
            savepoints_var.set(around)

    async def _undo_part(self, name: str) -> None:
        """Back to where it began. If that can't be, it is as if all of it had been given up."""
        if self._session is None or self._meets_another() or self._is_gone():
            return
        self.error = self.error or _given_up()
        try:
            back = f"ROLLBACK TO {name}; RELEASE {name}"
            await self._session.connection.execute(back, timeout=GRACE_MS / 1_000)
        except Exception as error:
            if sqlstate(error) or self._session.is_closed():
                self.error = error
            return
        self.error, self._ended = self._met, None

    def must_be_done_anew(self) -> Exception | None:
        """An error that is nobody's fault: the server undid the transaction for another's sake, or went away."""
        if self.error is None or isinstance(self.error, StatementRefused):
            return None
        return self.error if was_undone(self.error) or self._is_gone() else None

    def refusal(self) -> StatementRefused | None:
        """Why what was done cannot be committed, though the function has returned."""
        if self._under_way:
            return StatementRefused("the function returned while a statement of its was still under way: await each")
        if self._savepoints:
            return StatementRefused(
                "the function returned while a savepoint of its was still under way: await its task"
            )
        if isinstance(self.error, StatementRefused):
            return self.error
        if self.error is None:
            return None
        return StatementRefused(
            f"a statement failed ({self.error}), and PostgreSQL has rolled everything back: raise what it raised"
        )

    def _is_gone(self) -> bool:
        closed = self._session is None or self._session.is_closed()
        return self.error is not None and (closed or sqlstate(self.error) in _LOST)

    def close(self) -> None:
        self._session = None

    def _usable(self, sql: str) -> Session:
        if self._session is None:
            raise WrongPlace("this connection was of a transaction that is over")
        if isinstance(self.error, StatementRefused):
            raise self.error
        if self.error is not None:
            raise StatementRefused(
                f"a statement before failed ({self.error}), and PostgreSQL has rolled everything back: raise what it "
                "raised, or do such a statement in `async with connection.savepoint():`"
            )
        why = refused(sql)
        if why is not None:
            raise StatementRefused(why)
        return self._session

    def _meets_another(self) -> bool:
        """Whether what comes now is beside another one, or in a savepoint that is none of its own."""
        if self._under_way:
            self._met = StatementRefused(
                "another statement of this transaction is still under way: await one after the other"
            )
        elif self._savepoints and self._savepoints[-1] not in savepoints_var.get():
            self._met = StatementRefused(
                "a savepoint of another task is still under way, and would roll this back: await one after the other"
            )
        else:
            return False
        self.error = self._met
        return True

    async def _done(self, sql: str, do: Callable[[Any], Awaitable[T]]) -> T:
        self._meets_another()
        session = self._usable(sql)
        self._under_way = True
        try:
            session.point("statement")
            answer = await do(session.connection)
            session.point("statement done")
            return answer
        except Exception as error:
            if sqlstate(error) or session.is_closed():
                self.error = error
            raise
        except asyncio.CancelledError:
            self.error = _given_up()
            raise
        except BaseException as crash:
            self.crash = crash
            raise
        finally:
            self._under_way = False


def _given_up() -> StatementRefused:
    return StatementRefused(
        "a statement was given up (cancelled, or its time was over), and everything is rolled back with it: raise what "
        "was raised, or do such a statement in `async with connection.savepoint():`"
    )


def refused(sql: str) -> str | None:
    """Why a transaction may not do this; None if it may. It keeps from accidents: what a function on the server or a
    trigger does is not looked at."""
    leading = _LEADING.match(sql)
    assert leading is not None
    words = _WORDS.findall(sql[leading.end() :][:200].lower())
    first, second = (*words, "", "")[:2]
    if first == "set" and second not in ("local", "constraints"):
        return _SESSION
    if first in _NEVER:
        return _NEVER[first]
    if _OURS.search(_LITERAL.sub("''", sql)):
        return "the schema outlast is Outlast's own; a transaction may call outlast.start(…), and nothing else of it"
    return None


async def transact(
    pool: Pool, own: Pool, time: StoreTime, partitions: int, check: Changes, body: Body, limit_ms: int
) -> Transacted:
    """`pool` reads, `own` is where the user's functions run."""
    begin = f"{own.begin()}; {statement('transact:begin').format(limit_ms=limit_ms + GRACE_MS)}"
    # Behind pgbouncer a session is everybody's, and what it is like is not ours to say.
    reset = "" if own.is_shared else statement("transact:reset")

    async def rehearse(changes: Changes) -> Verdict | None:
        return await pool.call("transact", lambda session: _rehearsed(session, partitions, changes), writes=False)

    async def once(session: Session) -> Transacted | Changes:
        verdict = await rehearse(check)
        if verdict is not None:
            return Transacted(time.saw(0), verdict)
        try:
            await session.script(begin)
            changes = await _done(session, body, limit_ms)
            if isinstance(changes, Changes):
                return changes if (raised := await _committed(session, time, changes, reset)) is None else raised
            await _rolled_back(session, reset)
            return Transacted(time.saw(0), raised=changes)
        except (Exception, asyncio.CancelledError):
            await _rolled_back(session, reset)
            raise
        except BaseException:
            session.connection.terminate()
            raise

    for _ in range(CHANCES):
        try:
            done = await own.call("transact", once, transaction=None)
        except (KeyTaken, StoodStill):
            continue  # somebody recorded it just now, the lease is lost, or no time has passed: look again
        if isinstance(done, Transacted):
            return done
        return await pool.call("transact", lambda session: _heard(session, time, done), writes=False)  # noqa: B023
    raise StoreUnavailable(f"the change {check.id!r} met others at every turn")


async def _rehearsed(session: Session, partitions: int, check: Changes) -> Verdict | None:
    """A verdict if the change would not be applied as things are, or was applied before."""
    keys = seen_by(check)
    records = dict(zip(keys, await load(session, partitions, keys, checked=False), strict=True))
    timeless = tuple(guard for guard in check.guards if isinstance(guard, Matches | Absent))
    failed = failed_guard(timeless, check.writes, records, 0)
    return None if failed is None else explanation(check, records, failed)


async def _done(session: Session, body: Body, limit_ms: int) -> Changes | Exception:
    """What the body gives to commit, or what it raised."""
    mine = SqlConnection(session)
    try:
        return await _called(mine, body, limit_ms)
    except _Crashed as crashed:
        raise crashed.crash from None
    except StoodStill:
        raise
    except Exception as raised:
        anew = mine.must_be_done_anew()
        if anew is not None:
            raise anew from raised
        return raised
    finally:
        mine.close()


async def _committed(session: Session, time: StoreTime, changes: Changes, reset: str) -> Transacted | None:
    """None when it is; or what a constraint of the user's says that is checked at the end."""
    call = Call([(0, changes)])
    asked = msgspec.json.encode({**call.document(), **time.values()})
    session.point("commit")
    try:
        await session.connection.execute(CALLS["transact"].replace("{asked}", asked.hex()) + reset)
    except Exception as error:
        if sqlstate(error) == UNDONE_BEFORE:
            await _rolled_back(session, reset)
            return Transacted(time.saw(0), raised=StatementRefused(f"a statement before the end failed: {error}"))
        if is_away(error) or was_undone(error) or not sqlstate(error) or is_refused(error):
            raise
        await _rolled_back(session, reset)
        return Transacted(time.saw(0), raised=error)
    return None


async def _heard(session: Session, time: StoreTime, changes: Changes) -> Transacted:
    entry = next(
        write.record for write in changes.writes if isinstance(write, Insert) and isinstance(write.record, JournalEntry)
    )
    names = ("namespace", "execution", "generation", "scope", "name", "occurrence")
    values = {"partition": changes.partition, **{name: getattr(entry, name) for name in names}}
    rows = await session.rows(statement("transact:after"), values)
    if not rows:  # purged since: nobody will ask
        return Transacted(time.saw(0), Verdict(True))
    [(inbox, recorded_at)] = rows
    time.saw(recorded_at)
    return Transacted(recorded_at, Verdict(True, inbox))


async def _rolled_back(session: Session, reset: str) -> None:
    """The server hears of it before anything else is done: what it still does holds locks."""
    if not session.is_closed():
        try:
            await session.connection.execute(f"ROLLBACK{reset}", timeout=GRACE_MS / 1_000)
        except Exception:
            session.connection.terminate()


class StoodStill(StoreUnavailable):
    """The process was frozen, or its event loop blocked: that is no time of the user's function."""


class _Crashed(BaseException):
    def __init__(self, crash: BaseException) -> None:
        self.crash = crash


async def _called(mine: SqlConnection, body: Body, limit_ms: int) -> Changes:
    made = body(mine)
    if not inspect.isawaitable(made):
        raise TransactionUnsupported("PostgreSQL runs a transaction in the event loop: write it as async def")
    try:
        changes = await _within(made, limit_ms)
    finally:
        if mine.crash is not None:
            raise _Crashed(mine.crash)
    why = mine.refusal()
    if why is not None:
        raise why
    return changes


async def _within(doing: Awaitable[T], limit_ms: int) -> T:
    limit, clock = asyncio.timeout(limit_ms / 1_000), asyncio.get_running_loop().time
    over_s = clock() + limit_ms / 1_000
    try:
        async with limit:
            return await doing
    except TimeoutError:
        if limit.expired() and clock() > over_s + LATE_S:
            raise StoodStill(f"the process stood still for {clock() - over_s:.1f} s") from None
        if limit.expired():
            raise TimeoutError(f"the transaction took longer than {limit_ms / 1_000:g} s") from None
        raise
