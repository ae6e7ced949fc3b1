"""The store port on Valkey: checks what it is given, asks the partitions that it concerns, and joins their answers.

`valkey://host:6379/0`, `valkey+unix:///run/valkey.sock`, `valkey+cluster://host1:7001,host2:7001`; `redis` instead of
`valkey` means the same, `valkeys` and `rediss` speak TLS. In the URL: `prefix` (keeps several stores apart in one
database), `partitions` (when the store is created), `min_replicas` and `replica_timeout` (a write is answered when so
many replicas have it). How durable that is depends on the server's settings: docs/valkey.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from outlast import limits
from outlast.errors import (
    InvalidConfig,
    OutlastError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    StoreClosed,
    StoreUnavailable,
)
from outlast.machine.changes import Changes, is_lane_channel
from outlast.model.frame import Frame
from outlast.model.lease import Claimed, ClaimRequest, Leases, Renewed
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record
from outlast.store.checks import check_batch, check_claim, check_frames, check_lease, check_limit
from outlast.store.port import (
    EVERYTHING,
    Appended,
    Capabilities,
    Check,
    Clock,
    Committed,
    CommittedInPart,
    Due,
    DueKind,
    Feed,
    Filter,
    Health,
    Page,
    Points,
    Query,
    Verdict,
)
from outlast.store.valkey import claim, health, reading, writing
from outlast.store.valkey.commit import Arguments, batched, packed, takes_room, verdict_of
from outlast.store.valkey.doorbell import Doorbell, Listener
from outlast.store.valkey.founding import SCHEMA, Founding, Made
from outlast.store.valkey.keys import Names
from outlast.store.valkey.layout import fingerprint
from outlast.store.valkey.near import Near
from outlast.store.valkey.parts import applied_before
from outlast.store.valkey.servers import Servers, weight
from outlast.store.valkey.url import Place, parse_url

T = TypeVar("T")

PARTITIONS_TOGETHER = 500
"""So many at most are asked in one call: a script has all their keys at hand at once."""

SOME_WILL_DO = frozenset({"peek", "renew", "held", "due", "clock", "health"})
"""Functions whose answers are of use without those of servers that are away."""


class OnwardClock:
    """A test clock that stands still where it is turned back, and is never behind what a partition has seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest = 0

    def now_ms(self) -> int:
        self._newest = max(self._newest, self._clock.now_ms())
        return self._newest

    def seen(self, now: int) -> None:
        self._newest = max(self._newest, now)


