"""The functions that run on the server, filled in from `model/kinds.py`: one call is one round trip, whatever is in it.

A function's name carries a digest of its text, so that an older and a newer release, each with its own, work on one
database while a deploy rolls. `migrate` creates those that are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from outlast import limits
from outlast.machine import Changes, View, decide, facts
from outlast.machine.changes import Insert
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.kinds import OF_EXECUTION
from outlast.model.lease import EARLY_EVENTS
from outlast.model.names import OWN_PREFIX
from outlast.model.payload import Payload
from outlast.model.retry import RetryPolicy
from outlast.model.tag import Tag
from outlast.store.postgres.statements import RELATIVE, TABLES, Table, statement

LOOSE = ("flow", "lane", "outbox", "quota", "session", "summary")
"""Kinds whose records no execution's row covers: locked by themselves, in this order, after the executions."""
OPERATIONS = ("guard", "taken", "delete", "insert", "put", "patch", "add")
"""In the order in which a commit does them, after the locks."""

SLOTS: dict[tuple[str, str], int] = {}
"""An operation on a kind by its number, in the order in which a commit does them."""
for _operation, _kinds in [
    ("lock", LOOSE),
    ("share", LOOSE),
    *((operation, tuple(TABLES)) for operation in OPERATIONS),
]:
    for _kind in _kinds:
        SLOTS[_operation, _kind] = len(SLOTS) + 1
EXPECTED = (
    "epoch", "status", "inbox", "generation", "waits", "held", "unwinds", "has_children", "cancel_requested",
)  # fmt: skip
"""The fields of an execution that guards are about, none of them ever null; of any other, a guard is slower."""
COMPARED: dict[str, tuple[str, ...]] = {
    "flow": ("state", "revision"),
    "member": ("answered", "drained", "settled", "change_id"),
}
"""The same of kinds that every end in a flow asks for: compared as columns, without a document of the row."""
TAKEN_BY = {slot: SLOTS["taken", kind] for (operation, kind), slot in SLOTS.items() if operation == "insert"}
"""For each insert, the look at its keys that comes before it when one was found to be taken."""


def _names(table: Table) -> dict[str, str]:
    numbers = numbers_of(table) or ["ix"]
    rest = [name for name in table.written if name not in table.key]
    marks = "g.fields" if table.shared else "q.fields"
    compared = COMPARED.get(table.name, ())
    return {
        "kind": table.name,
        "key": ", ".join(table.key),
        "key_of_q": ", ".join(f"q.{name}" for name in table.key),
        "key_types": table.typed(table.key),
        "asked_types": table.typed((*table.key, *compared)),
        "compared": "".join(f" AND t.{name} = coalesce(q.{name}, t.{name})" for name in compared),
        "same_key": _same_key("t", table, flat=True),
        "same_key_of_x": _same_key("x", table, flat=True),
        "rows": _rows(table, table.written),
        "patches": _rows(table, table.written, "fields bigint, "),
        "keys": _rows(table, table.key),
        "same_row": _same_key("t", table),
        "same_row_of_x": _same_key("x", table),
        "columns": ", ".join(table.written),
        "types": table.typed(table.written),
        "settled": ", ".join(_settled(table, name) for name in table.written),
        "settled_flat": ", ".join(_settled(table, name, flat=True) for name in table.written),
        "excluded": ", ".join(f"{name} = excluded.{name}" for name in rest),
        "patched": ", ".join(
            f"{name} = CASE WHEN {marks} & {table.bits[name]} = 0 THEN t.{name} ELSE {_settled(table, name)} END"
            for name in rest
        ),
        "added": ", ".join(f"{name} = t.{name} + q.{name}" for name in numbers),
        "sums": ", ".join(f"coalesce(sum(q.{name}), 0)::bigint AS {name}" for name in numbers),
        "number_types": ", ".join(f"{name} bigint" for name in numbers),
        "numbers": "".join(
            [
                " WHEN '' THEN NULL::bigint",
                *(f" WHEN '{name}' THEN t.{name}" for name in table.fields if table.type_of(name) == "bigint"),
            ]
        ),
    }


