"""Commit a batch of guarded changes: one call of one function on the server, unless changes depend on each other.

The function locks the executions that the batch touches, in key order, reads all guards under the locks, and applies
every change whose guards hold, in sets; it answers which were refused. Three things need more than that one call:

- changes of which one sees what another writes go into calls of their own, in the order given (`rounds.py`);
- if an insert meets a record, nothing of the call is written, and it is repeated with a look at every key first;
- a refused change is looked at once more by itself, under its locks, to say by what it was refused and what stands
  there now (`_explained`). If it holds by then, it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias, assert_never

import msgspec

from outlast.errors import InvalidInput, StoreUnavailable
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    GoneOrPast,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    Shape,
    TimeAhead,
    TimeReached,
    Write,
)
from outlast.machine.guards import anchored_execution, applied_before, failed_guard, signed_keys
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.kinds import OF_EXECUTION
from outlast.model.record import Key, Now, Plain, Record
from outlast.store.port import Committed, Verdict
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.doorbell import Ring
from outlast.store.postgres.errors import KeyTaken
from outlast.store.postgres.functions import CALLS, COMPARED, EXPECTED, LOOSE, SLOTS, TAKEN_BY, numbers_of
from outlast.store.postgres.reading import load
from outlast.store.postgres.rounds import Numbered, next_round
from outlast.store.postgres.rows import Groups
from outlast.store.postgres.statements import TABLES, Table
from outlast.store.postgres.time import StoreTime

Row: TypeAlias = dict[str, Any]

_EXECUTION = Execution.KIND
_BELONGS = {kind.KIND for kind in OF_EXECUTION}
_NUMBERS = {name: frozenset(numbers_of(table)) for name, table in TABLES.items()}
_TESTS: dict[type, str] = {
    Matches: "matches", Absent: "absent", TimeReached: "reached", TimeAhead: "ahead", GoneOrPast: "lapsed",
}  # fmt: skip
_SEVERAL = -1
"""No number of a change."""
_CAREFUL_MAX = 20
_ASKING_MAX = 4_096
_USUAL: set[tuple[Any, ...]] = set()
"""Expectations of an execution that are columns and nothing else: their names, and the types of their values."""
_json = msgspec.json.Encoder()


async def commit(
    pool: Pool,
    time: StoreTime,
    partitions: int,
    batch: Sequence[Changes],
    *,
    ring: Ring | None = None,
    wait_ms: int | None = None,
) -> Committed:
    """`ring` is rung with it, if it can be. Who meets a lock waits for `wait_ms`, or as the connection says."""
    verdicts: dict[int, Verdict] = {}
    times: dict[int, int] = {}
    some, waiting = list(enumerate(batch)), list[Numbered]()
    call = Call(some, wait_ms)
    if call.crossed:
        some, waiting = next_round(some)
        call = Call(some, wait_ms) if waiting else call
    while True:
        refused, at = await _apply(pool, time, call, some, verdicts, None if waiting else ring)
        if len(some) == len(batch) and not refused:
            return Committed(at, [verdicts[number] for number in range(len(batch))])
        times |= dict.fromkeys((number for number, _ in some), at)
        if refused:
            explained = await _explained(pool, time, partitions, refused)
            verdicts |= {number: verdict for number, (verdict, _) in explained.items()}
            times |= {number: explained_at for number, (_, explained_at) in explained.items()}
        if not waiting:
            numbers = range(len(batch))
            return Committed(max(times.values()), [verdicts[n] for n in numbers], [times[n] for n in numbers])
        some, waiting = next_round(waiting)
        call = Call(some, wait_ms)


async def _apply(
    pool: Pool, time: StoreTime, call: Call, some: list[Numbered], verdicts: dict[int, Verdict], ring: Ring | None
) -> tuple[list[Numbered], int]:
    """Commit changes that do not depend on each other: the refused ones, and the time."""
    for chance in range(_CAREFUL_MAX):
        try:
            row = await pool.call("commit", lambda session: call.made(session, time, ring, careful=chance > 0))  # noqa: B023
        except KeyTaken:
            continue
        now, refused_list, inbox_list, rung = row
        time.saw(now)
        if ring is not None:
            ring.rung = rung
        inboxes = call.inboxes_of(inbox_list)
        refused = {int(number) for number in refused_list.split(",")} if refused_list else ()
        added: dict[Key, int] = {}
        for number, changes in some:
            if number not in refused:
                inbox = inboxes.get(number)
                verdicts[number] = Verdict(True, _inbox_after(changes, inbox, added) if call.adds else inbox)
        return [numbered for numbered in some if numbered[0] in refused], now
    raise StoreUnavailable("the keys of this commit are being taken and freed again and again")


def _inbox_after(changes: Changes, inbox: int | None, added: dict[Key, int]) -> int | None:
    """The anchored execution's inbox behind this change; those before it in the same call have added theirs."""
    anchor = anchored_execution(changes)
    if anchor is None:
        return None
    for write in changes.writes:
        if type(write) is Insert:
            if type(write.record) is Execution and write.record.key == anchor:
                inbox = write.record.inbox
        elif type(write) is Add and write.field == "inbox" and write.key == anchor:
            added[anchor] = added.get(anchor, 0) + write.amount
    return None if inbox is None else inbox + added.get(anchor, 0)


