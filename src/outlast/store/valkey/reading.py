"""Everything that only reads: load, scan, find, count, due, frames, completions. Partitions answer, this merges."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.machine.invariants import check
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record, settled
from outlast.store.port import (
    EVERYTHING,
    OWED,
    Due,
    DueItem,
    DueKind,
    Feed,
    Filter,
    Page,
    Query,
    cursor_number,
    cursor_of,
    filter_of,
)
from outlast.store.valkey.claim import Call
from outlast.store.valkey.commit import Arguments, packed
from outlast.store.valkey.keys import LISTED, OWNED, encoded, home, owner, place, text, whole
from outlast.store.valkey.layout import DUE, EXECUTION_ID, LAYOUTS, TIME_DIGITS, Layout, layout_of
from outlast.store.valkey.writing import filtered, place_behind

_EXECUTION = LAYOUTS[Execution.KIND]
FEW = 1_000
"""So many executions of one tag are read and sorted in a call; of more, the newest are near at hand."""
TIME_MAX = 10**TIME_DIGITS - 1


async def load(call: Call, keys: Sequence[Key], partitions: int) -> list[Record | None]:
    asked: dict[int, list[int | str]] = {}
    homes: list[tuple[int, Layout]] = []
    for key in keys:
        layout = layout_of(key.kind)
        partition = home(key, partitions)
        asked.setdefault(partition, []).extend(place(key))
        homes.append((partition, layout))
    if not asked:
        return []
    answers = await call("load", {p: packed(places) for p, places in asked.items()})
    rows = {p: iter(answer) for p, answer in answers.items()}
    found = [(layout, next(rows[p])) for p, layout in homes]
    return [None if row is None else _checked(layout, row) for layout, row in found]


def _checked(layout: Layout, row: Sequence[Any]) -> Record:
    record = layout.record(row)
    return check(record) if isinstance(record, Execution) else record


# ---- scan ---------------------------------------------------------------------------------------------------------


async def scan(
    call: Call, kind: str, prefix: tuple[str | int, ...], after: Key | None, limit: int, partitions: int
) -> list[Record]:
    layout = layout_of(kind)
    if len(prefix) > len(layout.kind.KEY):
        raise InvalidInput(f"scan: {prefix!r} is longer than a key of {kind}")
    if after is not None and (after.kind != kind or after.values[: len(prefix)] != prefix):
        raise InvalidInput(f"scan: {after} is not under {kind}{prefix!r}, so it is no place to go on from")
    behind = None if after is None else place(after)
    if kind in OWNED and len(prefix) < 2:
        if layout.kind.SEQUENCED:
            return await _scan_feeds(call, layout, encoded(prefix), after, limit, partitions)
        across = _scan_executions if layout is _EXECUTION else _scan_owners
        found = await across(call, layout, encoded(prefix), behind, limit, partitions)
        return _page(found, prefix, after, limit)
    if kind in OWNED:
        of, rest = owner(str(prefix[0]), str(prefix[1])), encoded(prefix[2:])
        where = range(one := partition_of(str(prefix[0]), str(prefix[1]), partitions), one + 1)
    else:
        of, rest = "", encoded(prefix)
        where = range(partitions)
        if prefix and layout.kind.KEY[0] == "partition":
            where = range(int(prefix[0]), min(int(prefix[0]) + 1, partitions))
    if not where:
        return []
    argument = packed((layout.number, of, rest, behind[2] if behind else False, limit))
    answers = await call("scan", dict.fromkeys(where, argument))
    return _page([_checked(layout, row) for p in where for row in answers[p]], prefix, after, limit)


def _page(found: list[Record], prefix: tuple[str | int, ...], after: Key | None, limit: int) -> list[Record]:
    """What stands behind a place, in order. An owner that has few records gives all of a kind, in any."""
    if not found:
        return []
    keyed = [(record.key.values, record) for record in found]
    if prefix:
        keyed = [one for one in keyed if one[0][: len(prefix)] == prefix]
    if not found[0].SEQUENCED:
        if after is not None:
            keyed = [one for one in keyed if one[0] > after.values]
        return [record for _, record in sorted(keyed, key=itemgetter(0))[:limit]]
    in_order = sorted((seq_of(record), values, record) for values, record in keyed)
    stands = 0 if after is None else next((seq for seq, values, _ in in_order if values == after.values), 0)
    return [record for seq, _, record in in_order if seq > stands][:limit]


async def _scan_owners(
    call: Call, layout: Layout, prefix: str, behind: tuple[int, str, str] | None, limit: int, partitions: int
) -> list[Record]:
    """The first of each partition: a call looks at a bounded number of owners."""
    start = (f"[{behind[1]}", behind[2]) if behind else (False, False)
    places: dict[int, tuple[str | bool, str | bool]] = dict.fromkeys(range(partitions), start)
    counts = [0] * partitions
    found: list[Record] = []
    while places:
        asked = {p: packed((layout.number, prefix, *place, limit - counts[p])) for p, place in places.items()}
        places = {}
        for p, (rows, stopped) in (await call("scan_owners", asked)).items():
            found += [_checked(layout, row) for row in rows]
            counts[p] += len(rows)
            if stopped is not None and counts[p] < limit + LISTED:
                places[p] = (f"({stopped.decode()}", False)
    return found


async def _scan_executions(
    call: Call, layout: Layout, prefix: str, behind: tuple[int, str, str] | None, limit: int, partitions: int
) -> list[Record]:
    """The first of all partitions. An owner is one execution, so each partition is asked for its share alone, and again
    while it may have some that come before the last of those found."""
    places = dict.fromkeys(range(partitions), f"({behind[1]}" if behind else False)
    found: dict[str, Record] = {}
    while places:
        share = _share(limit, len(places))
        asked = {p: packed((layout.number, prefix, place, False, share)) for p, place in places.items()}
        ends: dict[int, str] = {}
        for p, (rows, stopped) in (await call("scan_owners", asked)).items():
            found |= {owner(*one.key.values): one for one in map(layout.record, rows)}
            if stopped is not None:
                ends[p] = stopped.decode()
        last = sorted(found)[limit - 1] if len(found) >= limit else None
        places = {p: f"({end}" for p, end in ends.items() if last is None or end < last}
    return [check(one) for one in found.values() if isinstance(one, Execution)]


def _share(limit: int, lines: int) -> int:
    """How many of the first `limit` each of several lines is asked for at once: most are not spread much worse."""
    return limit if lines == 1 else min(limit, 2 * -(-limit // lines) + 8)


def seq_of(record: Record) -> int:
    return int(getattr(record, "seq", 0))


async def _scan_feeds(
    call: Call, layout: Layout, prefix: str, after: Key | None, limit: int, partitions: int
) -> list[Record]:
    """Sequenced records of many owners: partition by partition, each in the order of its numbers."""
    first, seq = 0, 0
    if after is not None:
        first = home(after, partitions)
        [stands] = await load(call, [after], partitions)
        seq = 0 if stands is None else seq_of(stands)
    found: list[Record] = []
    at, partition = layout.positions, first
    while partition < partitions and len(found) < limit:
        asked = (layout.number, prefix, seq, limit - len(found), filtered(EVERYTHING), at["namespace"], at["execution"])
        [_, rows, stopped] = (await call("feed", {partition: packed(asked)}))[partition]
        found += [layout.record(row) for row in rows]
        seq = stopped or 0
        if stopped is None:
            partition += 1
    return found


# ---- find ---------------------------------------------------------------------------------------------------------


class _Way(Struct, frozen=True):
    """Indexes that each lead to some of what is asked for, in the same order: a script takes the shortest. And what
    each execution must have."""

    groups: tuple[str, ...]
    equal: tuple[Any, ...]


class _Search(Struct, frozen=True):
    """A query as scripts read it: one way for each status (or one for all), bounds, and what each must have."""

    namespace: str
    ways: tuple[_Way, ...]
    low: str
    high: str
    equal: tuple[Any, ...]
    tags: tuple[str, ...]
    id_prefix: str

    def argument(self, way: _Way, high: str, limit: int, *, count: bool) -> Arguments:
        return packed(
            (
                self.namespace,
                way.groups,
                self.low,
                high,
                limit,
                way.equal,
                self.tags,
                self.id_prefix,
                1 if count else 0,
            )
        )


def _search(query: Query) -> _Search:
    if len(query.tags) > limits.TAGS_MAX:
        raise LimitExceeded("tags", actual=len(query.tags), limit=limits.TAGS_MAX, unit="tags")
    at, equal = _EXECUTION.positions, list[Any]()
    if query.lane is not None:
        equal += (at["lane"], query.lane)
    if query.reason is not None:
        equal += (at["reason"], query.reason)
    tags = tuple(part for tag in query.tags.items() for part in tag)
    low, high = _bounds(query)
    return _Search(query.namespace, _ways(query, tuple(equal)), low, high, tuple(equal), tags, query.id_prefix or "")


def _ways(query: Query, equal: tuple[Any, ...]) -> tuple[_Way, ...]:
    at, space = _EXECUTION.positions, text(query.namespace)
    statuses = {status: f"status:{space}{text(status)}" for status in sorted(query.status)}
    if query.workflow is None:
        groups = tuple(statuses.values()) or (f"created:{space}",)
        return tuple(_Way((group,), equal) for group in groups)
    of_workflow, both = f"workflow:{space}{text(query.workflow)}", (*equal, at["workflow"], query.workflow)
    if not statuses:
        return (_Way((of_workflow,), equal),)
    return tuple(_Way((group, of_workflow), (*both, at["status"], status.value)) for status, group in statuses.items())


def _bounds(query: Query) -> tuple[str, str]:
    """The members of an index between which executions of the asked times stand."""
    low, high = "-", "+"
    if query.created_from is not None:
        low = "[" + _time(query.created_from)
    if query.created_before is not None:
        high = "(" + _time(query.created_before)
    if query.after is not None:
        created_at, colon, execution_id = query.after.partition(":")
        if not colon:
            raise InvalidInput(f"{query.after!r} is not a cursor of find")
        behind = "(" + _time(cursor_number(created_at, "find")) + text(execution_id)
        high = min(high, behind) if high != "+" else behind
    return low, high


def _time(at: int) -> str:
    return f"{max(0, min(at, TIME_MAX)):0{TIME_DIGITS}}"


async def find(call: Call, query: Query, partitions: int) -> Page:
    search = _search(query)
    executions = await _few(call, search, query, partitions)
    if executions is None:
        executions = await _walk(call, search, query.limit, partitions)
    executions.sort(key=lambda e: (e.created_at, e.id), reverse=True)
    executions = [check(execution) for execution in executions[: query.limit]]
    if len(executions) < query.limit:
        return Page(executions, None)
    last = executions[-1]
    return Page(executions, cursor_of(settled(last.created_at) or 0, last.id))


async def count(call: Call, query: Query, partitions: int) -> int:
    search = _search(query)
    executions = await _few(call, search, query, partitions)
    if executions is not None:
        return len(executions)
    counted = 0
    ends = {(p, way): search.high for p in range(partitions) for way in search.ways}
    while ends:
        answers = await _each(call, search, ends, 0, count=True)
        counted += sum(answer[0] for answer in answers.values())
        ends = {at: "(" + answer[1].decode() for at, answer in answers.items() if answer[1] is not None}
    return counted


async def _walk(call: Call, search: _Search, limit: int, partitions: int) -> list[Execution]:
    """The newest of all partitions and ways. Each is asked for its share, and again while it may have newer ones than
    the last of those found; each call looks at a bounded number."""
    ends = {(p, way): search.high for p in range(partitions) for way in search.ways}
    found: dict[str, Execution] = {}
    while ends:
        answers = await _each(call, search, ends, _share(limit, len(ends)), count=False)
        for rows, _ in answers.values():
            found |= {_member(one): one for one in map(_execution, rows)}
        last = sorted(found, reverse=True)[limit - 1] if len(found) >= limit else ""
        stopped = {at: answer[1].decode() for at, answer in answers.items() if answer[1] is not None}
        ends = {at: f"({end}" for at, end in stopped.items() if end > last}
    return list(found.values())


async def _each(
    call: Call, search: _Search, ends: dict[tuple[int, _Way], str], limit: int, *, count: bool
) -> dict[tuple[int, _Way], Any]:
    """One call per partition and way, the partitions together."""
    answers: dict[tuple[int, _Way], Any] = {}
    for way in search.ways:
        asked = {p: search.argument(way, high, limit, count=count) for (p, of), high in ends.items() if of == way}
        if asked:
            answers |= {(p, way): answer for p, answer in (await call("find", asked)).items()}
    return answers


async def _few(call: Call, search: _Search, query: Query, partitions: int) -> list[Execution] | None:
    """All that a tag leads to, if few executions have it; None if there is no such tag."""
    for tag, value in query.tags.items():
        group = f"tagged:{text(query.namespace)}{text(tag)}{text(value)}"
        asked = packed((search.namespace, group, FEW, False, False, search.equal, search.tags, search.id_prefix))
        answers = await call("find_tagged", dict.fromkeys(range(partitions), asked))
        if all(answer is not None for answer in answers.values()):
            found = [_execution(row) for answer in answers.values() for row in answer]
            return [execution for execution in found if _between(search, query, execution)]
    return None


def _between(search: _Search, query: Query, execution: Execution) -> bool:
    """What the index did not ask: the status, the workflow, and the bounds of time and cursor."""
    if query.status and execution.status not in query.status:
        return False
    if query.workflow is not None and execution.workflow != query.workflow:
        return False
    member = _member(execution)
    above = search.low == "-" or member >= search.low[1:]
    return above and (search.high == "+" or member < search.high[1:])


def _member(execution: Execution) -> str:
    """Its place in the indexes that find reads."""
    return _time(settled(execution.created_at) or 0) + text(execution.id)


def _execution(row: Sequence[Any]) -> Execution:
    record = _EXECUTION.record(row)
    assert isinstance(record, Execution)
    return record


# ---- due ----------------------------------------------------------------------------------------------------------


async def due(call: Call, kind: DueKind, limit: int, filter: Filter, partitions: int, now: int | None) -> Due:
    name, index, time = DUE[kind]
    layout = LAYOUTS[name]
    what = kind.value if kind in (DueKind.LEASE, DueKind.SESSION) else "index"
    namespace, target = layout.positions.get("namespace", 0), layout.positions.get(EXECUTION_ID.get(name, ""), 0)

    def asked(partition: int, place: Sequence[bytes] | None) -> Arguments:
        return packed(
            (
                now or False,
                what,
                max(0, limit - found[partition]),
                filtered(filter_of(kind, filter)),
                whole(partition) if kind is DueKind.LEASE else layout.number,
                index,
                namespace,
                target,
                layout.positions[time],
                kind in OWED,
                place_behind(place),
            )
        )

    found = [0] * partitions
    answers: list[Any] = []
    places: dict[int, Any] = dict.fromkeys(range(partitions))
    while places:
        told = await call("due", {p: asked(p, place) for p, place in places.items()})
        for p, answer in told.items():
            found[p] += len(answer[1])
        answers += told.values()
        places = {p: answer[5] for p, answer in told.items() if answer[5] is not None}
    items = [DueItem(int(at), layout.record(row)) for answer in answers for at, row in answer[1]]
    items.sort(key=lambda item: item.due_at)
    newest = max(answer[0] for answer in answers)
    # Clocks of partitions differ: when the next one is due, its own says.
    ahead_ms = [answer[3] for answer in answers if answer[3] is not None]
    return Due(
        newest,
        items[:limit],
        sum(answer[2] for answer in answers),
        newest + min(ahead_ms) if ahead_ms else None,
        sum(answer[4] for answer in answers) if kind in OWED else None,
    )


# ---- streams ------------------------------------------------------------------------------------------------------


async def frames(call: Call, stream: tuple[str, str], after: int, limit: int, partitions: int) -> list[Frame]:
    partition = partition_of(*stream, partitions)
    rows = (await call("frames", {partition: packed((owner(*stream), max(0, after), limit))}))[partition]
    return [Frame(seq, at, value) for seq, (at, value) in enumerate(rows, start=max(0, after) + 1)]


async def completions(call: Call, after: str | None, limit: int, filter: Filter, partitions: int) -> Feed:
    """The cursor is a number for each partition: what commits later in one is still ahead of its number."""
    layout = LAYOUTS[Completion.KIND]
    stands = _stands(after, partitions)
    at = layout.positions
    pages: dict[int, list[Completion]] = {p: [] for p in range(partitions)}
    newest = dict.fromkeys(pages, 0)
    places = dict(enumerate(stands))
    while places:
        asked = {
            p: packed(
                (layout.number, "", place, limit - len(pages[p]), filtered(filter), at["namespace"], at["execution"])
            )
            for p, place in places.items()
        }
        places = {}
        for p, (given, rows, stopped) in (await call("feed", asked)).items():
            pages[p] += map(_completion, rows)
            newest[p] = given
            if stopped is not None:
                places[p] = stopped
    # Each partition in its own order; the ends of several by their time, and within a millisecond by their numbers,
    # which follow the clock too: so that a reader is near the order of things.
    lines = [[(one.finished_at, one.seq, p, one) for one in page] for p, page in pages.items()]
    found = list(heapq.merge(*lines, key=lambda item: item[:3]))[:limit]
    cursors: list[str] = []
    for *_, p, one in found:
        stands[p] = one.seq
        cursors.append(_cursor_at(stands))
    for p, page in pages.items():
        if len(page) < limit and (not page or stands[p] == page[-1].seq):
            stands[p] = max(stands[p], newest[p])  # all of it was read: also what the filter left out
    return Feed([one for *_, one in found], _cursor_at(stands), cursors)


def _cursor_at(stands: list[int]) -> str:
    return ".".join(map(str, stands))


def _completion(row: Sequence[Any]) -> Completion:
    record = LAYOUTS[Completion.KIND].record(row)
    assert isinstance(record, Completion)
    return record


def _stands(after: str | None, partitions: int) -> list[int]:
    if after is None:
        return [0] * partitions
    numbers = [cursor_number(part, "completions") for part in after.split(".")]
    if len(numbers) != partitions:
        raise InvalidInput(f"{after!r} is not a cursor of completions of this store: it has {partitions} partitions")
    return numbers
