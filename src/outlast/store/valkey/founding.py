"""What a store is made with and never changes: how many partitions it has, and how its records are laid out.

It is written down once for the whole store, and in the head of every partition, which each call reads together with the
partition's clock. For a server may lose all that it had, the store's own record too, and nobody may go on with another
number then: a record that is gone is written again as the heads say, and a head that is gone as the record says. Who
works with another number than the one that stands is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from outlast.errors import StoreCorrupt
from outlast.store.valkey.commit import packed
from outlast.store.valkey.keys import Names
from outlast.store.valkey.layout import fingerprint
from outlast.store.valkey.servers import Servers

_log = logging.getLogger(__name__)

SCHEMA = 1
FIELDS = ("schema", "partitions", "layout")
LOOKED_AT = 64
"""So many partitions are asked what a record that is gone has said: those of a larger store are on all servers."""
EMPTIED_SHOWN = 8


class Made(Struct, frozen=True):
    """What a store was made with."""

    schema: int
    partitions: int
    layout: str

    @property
    def head(self) -> bytes:
        return f"{self.schema} {self.partitions} {self.layout}".encode()


def made_with(partitions: int) -> Made:
    """By this code."""
    return Made(SCHEMA, partitions, fingerprint())


def _made(found: Sequence[bytes]) -> Made:
    schema, partitions, layout = found
    return Made(int(schema), int(partitions), layout.decode())


class Founding:
    """Reads and writes the record and the heads of one store. `servers.head` is what this process works with."""

    def __init__(self, servers: Servers, names: Names, url: str) -> None:
        self._servers = servers
        self._names = names
        self._url = url
        self._one_at_a_time = asyncio.Lock()

    async def recorded(self) -> Made | None:
        found: list[Any] = await self._servers.look_at(self._names.store, "HMGET", self._names.store, *FIELDS)
        return None if found[0] is None else _made(found)

    async def record(self, partitions: int, *, known: bool) -> Made:
        """What stands; it is written if nothing does, with so many partitions. `known`: nobody needs to be asked
        whether that was the number, if the partitions themselves do not say."""
        wanted = made_with(partitions)
        if await self.recorded() is None:
            wanted = await self._as_the_heads_say(wanted, known=known)
        store = self._names.store
        asked = (1, store, *packed((wanted.schema, wanted.partitions, wanted.layout)))
        answer = await self._servers.call_keys("migrate", {store: asked}, writes=True)
        return _made(answer[store])

    async def _as_the_heads_say(self, wanted: Made, *, known: bool) -> Made:
        looks = await self._servers.call("heads", dict.fromkeys(range(LOOKED_AT), ()), writes=False)
        heads: set[bytes] = {head for head, _ in looks.values() if head is not None}
        if len(heads) > 1:
            raise StoreCorrupt(
                f"the partitions at {self._url} are of several stores ({', '.join(map(_told, heads))}), and the record "
                "of the store itself is gone: restore a backup"
            )
        if heads:
            made = _made(heads.pop().split(b" "))
            _log.warning(
                "%s: the store's own record was gone, and is written again: %d partitions. A server has lost what it "
                "had; what lived there is lost",
                self._url, made.partitions,
            )  # fmt: skip
            return made
        used = [partition for partition, (_, clock) in looks.items() if clock]
        if used and (not known or max(used) >= wanted.partitions):
            raise StoreCorrupt(
                f"there are partitions at {self._url} (number {max(used)} too), but the store's own record is gone: a "
                "server has lost what it had. Write how many partitions the store was created with in the URL "
                "(?partitions=64), and it is written again"
            )
        return wanted

    async def heads(self) -> list[int]:
        """Write the heads that are missing. Those partitions that nothing was ever written to are the answer."""
        every = range(int(self._servers.head.split(b" ")[1]))
        looks = await self._servers.call_some("heads", dict.fromkeys(every, ()), writes=False)
        for partition, (head, _) in looks.items():
            if head not in (None, self._servers.head):
                raise StoreCorrupt(
                    f"partition {partition} at {self._url} is of a store with {_told(head)}, the store's own record "
                    f"says {_told(self._servers.head)}: restore a backup"
                )
        missing = [partition for partition, (head, _) in looks.items() if head is None]
        if missing:
            await self._servers.call_some("found", dict.fromkeys(missing, ()), writes=True)
        return [partition for partition in missing if not looks[partition][1]]

    async def look_again(self) -> None:
        """A call has met a partition without a head, or with another one: put it right, or stop this process."""
        async with self._one_at_a_time:
            mine = _made(self._servers.head.split(b" "))
            made = await self.recorded() or await self.record(mine.partitions, known=True)
            if made != mine:
                raise StoreCorrupt(
                    f"the store at {self._url} has {_told(made.head)} now, and had {_told(mine.head)} when this "
                    "process opened it: it was emptied and made anew. Restart this process"
                )
            emptied = await self.heads()
            if emptied:
                shown = ", ".join(map(str, emptied[:EMPTIED_SHOWN])) + (", …" if len(emptied) > EMPTIED_SHOWN else "")
                _log.warning(
                    "%s: %d partitions are empty (%s): a server has lost what it had. Work goes on without what lived "
                    "there",
                    self._url, len(emptied), shown,
                )  # fmt: skip


def _told(head: bytes) -> str:
    _, partitions, layout = head.decode().split(" ")
    return f"{partitions} partitions (layout {layout})"