# ---- the call -----------------------------------------------------------------------------------------------------


class Call:
    """The arguments of one call, gathered change by change."""

    def __init__(self, some: Iterable[Numbered], wait_ms: int | None = None) -> None:
        self._wait_ms = wait_ms
        self.crossed = False
        """Whether two changes touch the same execution, or one writes a loose record that another one touches: only
        then one of them can depend on the other."""
        self.adds = False
        """Whether any of them adds to an execution: its inbox behind a change is then not what was found before all."""
        self._made: dict[int, int] = {}
        """By change: the inbox of the execution that it makes and is anchored at."""
        self._anchors: list[Row] = []
        self._rows: dict[int, list[Row]] = {}
        self._groups: dict[int, Groups] = {}
        """Of the kinds whose rows share fields: what gathers `_rows` of that slot."""
        self._asked: dict[Guard, list[int]] = {}
        """Guards on loose records, and who has them: most are of a whole partition, and asked once for all."""
        self._locks: dict[tuple[str, str], dict[tuple[str | int, ...], int]] = {}
        """Loose records by operation and kind, each with its partition."""
        self._executions: set[tuple[str | int, ...]] = set()
        self._records: dict[Key, tuple[int, bool]] = {}
        """Records that belong to no execution: which change touches each, if it is one, and whether it is written."""
        for number, changes in some:
            self._add(number, changes)

    def _add(self, number: int, changes: Changes) -> None:
        partition = changes.partition
        if changes.shape is Shape.STEP:
            self._step(number, partition, changes)
            return
        expected: dict[Any, Row] = {}
        patched: dict[Key, dict[str, Any]] = {}
        for anchor in changes.anchors:
            kind, values = anchor.kind, anchor.values
            TABLES[kind].check_key(anchor)
            if kind == _EXECUTION:
                self._execution(expected, number, partition, values, other=bool(expected))
            else:
                self._loose("lock", number, anchor, partition)
        for guard in changes.guards:
            self._guard(expected, number, partition, guard)
        for write in changes.writes:
            if type(write) is Insert:
                self._insert(expected, number, partition, write.record)
            elif type(write) is Patch:
                # One statement patches a record once.
                before = patched.get(write.key)
                patched[write.key] = write.fields if before is None else {**before, **write.fields}
            else:
                self._write(expected, number, partition, write)
        for key, fields in patched.items():
            self._patch(expected, number, partition, key, fields)
        self._anchors.extend(expected.values())
        if self._executions.isdisjoint(expected):
            self._executions.update(expected)
        else:
            self.crossed = True

    def _step(self, number: int, partition: int, changes: Changes) -> None:
        """What `_add` does, for an entry of a journal."""
        fence: Any = changes.guards[0]
        entry: Any = changes.writes[0]
        values = fence.key.values
        TABLES[_EXECUTION].check_key(fence.key)
        row: Row = {"ix": number, "partition": partition, "namespace": values[0], "id": values[1]}
        _expect(row, fence.fields)
        self._anchors.append(row)
        self.crossed = self.crossed or values in self._executions
        self._executions.add(values)
        self._grouped("insert", TABLES[JournalEntry.KIND]).insert(entry.record, number, partition)

    def _execution(
        self, expected: dict[Any, Row], number: int, partition: int, values: Any, *, other: bool = True
    ) -> Row:
        """The lock on an execution, on behalf of this change. The first anchor is the one that its verdict is about."""
        row = expected.get(values)
        if row is None:
            namespace, execution_id = values
            row = {"ix": number, "partition": partition, "namespace": namespace, "id": execution_id}
            if other:
                row["other"] = True
            expected[values] = row
        return row

    def _loose(self, operation: str, number: int, key: Key, partition: int) -> None:
        self._touch(number, key, writes=operation == "lock")
        self._locks.setdefault((operation, key.kind), {})[key.values] = partition

    def _touch(self, number: int, key: Key, *, writes: bool) -> None:
        """A change that touches a record more than once, as a flow that it locks, asks and writes, meets nobody."""
        by, written = self._records.get(key, (number, False))
        if by != number:
            self.crossed = self.crossed or written or writes
            by = _SEVERAL
        self._records[key] = (by, written or writes)

    def _guard(self, expected: dict[Any, Row], number: int, partition: int, guard: Guard) -> None:
        key = guard.key
        kind, values = key.kind, key.values
        if kind == _EXECUTION and type(guard) is Matches:
            row = expected.get(values)
            if row is None:
                TABLES[kind].check_key(key)
                row = self._execution(expected, number, partition, values)
            _expect(row, guard.fields)
            return
        shareable = kind in LOOSE and type(guard) is not Matches
        if shareable:
            askers = self._asked.get(guard)
            if askers is not None:
                askers.append(number)
                self._touch(number, key, writes=False)
                return
        row = _asking(guard, partition).copy() if shareable else _guard_row(guard, partition)
        if shareable and type(guard) is Absent:
            # What is not there can't be locked; and if it is there, the change is refused, locked or not.
            self._touch(number, key, writes=False)
        else:
            self._cover(expected, number, partition, key, "share")
        row["askers"] = askers = [number]
        if shareable:
            self._asked[guard] = askers
        self._row("guard", kind, row)

    def _insert(self, expected: dict[Any, Row], number: int, partition: int, record: Record) -> None:
        kind = record.KIND
        table = TABLES[kind]
        if kind in _BELONGS:
            owner = table.owner_of(record)
            if owner not in expected:
                self._execution(expected, number, partition, owner)
        elif type(record) is Execution:
            # Also if it is not anchored at what it makes, as a flow at its members: whoever else touches that is seen.
            if "other" not in self._execution(expected, number, partition, table.owner_of(record)):
                self._made[number] = record.inbox
        else:
            self._touch(number, record.key, writes=True)
        if not table.shared:
            self._row("insert", kind, table.row(record, number, partition))
            return
        self._grouped("insert", table).insert(record, number, partition)

    def _patch(
        self, expected: dict[Any, Row], number: int, partition: int, key: Key, fields: dict[str, Plain | Now]
    ) -> None:
        kind, values = key.kind, key.values
        table = TABLES[kind]
        if values not in expected or kind != _EXECUTION:
            table.check_key(key)
            self._cover(expected, number, partition, key, "lock")
        if not table.shared:
            row = table.key_row(values, partition)
            row["ix"] = number
            table.patch(row, fields)
            self._row("patch", kind, row)
            return
        self._grouped("patch", table).patch(values, fields, number, partition)

    def _grouped(self, operation: str, table: Table) -> Groups:
        """What gathers the rows of an operation on a kind whose rows share fields."""
        slot = SLOTS[operation, table.name]
        groups = self._groups.get(slot)
        if groups is None:
            groups = self._groups[slot] = Groups(table)
            self._rows[slot] = groups.rows
        return groups

    def _write(self, expected: dict[Any, Row], number: int, partition: int, write: Write) -> None:
        assert not isinstance(write, Insert | Patch)
        if isinstance(write, Put):
            record = write.record
            self._cover(expected, number, partition, record.key, "lock")
            self._row("put", record.KIND, TABLES[record.KIND].row(record, number, partition))
            return
        key = write.key
        table = TABLES[key.kind]
        table.check_key(key)
        self._cover(expected, number, partition, key, "lock")
        row = table.key_row(key.values, partition)
        row["ix"] = number
        match write:
            case Delete():
                self._row("delete", key.kind, row)
            case Add(_, field, amount):
                if field not in _NUMBERS[key.kind] or type(amount) is not int:
                    raise InvalidInput(f"nothing can be added to {field!r} of {key.kind}")
                row[field] = amount
                self.adds = self.adds or key.kind == _EXECUTION
                self._row("add", key.kind, row)
            case _:
                assert_never(write)

    def _cover(self, expected: dict[Any, Row], number: int, partition: int, key: Key, operation: str) -> None:
        """Every row that is read or changed is under a lock: its execution's, or its own."""
        kind, values = key.kind, key.values
        if kind == _EXECUTION:
            self._execution(expected, number, partition, values)
        elif kind in _BELONGS:
            self._execution(expected, number, partition, values[:2])
        else:
            self._loose(operation, number, key, partition)

    def _row(self, operation: str, kind: str, row: Row) -> None:
        self._rows.setdefault(SLOTS[operation, kind], []).append(row)

    async def made(self, session: Session, time: StoreTime, ring: Ring | None = None, *, careful: bool) -> Any:
        """The function's answer."""
        self._anchors.sort(key=_lock_order)
        return await self._called(session, time, self._anchors, self._slots(careful=careful), ring)

    async def locked(self, session: Session, time: StoreTime) -> Any:
        """Only the locks, and the time under them."""
        keys = ("ix", "partition", "namespace", "id")
        anchors = [{key: row[key] for key in keys} for row in sorted(self._anchors, key=_lock_order)]
        locks = {slot: rows for slot, rows in self._slots(careful=False).items() if slot not in self._rows}
        return await self._called(session, time, anchors, locks)

    def _slots(self, *, careful: bool) -> dict[int, list[Row]]:
        """The rows of each operation, in the order in which they are done."""
        slots = {SLOTS[of]: _lock_rows(of[1], locks) for of, locks in self._locks.items() if of in SLOTS}
        slots |= self._rows
        if careful:
            slots |= {TAKEN_BY[slot]: rows for slot, rows in self._rows.items() if slot in TAKEN_BY}
        return dict(sorted(slots.items()))

    async def _called(
        self,
        session: Session,
        time: StoreTime,
        anchors: list[Row],
        slots: dict[int, list[Row]],
        ring: Ring | None = None,
    ) -> Any:
        try:
            docs = [_json.encode(rows).decode() for rows in slots.values()]
            first = _json.encode(anchors).decode()
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise InvalidInput(f"a value that a record cannot have: {error}") from error
        values = {"anchors": first, "slots": ",".join(map(str, slots)), "docs": docs, **time.values()}
        how = "commit"
        if self._wait_ms is not None:
            how = "commit:prompt"
            values["wait_ms"] = str(self._wait_ms)
        elif ring is not None:
            how = "commit:ringing"
            values |= {"bell": ring.bell, "heard": ring.heard}
        return (await session.rows(CALLS[how], values))[0]

    def document(self) -> dict[str, Any]:
        """The same arguments, for who calls by a document: of one change that inserts, and locks nothing loose."""
        assert not self._locks
        slots = self._slots(careful=True)
        return {"anchors": self._anchors, "slots": ",".join(map(str, slots)), "docs": list(slots.values())}

    def inboxes_of(self, inboxes: str | None) -> dict[int, int | None]:
        """By change: the inbox of the execution that it is anchored at, before it, or as it makes it."""
        if not self._anchors:
            return {}
        found = zip(self._anchors, (inboxes or "").split(","), strict=True)
        before = {row["ix"]: int(inbox) if inbox else None for row, inbox in found if "other" not in row}
        return before | self._made