def _rows(table: Table, names: Iterable[str], more: str = "") -> str:
    """These fields of the rows of a call: `q`, and `g` for what the rows of a group share."""
    if not table.shared:
        return f"json_to_recordset(doc) AS q(ix int, {more}{table.typed(names)})"
    shared = table.typed(name for name in names if name in table.shared)
    varied = ", ".join(
        f"{name} {table.type_of(name).replace('bytea', 'text')}" for name in names if name not in table.shared
    )
    return (
        f"json_to_recordset(doc) AS g({more}{shared}, rows json)\n"
        f"CROSS JOIN LATERAL json_to_recordset(g.rows) AS q(ix int, {varied})"
    )


def _said(table: Table, name: str, *, flat: bool = False) -> str:
    return f"g.{name}" if name in table.shared and not flat else f"q.{name}"


def _same_key(alias: str, table: Table, *, flat: bool = False) -> str:
    return " AND ".join(f"{alias}.{name} = {_said(table, name, flat=flat)}" for name in table.key)


def numbers_of(table: Table) -> list[str]:
    """The fields that something can be added to."""
    return [
        name
        for name, column in table.columns.items()
        if column.python is int and not column.optional and name not in (*table.key, *table.kind.TIMES, "seq")
    ]


def _settled(table: Table, name: str, *, flat: bool = False) -> str:
    is_time = name != "partition" and table.columns[name].is_time
    value = _said(table, name, flat=flat)
    if table.shared and not flat and name not in table.shared and table.type_of(name) == "bytea":
        return f"decode({value}, 'base64')"
    return f"outlast.settled({value}, now_ms)" if is_time else value


def _commit() -> str:
    strengths = {"lock": "NO KEY UPDATE", "share": "SHARE"}
    leaves: dict[int, str] = {}
    for (operation, kind), slot in SLOTS.items():
        table, strength = TABLES[kind], strengths.get(operation, "")
        if operation != "add" or numbers_of(table):
            part = "lock" if strength else operation
            leaves[slot] = statement(f"commit:{part}").format(strength=strength, **_names(table))
    last_lock = SLOTS["share", LOOSE[-1]]
    return statement("commit:function").format(
        name="{name}",
        expected_types=TABLES[Execution.KIND].typed(EXPECTED),
        expected=" AND ".join(f"x.{name} = coalesce(q.{name}, x.{name})" for name in EXPECTED),
        last_lock=last_lock,
        locks=_chosen([leaf for leaf in leaves.items() if leaf[0] <= last_lock]),
        rest=_chosen([leaf for leaf in leaves.items() if leaf[0] > last_lock]),
    )


def _chosen(leaves: list[tuple[int, str]]) -> str:
    """The one of the statements that the slot is about, by halves: there are more than a hundred of them."""
    if len(leaves) == 1:
        return leaves[0][1]
    middle = len(leaves) // 2
    first, second = _chosen(leaves[:middle]), _chosen(leaves[middle:])
    return f"IF slot < {leaves[middle][0]} THEN\n{first}\nELSE\n{second}\nEND IF;"


SHORT, SHORT_BYTES = 100, 64 * 1024
"""So many entries of a journal, and bytes of it, come with a claim; what is longer is left to its reader."""


def _claim() -> str:
    table, entry, event = TABLES[Execution.KIND], TABLES[JournalEntry.KIND], TABLES[Event.KIND]
    return statement("claim:function").format(
        name="{name}",
        types=table.typed(table.fields),
        columns=table.select,
        taken=statement("claim:taken"),
        made=statement("claim:made"),
        entry=_as_json(entry),
        event=_as_json(event),
        entries_max=SHORT,
        events_max=EARLY_EVENTS,
        bytes_max=SHORT_BYTES,
    )


def _as_json(table: Table) -> str:
    """The fields of a row `r`; bytes in hexadecimal, whatever the role's `bytea_output`."""
    return ", ".join(f"encode(r.{n}, 'hex')" if table.type_of(n) == "bytea" else f"r.{n}" for n in table.fields)


def _purge() -> str:
    belongings = [*(kind.KIND for kind in OF_EXECUTION), "frame"]
    each = statement("purge:each").format(
        belongings="\n".join(statement("purge:belongings").format(kind=kind) for kind in belongings)
    )
    return statement("purge:function").format(name="{name}", tagged=statement("purge:tagged"), each=each)


