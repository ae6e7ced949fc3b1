"""Doorbells between processes: LISTEN on a connection of its own, and NOTIFY, most often in a transaction of its own.

Rings of one process gather while a NOTIFY is under way, and for a few milliseconds after it; listeners of the same
process hear at once, without the server. A process that rings seldom lets the commit itself ring, which is heard sooner
(`aboard`): not always, because commits that ring wait for each other.

When the connection is lost it is made again, and everybody is told to look at everything. A lost ring costs one
interval of the polling net, never work, and so ringing never fails.
"""

# asyncpg has no stubs; what is used of it here are its errors.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import asyncpg
from msgspec import Struct

from outlast.errors import OutlastError
from outlast.store.port import RESCAN
from outlast.store.postgres.company import ANSWERS, ASKS, WORDS, Company
from outlast.store.postgres.connection import Pool, Session, connect
from outlast.store.postgres.errors import LOST
from outlast.store.postgres.statements import statement
from outlast.store.postgres.url import Address

_log = logging.getLogger(__name__)

BELL = "outlast"
INTERVAL_S = 0.003
"""At most one NOTIFY of a process in this time."""
SELDOM_S = 0.01
"""Who has not rung for so long may ring with a commit."""
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.05, 2.0
KEEPALIVE_S = 10.0
"""A listener whose connection says nothing is asked whether it is still there."""
TRIED_S = 2.0
"""A ring that is not heard for so long is not heard."""
_HEARD_MAX_BYTES = 7_000
"""PostgreSQL takes less than 8,000; longer rings say RESCAN."""
_CHANNELS_MAX = 1_000


class Ring(Struct):
    """What a commit is to say when it is durable, and whether it did."""

    bell: str
    heard: str
    rung: bool = False