def _guard_row(guard: Guard, partition: int) -> Row:
    """A guard that is no expectation of an execution, but for who has it."""
    table = TABLES[guard.key.kind]
    table.check_key(guard.key)
    row = table.key_row(guard.key.values, partition)
    row["test"] = _TESTS[type(guard)]
    match guard:
        case Matches(_, fields):
            compared, rest = COMPARED.get(table.name, ()), dict[str, Any]()
            for name, value in fields.items():
                if name in compared and value is not None and table.columns[name].takes(value):
                    row[name] = value
                else:
                    rest[name] = table.plain_guard(name, value)
            if rest:
                row["fields"] = rest
        case Absent():
            pass
        case TimeReached(_, field) | TimeAhead(_, field) | GoneOrPast(_, field):
            row["field"] = table.column(field).name
        case _:
            assert_never(guard)
    return row


_asking = lru_cache(_ASKING_MAX)(_guard_row)
"""Those of a whole partition (its lane is open, the worker lives there) come again with every batch."""


def _lock_rows(kind: str, locks: dict[tuple[str | int, ...], int]) -> list[Row]:
    table = TABLES[kind]
    return [table.key_row(values, locks[values]) for values in sorted(locks)]


_lock_order = itemgetter("partition", "namespace", "id")


def _expect(row: Row, fields: dict[str, Plain]) -> None:
    """What a guard expects of the execution: the usual fields as columns, the rest as a document."""
    kinds = (*fields, *map(type, fields.values()))
    if kinds in _USUAL and "must" not in row:
        row["must"] = True
        row.update(fields)
        return
    table = TABLES[_EXECUTION]
    usual = "must" not in row
    row["must"] = True
    for name, value in fields.items():
        plain = name in EXPECTED and value is not None and name not in row
        if plain and table.columns[name].takes(value):
            row[name] = value
            continue
        usual = False
        more = row.setdefault("more", {})
        if more.setdefault(name, value) != value:
            more["no field can be two things"] = True
        more[name] = table.plain_guard(name, value)
    if usual:
        _USUAL.add(kinds)