def _sample(delay_ms: int) -> str:
    """What the machine answers to a start, with marks where the names go: what `outlast.start` makes its rows from."""
    marked = facts.Start(
        change_id="",
        namespace="%1$s",
        id="id",
        workflow="%1$s",
        version="%2$s",
        requires=("%3$s",),
        lane="%2$s",
        input=b"",
        input_digest="",
        delay_ms=delay_ms,
    )
    answer = decide(View(0, None), marked, 0)
    assert isinstance(answer, Changes)
    rows = {write.record.KIND: _row(write) for write in answer.writes if isinstance(write, Insert)}
    assert rows.keys() == {Execution.KIND, Payload.KIND}, "a start writes more than outlast.start knows of"
    return msgspec.json.encode({**rows, "heard": heard_by_all(answer.rings)}).decode()


def _row(write: Insert) -> dict[str, object]:
    return TABLES[write.record.KIND].row(write.record, 0, 0)


def heard_by_all(channels: tuple[str, ...]) -> str | None:
    """What NOTIFY says to every process: nobody listens under this sender's name."""
    return "\n".join(("sql", *channels)) if channels else None


def _filled(text: str, **more: object) -> str:
    """For texts with braces of their own."""
    numbers = {name: value for name, value in vars(limits).items() if name.isupper()}
    for name, value in {**numbers, **more}.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _named(what: str, text: str) -> tuple[str, str]:
    name = f"{what}_{sha256(text.encode()).hexdigest()[:8]}"
    return name, text.replace("{name}", name)


_TEXTS = {
    "commit": _commit(),
    "claim": _claim(),
    "renew": statement("renew:function").format(name="{name}"),
    "append": statement("append:function").format(name="{name}"),
    "purge": _purge(),
}

FUNCTIONS: dict[str, str] = {}
"""The text of each function, by its name on the server."""
CALLS: dict[str, str] = {}
"""How each is called, by what it does."""
for _what, _text in _TEXTS.items():
    _name, _made = _named(_what, _text)
    FUNCTIONS[_name] = _made
    CALLS[_what] = statement(f"{_what}:call").format(name=_name)


_COMMIT = next(name for name in FUNCTIONS if name.startswith("commit_"))
for _what in ("prompt", "ringing"):
    CALLS[f"commit:{_what}"] = statement(f"commit:{_what}_call").format(name=_COMMIT)


def _settling() -> None:
    """Adds the function of `transact.sql`."""
    text = _filled(statement("transact:function"), commit=_COMMIT)
    name, text = _named("settle", text)
    FUNCTIONS[name] = text
    CALLS["transact"] = statement("transact:call").replace("{name}", name)


def _starting() -> str:
    """Adds the functions of `start.sql`; the text of the one whose name never changes."""
    canonical, text = _named("canonical", statement("start:canonical").replace("{canonical}", "{name}"))
    FUNCTIONS[canonical] = text
    text = _filled(statement("start:function"), commit=_COMMIT).replace("{start}", "{name}")
    face = _filled(
        statement("start:face"),
        canonical=canonical,
        unprintable=statement("unprintable"),
        ready=_sample(0),
        delayed=_sample(1),
        retry=msgspec.json.encode(RetryPolicy(max_attempts=3)).decode(),
        RELATIVE=RELATIVE,
        OWN_PREFIX=OWN_PREFIX,
        slots=",".join(str(SLOTS[of, kind.KIND]) for of in ("taken", "insert") for kind in (Execution, Payload)),
        slot_tag=SLOTS["put", Tag.KIND],
    )
    start = f"start_{sha256((text + face).encode()).hexdigest()[:8]}"
    FUNCTIONS[start] = text.replace("{name}", start)
    for part in ("join", "call"):
        CALLS[f"start:{part}"] = statement(f"start:{part}").replace("{start}", start)
    return face.replace("{start}", start)


_settling()
FACE: Final = _starting()
"""`outlast.start`, for everybody: made anew by the release that creates the newest functions behind it."""
