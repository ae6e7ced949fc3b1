"""Doorbells by sharded pub/sub: a channel per partition, rung by the commit itself; a listener hears them all.

A listener has a connection of its own to every server that has partitions. Whenever one of them is new, or was cut, or
a partition moved to another server, rings may have been missed: it hears `RESCAN`. One that is away does not keep it
from hearing the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import suppress
from typing import Any, cast
from weakref import WeakSet

import hiredis

from outlast.errors import OutlastError, StoreUnavailable
from outlast.machine.changes import is_lane_channel
from outlast.store.port import RESCAN
from outlast.store.valkey.connection import Address, Connection, Login, connect
from outlast.store.valkey.errors import translated, word
from outlast.store.valkey.keys import Names
from outlast.store.valkey.near import Near
from outlast.store.valkey.servers import Servers

_log = logging.getLogger(__name__)

_HEARD_MAX = 1_000
"""A listener that nobody reads remembers so many channels, then only that it must re-scan."""
_RING_MAX = 100
"""More channels than that in one ring say RESCAN."""
ANYWHERE = ""
"""Said by a ring that is about no partition in particular, whichever's bell it is sent to."""
_AGAIN_S = 1.0
_SUBSCRIBE_TIMEOUT_S = 5.0
PING_S = 5.0
SEEK_S = 5.0
"""A bell that no server has is sought again so much later."""


class Doorbell:
    """Rings everyone who listens to this store."""

    def __init__(self, servers: Servers, login: Login, names: Names, partitions: int, near: Near) -> None:
        self._near = near
        self._servers = servers
        self._login = login
        self._names = names
        self._partitions = partitions
        self._loop = asyncio.get_running_loop()
        self._pending: set[str] = set()
        self._ringing: asyncio.Task[None] | None = None
        self.listeners: WeakSet[Listener] = WeakSet()

    def ring(self, channels: frozenset[str]) -> None:
        """What is rung before the last ring has gone out goes with the next."""
        self._pending |= channels
        if self._pending and self._ringing is None:
            self._ringing = self._loop.create_task(self._ring(), name="outlast doorbell")

    async def _ring(self) -> None:
        try:
            while self._pending:
                channels, self._pending = self._pending, set()
                heard = RESCAN if len(channels) > _RING_MAX else "\n".join((ANYWHERE, *sorted(channels)))
                bell = self._names.bell(0)
                with suppress(OutlastError):  # a hint: who missed it polls
                    await (await self._servers.home(bell)).ask("SPUBLISH", bell, heard)
        finally:
            self._ringing = None

    async def unheard(self) -> dict[str, OutlastError]:
        """The servers that do not let us ring or listen, and why. Every one is tried with one of its bells."""
        bells: dict[Address, str] = {}
        problems: dict[str, OutlastError] = {}
        for bell in map(self._names.bell, range(self._partitions)):
            with suppress(StoreUnavailable):  # nobody has it now, and that is said elsewhere
                bells.setdefault((await self._servers.home(bell)).address, bell)
        for address, bell in bells.items():
            try:
                await _try(address, self._login, bell)
            except StoreUnavailable:
                continue
            except OutlastError as error:
                problems[str(address)] = error
        return problems

    def listen(self) -> Listener:
        bells = [self._names.bell(partition) for partition in range(self._partitions)]
        listener = Listener(self._servers, self._login, bells, self._near)
        self.listeners.add(listener)
        return listener

    async def close(self) -> None:
        for listener in list(self.listeners):
            await listener.close()
        if self._ringing is not None:
            await self._ringing