# ---- refusals -----------------------------------------------------------------------------------------------------


async def _explained(
    pool: Pool, time: StoreTime, partitions: int, refused: list[Numbered]
) -> dict[int, tuple[Verdict, int]]:
    """Refused changes under their locks: what refused each, or that it was applied before, or (now) its way."""

    async def look(session: Session) -> dict[int, tuple[Verdict, int]]:
        call = Call(refused)
        now = (await call.locked(session, time))["now_ms"]
        keys = list(dict.fromkeys(key for _, changes in refused for key in seen_by(changes)))
        records = dict(zip(keys, await load(session, partitions, keys, checked=False), strict=True))
        answers: dict[int, tuple[Verdict, int]] = {}
        for number, changes in refused:
            failed = failed_guard(changes.guards, changes.writes, records, now)
            if failed is not None:
                answers[number] = explanation(changes, records, failed), now
        if len(refused) > 1 or answers:
            return answers
        [(number, changes)] = refused
        made = await call.made(session, time, careful=True)
        if made["refused_list"]:
            raise StoreUnavailable(f"the change {changes.id!r} met others at every turn")
        anchor = anchored_execution(changes)
        execution = records.get(anchor) if anchor else None
        inbox = execution.inbox if isinstance(execution, Execution) else None
        return {number: (Verdict(True, _inbox_after(changes, inbox, {})), made["now_ms"])}

    explained = await pool.call("commit", look, transaction=True)
    time.saw(max(at for _, at in explained.values()) if explained else 0)
    for numbered in refused:
        if numbered[0] not in explained:  # its guards hold by now: it is made by itself, as others may change that
            explained |= await _explained(pool, time, partitions, [numbered])
    return explained


def seen_by(changes: Changes) -> list[Key]:
    """All that its guards read, that its inserts would meet, and that may carry its id."""
    keys: dict[Key, None] = dict.fromkeys(anchor for anchor in changes.anchors if anchor.kind == _EXECUTION)
    keys |= dict.fromkeys(guard.key for guard in changes.guards)
    keys |= dict.fromkeys(write.record.key for write in changes.writes if isinstance(write, Insert))
    keys |= dict.fromkeys(signed_keys(changes))
    return list(keys)


def explanation(changes: Changes, records: dict[Key, Record | None], failed: Guard) -> Verdict:
    """What became of a change of which that guard does not hold."""
    anchor = anchored_execution(changes)
    execution = records.get(anchor) if anchor else None
    inbox = execution.inbox if isinstance(execution, Execution) else None
    if applied_before(changes, records):
        return Verdict(True, inbox, again=True)
    return Verdict(False, inbox, refused_by=failed, current=records[failed.key])
