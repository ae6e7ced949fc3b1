"""One connection to one server, shared by all that a process asks of it: commands go out as they come, answers come
back in order, so calls of any number of tasks share the round trips and each partition's calls keep their order.

It speaks the protocol by hiredis and asyncio alone: a pool of connections, one per call, would cost more than a call.
It knows nothing of partitions, functions or retries (`servers.py` does).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from msgspec import Struct

from outlast.errors import ReplyLost, StoreUnavailable
from outlast.store.valkey.errors import translated

Command: TypeAlias = tuple[str | bytes | int, ...]

CONNECT_TIMEOUT_S = 5.0
_NOTHING = object()
_pack: Callable[[Command], bytes] = cast("Any", hiredis).pack_command  # its stub says: tuples of one


class Address(Struct, frozen=True):
    """Where a server is: a host and port, or the path of a socket."""

    host: str = ""
    port: int = 6379
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Login(Struct, frozen=True, kw_only=True):
    """What every connection begins with."""

    user: str | None = None
    password: str | None = None
    database: int = 0
    tls: bool = False
    answer_timeout_s: float = 10.0


class _Waiting:
    """Somebody who waits for the answers to one or more commands."""

    __slots__ = ("answers", "future", "missing", "since_s")

    def __init__(self, future: asyncio.Future[list[Any]], missing: int) -> None:
        self.future = future
        self.missing = missing
        self.answers: list[Any] = []
        self.since_s = time.monotonic()


class Connection(asyncio.Protocol):
    """A connection that is open, until it is not: then everybody who waits is told so."""

    def __init__(self, address: Address, login: Login, on_push: Callable[[Any], None] | None = None) -> None:
        self.address = address
        self._login = login
        self._on_push = on_push
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._retired = False
        self.lost = self._loop.create_future()
        """Done when the connection is gone."""
        self.heard_s = time.monotonic()
        """When something came the last time."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._retired and not self.lost.done()

    # ---- use ------------------------------------------------------------------------------------------------------

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Their answers, in order. An error that the server answers is one of the answers."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(StoreUnavailable(f"the connection to {self.address} is closed: try again"))
            return future
        self._waiting.append(_Waiting(future, len(commands)))
        self._transport.write(b"".join([_pack(command) for command in commands]))
        if self._watch is None:
            self._watch = self._loop.call_later(1.0, self._look)
        return future

    def push(self, command: Command) -> None:
        """Send a command whose answers come as pushes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_pack(command))

    def retire(self) -> None:
        """Close it as soon as all that was asked is answered."""
        self._retired = True
        if self._transport is not None and not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Let it go. What was sent and not answered is lost."""
        if self._transport is not None and not self.lost.done():
            self._transport.close()
            await self.lost

    # ---- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        self._reader.feed(data)
        while True:
            try:
                answer = self._reader.gets()
            except hiredis.ProtocolError:
                self.abort()  # whatever this is, it does not speak our protocol
                return
            if answer is _NOTHING:
                return
            if self._on_push is not None and not self._waiting:
                self._on_push(answer)
            elif self._waiting:
                self._answer(answer)

    def _answer(self, answer: Any) -> None:
        first = self._waiting[0]
        first.answers.append(answer)
        first.missing -= 1
        if first.missing == 0:
            self._waiting.popleft()
            if not first.future.done():
                first.future.set_result(first.answers)
            if self._retired:
                self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        lost, self._waiting = self._waiting, deque()
        for waiting in lost:
            if not waiting.future.done():
                waiting.future.set_exception(
                    ReplyLost(f"the connection to {self.address} was cut before the answer came: {exc or 'closed'}")
                )
        if not self.lost.done():
            self.lost.set_result(None)

    def _look(self) -> None:
        """A server that does not answer in time is as good as gone: better to know than to wait."""
        self._watch = None
        if not self._waiting:
            return
        if time.monotonic() - self._waiting[0].since_s > self._login.answer_timeout_s:
            self.abort()
            return
        self._watch = self._loop.call_later(1.0, self._look)


async def connect(address: Address, login: Login, on_push: Callable[[Any], None] | None = None) -> Connection:
    """A connection that was let in."""
    loop = asyncio.get_running_loop()
    tls = ssl.create_default_context() if login.tls else None

    def made() -> Connection:
        return Connection(address, login, on_push)

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.path:
                _, connection = await loop.create_unix_connection(made, address.path)
            else:
                _, connection = await loop.create_connection(made, address.host, address.port, ssl=tls)
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(
            f"{address} cannot be reached ({str(error) or 'no answer'}): is the server up?"
        ) from error
    try:
        await _introduce(connection, login)
    except BaseException:
        connection.abort()
        raise
    return connection


async def _introduce(connection: Connection, login: Login) -> None:
    commands: list[Command] = [("CLIENT", "SETNAME", "outlast")]
    if login.password is not None:
        commands.insert(0, ("AUTH", *((login.user,) if login.user else ()), login.password))
    if login.database:
        commands.append(("SELECT", login.database))
    for answer in await connection.send(commands):
        if isinstance(answer, hiredis.ReplyError):
            raise translated(str(answer), str(connection.address)) from answer
