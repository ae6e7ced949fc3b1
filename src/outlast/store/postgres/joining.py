"""Start an execution on somebody else's connection, inside of their transaction.

What is asked is written once, as a generator of statements, and carried by whatever the caller has: asyncpg, psycopg,
SQLAlchemy or Django, in either colour. None of these is imported here: a connection is known by the names of its types.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from outlast.errors import StoreError, WrongConnection
from outlast.machine.changes import Changes, Insert
from outlast.model.execution import Execution
from outlast.model.payload import Role
from outlast.store.port import Joined
from outlast.store.postgres.commit import Call
from outlast.store.postgres.functions import CALLS, heard_by_all
from outlast.store.postgres.statements import TABLES, bound
from outlast.store.postgres.time import StoreTime
from outlast.store.postgres.transacting import SqlConnection

T = TypeVar("T")
Rows: TypeAlias = Sequence[Sequence[Any]]
Asking: TypeAlias = Generator[tuple[str, dict[str, Any]], Rows, T]
"""Statements with their values by name; what comes back for each; and the answer to it all."""
Values: TypeAlias = Mapping[str, Any]

_NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


def starting(identity: str, time: StoreTime, changes: Changes) -> Asking[Joined]:
    execution = next(
        write.record for write in changes.writes if isinstance(write, Insert) and isinstance(write.record, Execution)
    )
    caller = secrets.token_hex(8)
    [[known, _]] = yield CALLS["start:join"], {"caller": caller}
    if not known:
        raise WrongConnection(
            "this connection is to another database than the app's store: there are no functions of this version of "
            "Outlast in it"
        )
    call = Call([(0, changes)])
    asked = {
        **call.document(),
        **time.values(),
        "heard": heard_by_all(changes.rings),
        "partition": changes.partition,
        "namespace": execution.namespace,
        "id": execution.id,
        "workflow": execution.workflow,
        "input_digest": execution.input_digest,
        "role": Role.INPUT,
        "store": identity,
        "caller": caller,
    }
    [[outcome, existing, now]] = yield CALLS["start:call"], {"asked": msgspec.json.encode(asked).decode()}
    match outcome:
        case "started":
            time.saw(now)
            return Joined()
        case "exists":
            return _existing(msgspec.json.decode(existing))
        case "elsewhere":
            raise WrongConnection("this connection is to another database than the app's store")
        case "alone":
            raise WrongConnection(
                "no transaction is under way on this connection (autocommit): begin one, or use .start(…)"
            )
        case _:
            raise StoreError(f"outlast.start answered {outcome!r}")


def _existing(row: dict[str, Any]) -> Joined:
    execution = TABLES[Execution.KIND].record(row[name] for name in TABLES[Execution.KIND].fields)
    assert isinstance(execution, Execution)
    return Joined(execution, None if row["input"] is None else bytes.fromhex(row["input"]))


# ---- carrying it --------------------------------------------------------------------------------------------------


async def carried(asking: Asking[T], connection: Any) -> T:
    ask = _ASYNC.get(_kind_of(connection, blocking=False))
    assert ask is not None
    rows: Any = None
    while True:
        try:
            sql, values = asking.send(rows)
        except StopIteration as done:
            return done.value
        rows = await ask(connection, sql, values)


def carried_blocking(asking: Asking[T], connection: Any) -> T:
    ask = _BLOCKING.get(_kind_of(connection, blocking=True))
    assert ask is not None
    rows: Any = None
    while True:
        try:
            sql, values = asking.send(rows)
        except StopIteration as done:
            return done.value
        rows = ask(connection, sql, values)


def _kind_of(connection: Any, *, blocking: bool) -> str:
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__]
    mine, others = (_BLOCKING, _ASYNC) if blocking else (_ASYNC, _BLOCKING)
    for name in names:
        if name in mine:
            _check_dialect(connection)
            return name
    shown = names[0]
    if any(name in others for name in names):
        raise WrongConnection(
            f"{shown} is a connection for async code: await .start_in(…)"
            if blocking
            else f"{shown} is a connection that blocks: use .sync.start_in(…), in a thread without an event loop"
        )
    raise WrongConnection(
        f"{shown} is no connection that Outlast knows: use one of asyncpg, psycopg (3), SQLAlchemy or Django, or call "
        "the SQL function outlast.start yourself"
    )


def _check_dialect(connection: Any) -> None:
    """Where a connection may be to something else than PostgreSQL."""
    get_bind = getattr(connection, "get_bind", None)
    speaks = getattr(get_bind() if get_bind is not None else connection, "dialect", None)
    name = getattr(connection, "vendor", None) if speaks is None else getattr(speaks, "name", None)
    if isinstance(name, str) and name != "postgresql":
        raise WrongConnection(f"this connection is to another database than the app's store: it speaks {name}")


def _percent(sql: str) -> str:
    return _NAME.sub(r"%(\1)s", sql)


async def _asyncpg(connection: Any, sql: str, values: Values) -> Rows:
    text, arguments = bound(sql, values)
    return await connection.fetch(text, *arguments)


async def _own(connection: SqlConnection, sql: str, values: Values) -> Rows:
    """Of a transactional step: what it starts is committed with it."""
    text, arguments = bound(sql, values)
    return await connection.fetch_ours(text, *arguments)


async def _psycopg(connection: Any, sql: str, values: Values) -> Rows:
    from psycopg import AsyncCursor

    # Not one of the connection's own kind: that may write parameters in another way.
    async with AsyncCursor(connection, row_factory=_tuples) as cursor:
        await cursor.execute(_percent(sql).encode(), values)
        return await cursor.fetchall()


def _psycopg_blocking(connection: Any, sql: str, values: Values) -> Rows:
    from psycopg import Cursor

    with Cursor(connection, row_factory=_tuples) as cursor:
        cursor.execute(_percent(sql).encode(), values)
        return cursor.fetchall()


def _tuples(cursor: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return tuple


async def _sqlalchemy(connection: Any, sql: str, values: Values) -> Rows:
    from sqlalchemy import text

    return (await connection.execute(text(sql), values)).all()


def _sqlalchemy_blocking(connection: Any, sql: str, values: Values) -> Rows:
    from sqlalchemy import text

    return connection.execute(text(sql), values).all()


def _django(connection: Any, sql: str, values: Values) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(_percent(sql), values)
        return cursor.fetchall()


_ASYNC: dict[str, Callable[[Any, str, Values], Awaitable[Rows]]] = {
    "asyncpg.connection.Connection": _asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _asyncpg,
    f"{SqlConnection.__module__}.{SqlConnection.__qualname__}": _own,
    "psycopg.AsyncConnection": _psycopg,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _sqlalchemy,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _sqlalchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _sqlalchemy,
}
_BLOCKING: dict[str, Callable[[Any, str, Values], Rows]] = {
    "psycopg.Connection": _psycopg_blocking,
    "sqlalchemy.engine.base.Connection": _sqlalchemy_blocking,
    "sqlalchemy.orm.session.Session": _sqlalchemy_blocking,
    "sqlalchemy.orm.scoping.scoped_session": _sqlalchemy_blocking,
    "django.db.backends.base.base.BaseDatabaseWrapper": _django,
    "django.utils.connection.ConnectionProxy": _django,
}
