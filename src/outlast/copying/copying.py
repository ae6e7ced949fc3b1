"""The copy: look at both stores, write kind by kind, compare.

Every record is inserted and none replaced, so copying again is harmless, and a copy that was killed goes on: where it
stands is kept in the target (a `Marker`), page by page. An execution comes after all that belongs to it. One with
frames comes in two commits, because only a holder appends: first as held by the copy itself, then as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from typing import TypeAlias, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.copying.records import (
    GATES,
    SURVEYED,
    WALKED,
    Digest,
    anchor_of,
    cut,
    namespace_of,
    placed,
    rival_of,
    same,
    spread,
    weight,
)
from outlast.errors import CopyBusy, CopyConflict, CopyMismatch, CopyRefused, InvalidInput
from outlast.machine.changes import Changes, Delete, Put
from outlast.machine.upkeep import copied, copy_finished, copy_noted
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.partition import home_of, partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Now, Record
from outlast.model.session import Session, session_key
from outlast.model.status import Status
from outlast.runtime.patience import patiently
from outlast.store.port import EVERYTHING, CommittedInPart, Filter, Store

COPIER = "outlast:copy"
"""The copy's name: as the holder of what it has half written, and the namespace of its marker."""
LEASE_TTL_MS = 60_000
PATIENCE_S = 30.0
PAGE_BYTES = 4 * 1024 * 1024
PAGE_FIRST, PAGE_MAX = 100, 1_000
FRAMES_PAGE = 200
ASKED_AT_ONCE = 32
SHOWN_MAX = 10

T = TypeVar("T")


class Progress(Struct, frozen=True):
    """So many records of a kind are copied (or compared) by now."""

    doing: str
    kind: str
    records: int


class Copied(Struct, frozen=True):
    """What is in both stores now: how many records of each kind, and a digest of them."""

    records: dict[str, int]
    digests: dict[str, str]
    found: int
    """So many of them were there before: from a copy that did not come to its end, or one that did."""
    resumed: bool


class Marker(Struct, frozen=True):
    """Where an unfinished copy stands: behind a key of a kind, or a cursor of the feed of completions."""

    id: str
    source: str
    seen: str
    kind: str | None = None
    after: tuple[str | int, ...] = ()


Tell: TypeAlias = Callable[[Progress], None]