class Listener:
    def __init__(self, servers: Servers, login: Login, bells: list[str], near: Near) -> None:
        self._near = near
        self._partitions = {bell: partition for partition, bell in enumerate(bells)}
        self._servers = servers
        self._login = login
        self._bells = bells
        self._heard: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._moved: asyncio.Future[None] = self._loop.create_future()
        """Done when a partition is no longer where it was."""
        self._unsettled = 0
        """Servers that were not yet tried."""
        self._pump = self._loop.create_task(self._listen(), name="outlast listener")

    # ---- hearing --------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """With everybody, until a partition moves; then again."""
        said: Set[str] = set()
        while not self._closed:
            self._moved = self._loop.create_future()
            attending: list[asyncio.Task[None]] = []
            try:
                by_server, lost = await self._bells_by_server()
                self._unsettled = len(by_server)
                attending = [
                    self._loop.create_task(self._attend(address, bells), name="outlast listener")
                    for address, bells in by_server.items()
                ]
                if lost:
                    attending.append(self._loop.create_task(self._seek(lost), name="outlast listener"))
                    if lost.keys() != said:
                        why = next(iter(lost.values()))
                        _log.warning("%d doorbells are not heard, polling goes on: %s", len(lost), why)
                said = lost.keys()
                await self._moved
            except OutlastError as error:
                _log.log(self._gravity(error), "the doorbell is not heard, polling goes on: %s", error)
                await asyncio.sleep(_AGAIN_S)
            finally:
                for task in attending:
                    task.cancel()
                await asyncio.gather(*attending, return_exceptions=True)
            with suppress(OutlastError):  # it is said above, at the next try
                await self._servers.learn()

    def _gravity(self, error: Exception) -> int:
        """A single server that is away is away for everybody, and they say so."""
        away = self._servers.together and isinstance(error, StoreUnavailable | TimeoutError)
        return logging.DEBUG if away else logging.WARNING

    async def _bells_by_server(self) -> tuple[dict[Address, list[str]], dict[str, OutlastError]]:
        """Who has which; and those that nobody has now, each with its error."""
        by_server: dict[Address, list[str]] = {}
        lost: dict[str, OutlastError] = {}
        await self._servers.primaries()  # or nobody answers at all
        for bell in self._bells:
            try:
                by_server.setdefault((await self._servers.home(bell)).address, []).append(bell)
            except StoreUnavailable as error:
                lost[bell] = error
        if not by_server:
            raise lost[self._bells[0]]
        return by_server, lost

    async def _seek(self, bells: Iterable[str]) -> None:
        """Look now and then whether a server has one of these bells again."""
        while True:
            await asyncio.sleep(SEEK_S)
            with suppress(OutlastError):
                await self._servers.learn()
            for bell in bells:
                with suppress(OutlastError):
                    await self._servers.home(bell)
                    self._has_moved()

    async def _attend(self, address: Address, bells: list[str]) -> None:
        """Hear one server for as long as it has these bells: others are heard whatever becomes of it."""
        settled, said = False, ""
        while True:
            connection: Connection | None = None
            try:
                async with asyncio.timeout(_SUBSCRIBE_TIMEOUT_S):
                    connection = await self._subscribed(address, bells)
                settled, said = self._settle(settled, heard=True), ""
                self._near.bells += len(bells)
                try:
                    await self._until_lost(connection)
                finally:
                    self._near.bells -= len(bells)
            except (OutlastError, TimeoutError) as error:
                why = str(error) or "no answer"
                if why != said:
                    _log.log(self._gravity(error), "the doorbell of %s is not heard, polling goes on: %s", address, why)
                said = why
                settled = self._settle(settled, heard=False)
                await asyncio.sleep(_AGAIN_S)
            finally:
                if connection is not None:
                    await _let_go(connection)
            with suppress(OutlastError):
                await self._servers.learn()
                if any([(await self._servers.home(bell)).address != address for bell in bells]):
                    self._has_moved()

    def _settle(self, settled: bool, *, heard: bool) -> bool:
        """At the beginning one re-scan for all servers; afterwards whenever one is heard again."""
        if settled:
            if heard:
                self._hear([RESCAN])
            return True
        self._unsettled -= 1
        if self._unsettled == 0:
            self._hear([RESCAN])
        return True

    async def _until_lost(self, connection: Connection) -> None:
        """A server that vanished without a word leaves a connection that looks well: so it is asked now and then."""
        while not (await asyncio.wait([connection.lost], timeout=PING_S))[0]:
            if time.monotonic() - connection.heard_s > 3 * PING_S:
                connection.abort()
            connection.push(("PING",))

    async def _subscribed(self, address: Address, bells: list[str]) -> Connection:
        confirmed = self._loop.create_future()
        missing = set(bells)
        connection = await connect(address, self._login, self._hears(address, missing, confirmed))
        try:
            for bell in bells:  # one by one: a slot may have moved
                connection.push(("SSUBSCRIBE", bell))
            await asyncio.wait([confirmed, connection.lost], return_when=asyncio.FIRST_COMPLETED)
            if confirmed.done():
                confirmed.result()
        except BaseException:
            await _let_go(connection)
            raise
        return connection

    def _hears(self, address: Address, missing: set[str], confirmed: asyncio.Future[None]) -> Callable[[Any], None]:
        def hear(pushed: Any) -> None:
            if isinstance(pushed, hiredis.ReplyError) and word(str(pushed)) == "NOPERM":
                if not confirmed.done():
                    confirmed.set_exception(translated(str(pushed), str(address)))
                return
            push = cast("list[bytes]", pushed) if isinstance(pushed, list) else []
            if not push:
                self._has_moved()  # a complaint: a partition is no longer there
                if not confirmed.done():
                    confirmed.set_result(None)
                return
            match push[0]:
                case b"smessage":
                    channels = push[2].decode(errors="replace").split("\n")
                    self._hear(channels, None if ANYWHERE in channels else self._partitions.get(push[1].decode()))
                case b"ssubscribe":
                    missing.discard(push[1].decode())
                    if not missing and not confirmed.done():
                        confirmed.set_result(None)
                case b"sunsubscribe":
                    self._has_moved()
                case _:
                    pass

        return hear

    def _has_moved(self) -> None:
        if not self._moved.done():
            self._moved.set_result(None)

    def _hear(self, channels: list[str], partition: int | None = None) -> None:
        if RESCAN in channels:
            self._near.heard(None)
        elif any(map(is_lane_channel, channels)):  # ends ring as well, and leave nothing to claim
            self._near.heard(partition)
        self._heard.update(channel for channel in channels if channel != ANYWHERE)
        if len(self._heard) > _HEARD_MAX:
            self._heard = {RESCAN}
        self._wake.set()

    # ---- the port -------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        while not self._closed:
            await self._wake.wait()
            if self._closed:
                return
            self._wake.clear()
            heard, self._heard = frozenset(self._heard), set[str]()
            yield heard

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._pump.cancel()
        with suppress(asyncio.CancelledError):
            await self._pump


async def _try(address: Address, login: Login, bell: str) -> None:
    connection = await connect(address, login)
    try:
        for answer in await connection.send([("SPUBLISH", bell, ANYWHERE), ("SSUBSCRIBE", bell)]):
            if isinstance(answer, hiredis.ReplyError):
                raise translated(str(answer), str(address)) from answer
    finally:
        await _let_go(connection)


async def _let_go(connection: Connection) -> None:
    connection.abort()
    await connection.lost