class ValkeyStore:
    """`ValkeyStore("valkey://localhost")`."""

    def __init__(self, url: str, *, clock: Clock | None = None, points: Points | None = None) -> None:
        self._place: Place = parse_url(url)
        self._names = Names(self._place.prefix)
        self._clock = None if clock is None else OnwardClock(clock)
        self._points = points
        self._near = Near()
        self._parts: _Parts | None = None
        self._partitions = self._place.partitions
        self._dead: BaseException | None = None

    @property
    def url(self) -> str:
        return self._place.shown

    @property
    def partitions(self) -> int:
        return self._partitions

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            native_doorbell=True, exact_order=False, apart=True, in_line=True, one_server=not self._place.cluster
        )

    # ---- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._parts is not None:
            return
        servers = self._new_servers()
        founding = Founding(servers, self._names, self.url)
        try:
            made = self._checked(await founding.recorded())
            self._partitions = made.partitions
            servers.head, servers.look_again = made.head, founding.look_again
            parts = _Parts(servers, Doorbell(servers, self._place.login, self._names, self._partitions, self._near))
            if self._clock is not None:
                await self._time(parts)
            await health.warn(servers, self.url)
        except BaseException:
            await servers.close()
            raise
        if self._parts is not None:  # somebody else opened it meanwhile
            await parts.close()
        else:
            self._parts = parts

    async def migrate(self) -> int:
        servers, place = self._new_servers(), self._place
        founding = Founding(servers, self._names, self.url)
        try:
            self._pass("migrate", "begin", "statement")
            made = await founding.record(place.partitions, known=place.partitions_given)
            servers.head = self._checked(made).head
            await founding.heads()
            self._pass("migrate", "statement done", "commit", "reply")
        finally:
            await servers.close()
        return SCHEMA

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    def _new_servers(self) -> Servers:
        place = self._place
        return Servers(place.addresses, place.login, self._names, place.replicas, cluster=place.cluster)

    def _checked(self, made: Made | None) -> Made:
        """What the store was made with; an error if this code does not fit it."""
        if made is None:
            raise SchemaMissing(f"there is no store at {self.url} yet: run migrate() first")
        if made.schema > SCHEMA:
            raise SchemaTooNew(made.schema, SCHEMA)
        if made.schema < SCHEMA or made.layout != fingerprint():
            raise SchemaOutdated(
                f"the store at {self.url} was written by another version of Outlast (schema {made.schema}, layout "
                f"{made.layout}; this one needs {SCHEMA}, {fingerprint()}): use that version, or take it along by "
                "way of SQLite or PostgreSQL: that version copies it there, this one from there (outlast copy)"
            )
        if self._place.partitions_given and made.partitions != self._place.partitions:
            raise InvalidConfig(
                f"the store at {self.url} was created with {made.partitions} partitions, which cannot change: "
                f"leave ?partitions={self._place.partitions} out of the URL"
            )
        return made

    def _opened(self) -> _Parts:
        if self._dead is not None:
            raise StoreClosed(f"the store {self.url} has stopped") from self._dead
        if self._parts is None:
            raise StoreClosed(f"the store {self.url} is not open")
        if self._parts.pid != os.getpid():
            raise StoreClosed(f"the store {self.url} was opened before a fork: open one in each process")
        return self._parts

    # ---- calls ----------------------------------------------------------------------------------------------------

    async def _write(self, name: str, operation: Callable[[claim.Call], Awaitable[T]]) -> T:
        """An operation between its crash points. A crash ends the store, as it would end the process."""
        parts = self._opened()
        with parts:
            try:
                self._pass(name, "begin")
                answer = await operation(self._calling(parts, name))
                self._pass(name, "reply")
            except Exception:
                raise
            except asyncio.CancelledError:
                raise
            except BaseException as crash:
                self._dead = crash
                raise
        return answer

    async def _read(self, operation: Callable[[claim.Call], Awaitable[T]]) -> T:
        parts = self._opened()
        with parts:
            return await operation(self._calling(parts, None))

    def _calling(self, parts: _Parts, name: str | None) -> claim.Call:
        async def call(function: str, asked: Mapping[int, Arguments]) -> dict[int, Any]:
            ask = parts.servers.call_some if function in SOME_WILL_DO else parts.servers.call
            if name is None or function == "peek":
                return await ask(function, asked, writes=False)
            self._pass(name, "statement", "commit")
            answers = await ask(function, asked, writes=True)
            self._pass(name, "statement done")
            return answers

        return call

    def _pass(self, name: str, *stages: str) -> None:
        if self._points is not None:
            for stage in stages:
                self._points(f"{name}:{stage}")

    def _asked_time(self) -> int | None:
        """A test clock's time; without one the server of each partition has its own."""
        return None if self._clock is None else self._clock.now_ms()

    def _heard(self, now: int) -> int:
        if self._clock is not None:
            self._clock.seen(now)
        return now

    async def _time(self, parts: _Parts) -> int:
        asked = packed((self._asked_time() or False,))
        answers = await parts.servers.call_some("clock", dict.fromkeys(range(self._partitions), asked), writes=False)
        return self._heard(max(answers.values()))

    # ---- writes ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        check_batch(batch)
        return await self._write("commit", lambda _: self._commit(batch))

    async def _commit(self, batch: Sequence[Changes]) -> Committed:
        parts = self._opened()
        if not batch:
            return Committed(await self._time(parts), [])
        servers = parts.servers
        size = PARTITIONS_TOGETHER if (together := servers.together) else 1
        places: dict[int, list[int]] = {}
        for place, changes in enumerate(batch):
            places.setdefault(changes.partition, []).append(place)
        now = self._asked_time()
        asked = {some: batched(batch, {p: places[p] for p in some}, now) for some in _some_each(tuple(places), size)}
        function = "commit" if any(map(takes_room, batch)) else "commit_freeing"
        self._pass("commit", "statement", "commit")
        answers = await servers.call_each(function, asked, writes=True)
        self._pass("commit", "statement done")
        for changes in batch:
            if changes.rings and any(map(is_lane_channel, changes.rings)):
                self._near.heard(changes.partition)  # its own bell may come later than the answer
        outcomes: list[Any] = [None] * len(batch)
        times = [0] * len(batch)
        failed: dict[int, OutlastError] = {}
        for some, answer in answers.items():
            if isinstance(answer, OutlastError):
                failed |= {place: answer for partition in some for place in places[partition]}
                continue
            for partition, (at, verdicts) in zip(some, answer, strict=True):
                for place, told in zip(places[partition], verdicts, strict=True):
                    outcomes[place], times[place] = verdict_of(batch[place], told), at
        if not failed:
            return Committed(self._heard(max(times)), outcomes, times)
        if together and not servers.together:  # it knows better now
            return await self._commit(batch)
        return await self._committed_in_part(batch, outcomes, times, failed)

    async def _committed_in_part(
        self,
        batch: Sequence[Changes],
        outcomes: list[Verdict | OutlastError],
        times: list[int],
        failed: dict[int, OutlastError],
    ) -> Committed:
        found = await self._applied_before(batch, failed)
        for place, outcome in (failed | found).items():
            outcomes[place] = outcome
        if found:
            newest = max(times) or await self._time(self._opened())
            times = [at or newest for at in times]
        return _committed(self._heard(max(times)), outcomes, times)

    async def _applied_before(
        self, batch: Sequence[Changes], failed: Mapping[int, OutlastError]
    ) -> dict[int, Verdict | OutlastError]:
        parts = self._opened()
        confirmed = parts.servers.replicas.number == 0
        return await applied_before(self._calling(parts, None), batch, failed, self._partitions, confirmed=confirmed)

    async def claim(self, request: ClaimRequest) -> Claimed:
        check_claim(request)
        claimed = await self._write(
            "claim", lambda call: claim.claim(call, request, self._partitions, self._asked_time(), self._near)
        )
        self._heard(claimed.now)
        return claimed

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        check_lease(worker, lease_ttl_ms)
        renewed = await self._write(
            "renew", lambda call: claim.renew(call, worker, lease_ttl_ms, self._partitions, self._asked_time())
        )
        self._heard(renewed.now)
        return renewed

    async def append(
        self, namespace: str, execution_id: str, *, epoch: int, change_id: str, frames: Sequence[bytes]
    ) -> Appended:
        check_frames(frames)
        home, stream = partition_of(namespace, execution_id, self._partitions), (namespace, execution_id)
        return await self._write(
            "append", lambda call: writing.append(call, home, stream, epoch, change_id, frames, self._asked_time())
        )

    async def purge(
        self, *, finished_before: int | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> int:
        check_limit("purge", limit, limits.PURGE_MAX)
        return await self._write(
            "purge",
            lambda call: writing.purge(call, finished_before, limit, filter, self._partitions, self._asked_time()),
        )

    # ---- reads ----------------------------------------------------------------------------------------------------

    async def now(self) -> int:
        parts = self._opened()
        with parts:
            return await self._time(parts)

    async def load(self, keys: Sequence[Key]) -> list[Record | None]:
        check_limit("load", max(1, len(keys)), limits.LOAD_MAX_KEYS)
        return await self._read(lambda call: reading.load(call, keys, self._partitions))

    async def scan(
        self, kind: str, prefix: tuple[str | int, ...], *, after: Key | None = None, limit: int = 1_000
    ) -> list[Record]:
        check_limit("scan", limit, limits.SCAN_MAX_RECORDS)
        return await self._read(lambda call: reading.scan(call, kind, prefix, after, limit, self._partitions))

    async def find(self, query: Query) -> Page:
        check_limit("find", query.limit, limits.FIND_MAX)
        return await self._read(lambda call: reading.find(call, query, self._partitions))

    async def count(self, query: Query) -> int:
        return await self._read(lambda call: reading.count(call, query, self._partitions))

    async def due(self, kind: DueKind, *, limit: int, filter: Filter = EVERYTHING) -> Due:
        check_limit("due", limit, limits.DUE_MAX)
        found = await self._read(
            lambda call: reading.due(call, kind, limit, filter, self._partitions, self._asked_time())
        )
        self._heard(found.now)
        return found

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        return await self._read(lambda call: claim.held(call, worker, partitions))

    async def frames(self, namespace: str, execution_id: str, *, after: int = 0, limit: int = 1_000) -> list[Frame]:
        check_limit("frames", limit, limits.SCAN_MAX_RECORDS)
        stream = (namespace, execution_id)
        return await self._read(lambda call: reading.frames(call, stream, after, limit, self._partitions))

    async def completions(self, *, after: str | None = None, limit: int = 1_000, filter: Filter = EVERYTHING) -> Feed:
        check_limit("completions", limit, limits.SCAN_MAX_RECORDS)
        return await self._read(lambda call: reading.completions(call, after, limit, filter, self._partitions))

    async def health(self, *, deep: bool = False) -> Health:
        parts = self._opened()
        with parts:
            unheard = await parts.bell.unheard()
            return await health.health(parts.servers, self._calling(parts, None), self._partitions, unheard)

    async def reach(self) -> list[Check]:
        servers = self._new_servers()
        try:
            return await health.reached(servers, 0)  # how many partitions there are, the store itself would tell
        finally:
            await servers.close()

    def shard(self, partition: int) -> str:
        """What shares a server shares commits, and waits for no other."""
        return self._opened().servers.shard(partition)

    # ---- doorbell -------------------------------------------------------------------------------------------------

    def ring(self, channels: frozenset[str]) -> None:
        self._opened().bell.ring(channels)

    def listen(self) -> Listener:
        return self._opened().bell.listen()


def _some_each(partitions: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(partitions), size):
        yield partitions[first : first + size]


def _committed(now: int, outcomes: list[Verdict | OutlastError], times: list[int]) -> Committed:
    """An answer if all have one. It is asked for again as it is while some are not known, and nobody is refused."""
    verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
    if len(verdicts) == len(outcomes):
        return Committed(now, verdicts, times)
    problem = min((outcome for outcome in outcomes if isinstance(outcome, OutlastError)), key=weight)
    if not verdicts or isinstance(problem, StoreUnavailable):
        raise problem
    raise CommittedInPart(now, outcomes, problem, times) from problem


class _Parts:
    """What an open store holds, let go together when the last call that uses it has been answered."""

    def __init__(self, servers: Servers, bell: Doorbell) -> None:
        self.servers, self.bell = servers, bell
        self.pid = os.getpid()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._calls += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if self._calls == 0:
            self._idle.set()

    async def close(self) -> None:
        await self.bell.close()
        await self._idle.wait()
        await self.servers.close()