class Copying:
    """`copied = await Copying(source, target).run()`; both stores are open, and have their schemas."""

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        namespace: str | None = None,
        ignore_workers: bool = False,
        tell: Tell = lambda _: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._source, self._target = source, target
        self._namespace = namespace
        self._ignore_workers = ignore_workers
        self._tell = tell
        self._patience_s = patience_s
        self._found = 0
        who = f"{source.url}\n{namespace or ''}"
        self._place = payload_key(COPIER, f"from-{sha256(who.encode()).hexdigest()[:24]}", 1, Role.PROGRESS)

    async def run(self) -> Copied:
        await self._check_workers()
        await self._check_whole()
        seen, conflict = await self._survey()
        marker, resumed = await self._begin(seen, conflict)
        await self._copy_gates()
        kinds = [kind.KIND for kind in WALKED]
        for kind in WALKED[0 if marker.kind is None else kinds.index(marker.kind) :]:
            stands = marker.after if kind.KIND == marker.kind else ()
            if kind is Completion:
                await self._follow(marker, stands)
            else:
                await self._walk(marker, kind, Key(kind.KIND, stands) if stands else None)
        await self._check_workers()
        source, target = await self._compare()
        await self._end()
        return Copied(
            {kind: digest.records for kind, digest in source.items()},
            {kind: str(digest) for kind, digest in target.items()},
            self._found,
            resumed,
        )

    # ---- before ---------------------------------------------------------------------------------------------------

    async def _check_workers(self) -> None:
        """What runs while it is copied runs in both stores."""
        if self._ignore_workers:
            return
        for store, what in ((self._source, "copied from"), (self._target, "copied to")):
            now = await self._patiently(store.now)
            alive: set[str] = set()
            async for page in self._pages(store, Session, everything=True):
                alive |= {
                    session.worker
                    for session in page
                    if isinstance(session, Session)
                    and session.worker != COPIER
                    and isinstance(session.expires_at, int)
                    and session.expires_at > now
                }
            if alive:
                raise CopyBusy(store.url, what, sorted(alive))

    async def _check_whole(self) -> None:
        """A source that is itself the target of a copy that did not end has half of everything."""
        half = await self._patiently(lambda: self._source.scan(Payload.KIND, (COPIER,), limit=1))
        if half and half[0].key != self._place:
            raise CopyRefused(
                f"{self._source.url} is the target of a copy that did not come to its end: finish that one first"
            )

    async def _survey(self) -> tuple[str, CopyConflict | None]:
        """Read all executions and flows of the source and look for their ids in the target, before anything is written:
        what was seen, and what is in the way."""
        digest, others, number = Digest(), list[str](), 0
        for kind in SURVEYED:
            before = digest.records
            async for page in self._pages(self._source, kind):
                for there in await self._in_the_way(page):
                    number += 1
                    others += [str(there.key)] if len(others) < SHOWN_MAX else []
                for record in page:
                    digest.add(record)
                self._tell(Progress("looked at", kind.KIND, digest.records - before))
        return str(digest), CopyConflict(self._target.url, number, others) if others else None

    async def _in_the_way(self, page: Sequence[Record]) -> list[Record]:
        """What the target has under these ids, and is not the same."""
        found = zip(page, await self._load(self._target, [record.key for record in page]), strict=True)
        rivals = await self._load(self._target, [key for record in page if (key := rival_of(record)) is not None])
        return [
            *(there for here, there in found if there is not None and not same(here, there) and not _is_staged(there)),
            *(there for there in rivals if there is not None),
        ]

    async def _begin(self, seen: str, conflict: CopyConflict | None) -> tuple[Marker, bool]:
        """Leave a marker in the target, or find the one of a copy that was stopped."""
        [found] = await self._load(self._target, [self._place])
        marker = msgspec.json.decode(found.value, type=Marker) if isinstance(found, Payload) else None
        if marker is not None and marker.seen != seen:
            raise CopyRefused(
                f"{self._source.url} has changed since its copy to {self._target.url} was begun, so some of what was "
                "copied is old: begin anew, in an empty store"
            )
        if conflict is not None:
            raise conflict
        if marker is None:
            marker = Marker(id=uuid4().hex, source=self._source.url, seen=seen)
            await self._mark(marker)
        [here] = await self._load(self._source, [self._place])
        if isinstance(here, Payload) and msgspec.json.decode(here.value, type=Marker).id == marker.id:
            if found is None:
                await self._commit_one(self._place, Delete(self._place))
            raise InvalidInput(f"{self._source.url} and {self._target.url} are the same store")
        return marker, found is not None

    async def _mark(self, marker: Marker) -> None:
        namespace, execution, generation, _ = self._place.values
        note = Payload(
            namespace=str(namespace),
            execution=str(execution),
            generation=int(generation),
            role=Role.PROGRESS,
            value=msgspec.json.encode(marker),
            change_id=marker.id,
        )
        await self._commit_one(self._place, Put(note))

    async def _commit_one(self, key: Key, write: Put | Delete) -> None:
        """A write of the copy's own, which nothing guards."""
        first = key.values[0]
        partition = (
            first if isinstance(first, int) else partition_of(str(first), str(key.values[1]), self._target.partitions)
        )
        changes = copy_noted(partition, write, uuid4().hex)
        await self._patiently(lambda: self._target.commit([changes]))

    # ---- reading --------------------------------------------------------------------------------------------------

    async def _pages(
        self, store: Store, kind: type[Record], after: Key | None = None, *, everything: bool = False
    ) -> AsyncIterator[list[Record]]:
        """All records of a kind that are asked for. Pages are small where values are large."""
        named = self._namespace is not None and not everything
        prefix = (self._namespace,) if named and kind.KEY[0] == "namespace" and self._namespace else ()
        limit = PAGE_FIRST
        while True:
            at, most = after, limit
            page = await self._patiently(lambda: store.scan(kind.KIND, prefix, after=at, limit=most))  # noqa: B023
            if not page:
                return
            after = page[-1].key
            for part in cut(page, PAGE_BYTES):
                yield [record for record in part if not named or namespace_of(record) == self._namespace]
            size = max(1, sum(weight(record) for record in page) // len(page))
            limit = max(1, min(PAGE_MAX, 2 * limit, PAGE_BYTES // size))

    async def _load(self, store: Store, keys: Sequence[Key]) -> list[Record | None]:
        return await self._patiently(lambda: store.load(keys)) if keys else []

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """All that is asked here may be asked again."""
        return await patiently(ask, patience_s=self._patience_s, pause=asyncio.sleep)

    # ---- writing --------------------------------------------------------------------------------------------------

    async def _gates(self) -> list[Record]:
        found = [gate for kind in GATES async for page in self._pages(self._source, kind) for gate in page]
        return spread(found, self._source.partitions, self._target.partitions)

    async def _copy_gates(self) -> None:
        gates = await self._gates()
        for start in range(0, len(gates), PAGE_MAX):
            await self._insert(gates[start : start + PAGE_MAX])

    async def _walk(self, marker: Marker, kind: type[Record], after: Key | None) -> None:
        copied = 0
        async for page in self._pages(self._source, kind, after):
            records = [placed(record, self._target.partitions) for record in page]
            if kind is Execution:
                await self._insert_executions([record for record in records if isinstance(record, Execution)])
            else:
                await self._insert(records)
            if page:
                await self._mark(msgspec.structs.replace(marker, kind=kind.KIND, after=page[-1].key.values))
            copied += len(page)
            self._tell(Progress("copied", kind.KIND, copied))

    async def _follow(self, marker: Marker, stands: tuple[str | int, ...]) -> None:
        """Completions, in the order of the feed: who reads that of the target hears of ends as they came."""
        cursor = str(stands[0]) if len(stands) == 1 else None
        ours, copied = EVERYTHING if self._namespace is None else Filter(namespace=self._namespace), 0
        while True:
            at = cursor
            feed = await self._patiently(
                lambda: self._source.completions(after=at, limit=PAGE_MAX, filter=ours)  # noqa: B023
            )
            if not feed.completions:
                break
            cursor = feed.cursor
            await self._insert_groups([[completion] for completion in feed.completions])
            await self._mark(msgspec.structs.replace(marker, kind=Completion.KIND, after=(cursor,)))
            copied += len(feed.completions)
            self._tell(Progress("copied", Completion.KIND, copied))
        # A feed holds back what an older transaction of somebody else may still come before.
        async for page in self._pages(self._source, Completion):
            there = await self._load(self._target, [record.key for record in page])
            await self._insert_groups([[record] for record, found in zip(page, there, strict=True) if found is None])

    async def _insert(self, records: Sequence[Record]) -> None:
        """One change for each execution."""
        groups: dict[Key, list[Record]] = {}
        for record in records:
            groups.setdefault(anchor_of(record), []).append(record)
        await self._insert_groups(list(groups.values()))

    async def _insert_groups(self, groups: Sequence[Sequence[Record]]) -> None:
        """One change for each; those that find something of theirs there are looked at one by one."""
        if not groups:
            return
        batch = [self._inserting(group) for group in groups]
        try:
            committed = await self._patiently(lambda: self._target.commit(batch))
        except (CommittedInPart, InvalidInput) as error:
            await self._insert_each([record for group in groups for record in group], error)
            return
        for group, verdict in zip(groups, committed.verdicts, strict=True):
            if not verdict.applied:
                await self._insert_missing(group)

    async def _insert_each(self, records: Sequence[Record], refused: CommittedInPart | InvalidInput) -> None:
        """One of them spoils it for all: find out which."""
        error = refused.problem if isinstance(refused, CommittedInPart) else refused
        if not isinstance(error, InvalidInput):
            raise error from refused
        if len(records) == 1:
            raise CopyRefused(f"{records[0].key} cannot be written to {self._target.url}: {error}") from error
        for record in records:
            await self._insert_groups([[record]])

    def _inserting(self, records: Sequence[Record]) -> Changes:
        return copied(home_of(records[0], self._target.partitions), anchor_of(records[0]), records, uuid4().hex)

    async def _insert_missing(self, records: Sequence[Record]) -> None:
        there = await self._load(self._target, [record.key for record in records])
        others = [
            str(r.key) for r, found in zip(records, there, strict=True) if found is not None and not same(r, found)
        ]
        if others:
            raise CopyConflict(self._target.url, len(others), others[:SHOWN_MAX])
        missing = [record for record, found in zip(records, there, strict=True) if found is None]
        self._found += len(records) - len(missing)
        if missing:  # if they are found now, its reply was lost, or somebody else copies too
            await self._insert_groups([missing])

    # ---- executions with frames -----------------------------------------------------------------------------------

    async def _insert_executions(self, executions: Sequence[Execution]) -> None:
        first = await self._first_frames(self._source, executions)
        await self._insert([execution for execution, frames in zip(executions, first, strict=True) if not frames])
        emitting = [execution for execution, frames in zip(executions, first, strict=True) if frames]
        if emitting:
            await self._patiently(lambda: self._target.renew(COPIER, lease_ttl_ms=LEASE_TTL_MS))
        for execution in emitting:
            await self._insert_with_frames(execution)

    async def _first_frames(self, store: Store, executions: Sequence[Execution]) -> list[list[Frame]]:
        some = asyncio.Semaphore(ASKED_AT_ONCE)

        async def first(execution: Execution) -> list[Frame]:
            async with some:
                return await self._patiently(lambda: store.frames(execution.namespace, execution.id, limit=1))

        return await asyncio.gather(*(first(execution) for execution in executions))

    async def _insert_with_frames(self, execution: Execution) -> None:
        """Held by the copy while frames are appended. If the copy ends for good in between, an operator must release
        what is left before it runs anywhere."""
        [there] = await self._load(self._target, [execution.key])
        if there is None:
            await self._insert([_staged(execution)])
        elif not _is_staged(there):
            await self._insert_missing([execution])
            return
        after = 0
        while page := await self._frames(self._target, execution, after):
            after = page[-1].seq
        while page := await self._frames(self._source, execution, after):
            await self._append(execution, page)
            after = page[-1].seq
        changes = copy_finished(home_of(execution, self._target.partitions), execution, COPIER, uuid4().hex)
        committed = await self._patiently(lambda: self._target.commit([changes]))
        if not committed.verdicts[0].applied:
            await self._insert_missing([execution])

    async def _frames(self, store: Store, execution: Execution, after: int) -> list[Frame]:
        return await self._patiently(
            lambda: store.frames(execution.namespace, execution.id, after=after, limit=FRAMES_PAGE)
        )

    async def _append(self, execution: Execution, frames: Sequence[Frame]) -> None:
        appended = await self._patiently(
            lambda: self._target.append(
                execution.namespace,
                execution.id,
                epoch=max(1, execution.epoch),
                change_id=f"{COPIER}:{frames[0].seq}",
                frames=[frame.value for frame in frames],
            )
        )
        if not appended.applied:
            raise CopyConflict(self._target.url, 1, [str(execution.key)])

    # ---- after ----------------------------------------------------------------------------------------------------

    async def _compare(self) -> tuple[dict[str, Digest], dict[str, Digest]]:
        """Read all of it again in both stores. What the target has besides is not looked at."""
        compared = _Comparison(self._source.url, self._target.url)
        gates = await self._gates()
        for start in range(0, len(gates), limits.LOAD_MAX_KEYS):
            part = gates[start : start + limits.LOAD_MAX_KEYS]
            compared.add(part, await self._load(self._target, [gate.key for gate in part]))
        for kind in WALKED:
            async for page in self._pages(self._source, kind):
                expected = [placed(record, self._target.partitions) for record in page]
                compared.add(expected, await self._load(self._target, [record.key for record in expected]))
                if kind is Execution:
                    await self._compare_frames(compared, [one for one in page if isinstance(one, Execution)])
                self._tell(Progress("compared", kind.KIND, compared.records(kind.KIND)))
        compared.check()
        return compared.source, compared.target

    async def _compare_frames(self, compared: _Comparison, executions: Sequence[Execution]) -> None:
        first = await self._first_frames(self._source, executions)
        for execution, any_frame in zip(executions, first, strict=True):
            after = 0
            while any_frame and (page := await self._frames(self._source, execution, after)):
                compared.add_frames(execution, page, await self._frames(self._target, execution, after))
                after = page[-1].seq

    async def _end(self) -> None:
        for partition in range(self._target.partitions):
            key = session_key(partition, COPIER)
            await self._commit_one(key, Delete(key))
        await self._commit_one(self._place, Delete(self._place))


class _Comparison:
    """Two stores, record by record."""

    def __init__(self, source_url: str, target_url: str) -> None:
        self._urls = (source_url, target_url)
        self.source: dict[str, Digest] = {}
        self.target: dict[str, Digest] = {}
        self._differ: list[str] = []
        self._number = 0
        self._newest: dict[tuple[str | int, ...], int] = {}

    def records(self, kind: str) -> int:
        return self.source[kind].records if kind in self.source else 0

    def add(self, expected: Sequence[Record], found: Sequence[Record | None]) -> None:
        for record, there in zip(expected, found, strict=True):
            self.source.setdefault(record.KIND, Digest()).add(record)
            if there is not None:
                self.target.setdefault(record.KIND, Digest()).add(there)
            if there is None or not same(record, there) or not self._in_order(there):
                self._note(str(record.key))

    def _in_order(self, record: Record) -> bool:
        """Events and edges of an execution are numbered anew, in the same order."""
        if not record.SEQUENCED:
            return True
        of, seq = (record.KIND, *record.key.values[:2]), int(getattr(record, "seq", 0))
        before = self._newest.get(of, -1)
        if len(self._newest) > 100_000:
            self._newest.clear()
        self._newest[of] = seq
        return seq > before

    def add_frames(self, execution: Execution, expected: Sequence[Frame], found: Sequence[Frame]) -> None:
        for digests, frames in ((self.source, expected), (self.target, found)):
            digest = digests.setdefault("frame", Digest())
            for frame in frames:
                digest.add_frame(execution.namespace, execution.id, frame)
        if [(f.seq, f.value) for f in expected] != [(f.seq, f.value) for f in found]:
            self._note(f"frames of {execution.key}")

    def _note(self, what: str) -> None:
        self._number += 1
        if len(self._differ) < SHOWN_MAX:
            self._differ.append(what)

    def check(self) -> None:
        if self._number or self.source != self.target:
            raise CopyMismatch(*self._urls, self._number, self._differ)


def _staged(execution: Execution) -> Execution:
    """The execution as the copy holds it while its frames come: nothing else may touch it."""
    return msgspec.structs.replace(
        execution,
        status=Status.ACTIVE,
        reason=None,
        waits="",
        awaits="",
        ready_at=None,
        wake_at=None,
        deadline_at=None,
        attempt_deadline_at=None,
        finished_at=None,
        purge_at=None,
        epoch=max(1, execution.epoch),
        worker=COPIER,
        claim_id=COPIER,
        claimed_at=Now(),
        attempt=execution.failures + execution.crashes + 1,
        attempt_open=True,
        held=True,
    )


def _is_staged(record: Record) -> bool:
    return isinstance(record, Execution) and record.worker == COPIER