class Doorbell:
    """Rings everyone who listens on this database. Used from the event loop that the store was opened in."""

    def __init__(self, address: Address, pool: Pool) -> None:
        self._address = address
        self._pool = pool
        self._me = secrets.token_hex(4)
        self._rung: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listeners: WeakSet[Listener] = WeakSet()
        self._company = Company()
        self._unrung = False
        """Whether something was not rung because nobody else was there."""
        self._answering: asyncio.TimerHandle | None = None
        self._connected = False
        self._closed = False
        self._rang_s = -math.inf

    # ---- ringing --------------------------------------------------------------------------------------------------

    def aboard(self, channels: Iterable[str]) -> Ring | None:
        """A ring for a commit to take along; None if there is nothing to say, or this process rings often."""
        channels = set(channels)
        if not channels or self._sending is not None or self._closed or not self._address.doorbell:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s - self._rang_s <= SELDOM_S or self._company.is_alone(now_s):
            return None
        return Ring(BELL, self._said(channels))

    def ring(self, channels: Iterable[str], *, rung: bool = False) -> None:
        """`rung`: a commit has said so already, to everybody else."""
        channels = set(channels)
        if not channels or self._closed:
            return
        for listener in self._listeners:
            listener.hear(channels)
        if not self._address.doorbell:
            return
        now_s = asyncio.get_running_loop().time()
        if not rung and self._company.is_alone(now_s):
            self._unrung = True
            return
        self._rang_s = now_s
        if not rung:
            self._say(channels)

    def _say(self, channels: set[str]) -> None:
        """To everybody else, with what gathers until then."""
        self._rung |= channels
        if len(self._rung) > _CHANNELS_MAX:
            self._rung = {RESCAN} | (self._rung & WORDS)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="outlast doorbell")

    async def _send(self) -> None:
        try:
            while self._rung:
                rung, self._rung = self._rung, set()
                await self._notify(self._said(rung))
                self._rang_s = asyncio.get_running_loop().time()
                if not self._closed:
                    await asyncio.sleep(INTERVAL_S)
        finally:
            self._sending = None

    def _said(self, channels: set[str]) -> str:
        heard = "\n".join((self._me, *sorted(channels)))
        if len(heard.encode(errors="replace")) <= _HEARD_MAX_BYTES:
            return heard
        return "\n".join((self._me, RESCAN, *sorted(channels & WORDS)))

    async def _notify(self, heard: str, bell: str = BELL) -> None:
        async def notify(session: Session) -> None:
            await session.rows(statement("ring"), {"bell": bell, "heard": heard})

        try:
            await self._pool.call("ring", notify, writes=False)
        except OutlastError as error:
            _log.debug("a ring was lost (polling is the net): %s", error)

    async def is_heard(self) -> bool:
        """Whether a ring comes back, on a bell that nobody else listens to: not through a pool of transactions."""
        bell, heard = f"{BELL}_{secrets.token_hex(8)}", asyncio.Event()
        connection = None

        def hear(*_: object) -> None:
            heard.set()

        try:
            async with asyncio.timeout(TRIED_S):
                connection = await connect(self._address)
                await connection.add_listener(bell, hear)
                await self._notify("", bell)
                await heard.wait()
        except (*LOST, asyncpg.PostgresError, OutlastError) as error:
            _log.info("the doorbell was tried and is not heard: %s", error)
        finally:
            if connection is not None:
                connection.terminate()
        return heard.is_set()

    # ---- listening ------------------------------------------------------------------------------------------------

    def listen(self) -> Listener:
        listener = Listener(self._listeners.discard)
        self._listeners.add(listener)
        if not self._address.doorbell or self._connected:
            listener.hear({RESCAN})
        elif self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._keep_listening(), name="outlast ear")
        return listener

    async def _keep_listening(self) -> None:
        pause_s = RECONNECT_MIN_S
        while not self._closed:
            lost = asyncio.Event()
            connection = None
            try:
                connection = await connect(self._address)
                connection.add_termination_listener(_setting(lost))
                await connection.add_listener(BELL, self._heard)
                self._connected = True
                pause_s = RECONNECT_MIN_S
                self._tell_all({RESCAN})
                self._say({ASKS})
                await self._until_lost(connection, lost)
            except (*LOST, Exception) as error:
                # Nobody is kept waiting for a bell that does not work: look now, and poll.
                self._tell_all({RESCAN})
                _log.debug("the doorbell's connection is lost and will be made again: %s", error)
            finally:
                self._connected = False
                self._company.leaves()
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_MAX_S)

    async def _until_lost(self, connection: Any, lost: asyncio.Event) -> None:
        while not lost.is_set():
            with suppress(TimeoutError):
                # Not all at the same time: who asks then is heard by those who would.
                await asyncio.wait_for(lost.wait(), KEEPALIVE_S * random.uniform(0.8, 1.2))
                return
            await connection.execute("SHOW server_version", timeout=KEEPALIVE_S)
            if self._company.looks():
                self._say({ASKS})

    def _heard(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        if self._closed or connection.is_closed():
            return  # what was still on its way; everything is looked at when another one listens
        sender, *said = payload.split("\n")
        channels = set(said)
        loop = asyncio.get_running_loop()
        if sender == self._me:
            if ASKS in channels:
                self._company.asked(loop.time())
            return
        self._company.hears(sender, channels)
        if self._company.owes and self._answering is None:
            self._answering = loop.call_later(self._company.answers_in_s(random.random()), self._answer)
        if self._unrung and not self._company.is_alone(loop.time()):
            self._unrung = False
            self._say({RESCAN})  # what was written until now was not rung
        channels -= WORDS
        if channels:
            self._tell_all(channels)

    def _answer(self) -> None:
        """Unless somebody else has answered meanwhile."""
        self._answering = None
        if self._company.owes and not self._closed:
            self._company.answers()
            self._say({ANSWERS})

    def _tell_all(self, channels: set[str]) -> None:
        for listener in list(self._listeners):
            listener.hear(channels)

    async def close(self) -> None:
        """Send what was rung, and end every subscription."""
        self._closed = True
        for listener in list(self._listeners):
            await listener.close()
        if self._sending is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._sending), 2)
        self.let_go()
        if self._listening is not None:
            with suppress(asyncio.CancelledError):
                await self._listening

    def let_go(self) -> None:
        """At once."""
        self._closed = True
        if self._answering is not None:
            self._answering.cancel()
        for background in (self._sending, self._listening):
            if background is not None:
                background.cancel()


def _setting(event: asyncio.Event) -> Callable[[Any], None]:
    return lambda _: event.set()


class Listener:
    """What one subscriber has heard since it last looked."""

    def __init__(self, forget: Callable[[Listener], None]) -> None:
        self._forget = forget
        self._heard: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = False

    def hear(self, channels: set[str]) -> None:
        self._heard |= channels
        if len(self._heard) > _CHANNELS_MAX:
            self._heard = {RESCAN}
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        while not self._closed:
            await self._wake.wait()
            if self._closed:
                return
            self._wake.clear()
            heard, self._heard = frozenset(self._heard), set[str]()
            yield heard

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._forget(self)
