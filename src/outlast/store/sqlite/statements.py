"""The store's SQL: files in `queries/`, filled in with the names that `model/kinds.py` declares.

Only identifiers are ever filled in, and only declared ones; values are always bound. A file may have several parts
(`-- part: name`).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from outlast.errors import InvalidInput
from outlast.model.kinds import KINDS
from outlast.model.record import Record

_PART = re.compile(r"^-- part: (\w+)$", re.MULTILINE)


@cache
def _text(name: str) -> str:
    return files("outlast.store.sqlite").joinpath("queries", f"{name}.sql").read_text()


@cache
def statement(name: str) -> str:
    """The statement of `queries/NAME.sql`, or of one of its parts: `due:timer`."""
    file, _, part = name.partition(":")
    text = _text(file)
    if part:
        pieces = _PART.split(text)
        text = dict(zip(pieces[1::2], pieces[2::2], strict=True))[part]
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


class Table:
    """One kind of record as a table: its statements, and the way of a record to and from a row."""

    def __init__(self, kind: type[Record]) -> None:
        fields = [field.name for field in msgspec.structs.fields(kind)]
        self.kind = kind
        self.name = f"outlast_{kind.KIND}"
        self.fields = tuple(fields)
        self.columns = ", ".join(fields)
        self.columns_of_x = ", ".join(f"x.{field}" for field in fields)
        self._seq = fields.index("seq") if kind.SEQUENCED else None
        self._is_plain = not kind.FLAGS and not kind.WORDS
        """A row has its values as they are."""
        self._key = " AND ".join(f"{name} = ?" for name in kind.KEY)
        names = {"table": self.name, **_named(fields)}
        self.insert = statement("insert").format(**names)
        rest = [field for field in fields if field not in (*kind.KEY, "seq")]
        self.put = statement("put").format(
            **names, key=", ".join(kind.KEY), replaced=", ".join(f"{field} = excluded.{field}" for field in rest)
        )
        self.delete = statement("delete").format(table=self.name, key=self._key)
        self.load = self.read(self.fields)
        self._reads: dict[tuple[str, ...], str] = {}
        self._patches: dict[tuple[str, ...], str] = {}
        self._adds: dict[str, str] = {}
        self.has_inbox = "inbox" in fields
        self.has_change_id = "change_id" in fields
        self.exists = self.guard(kind.KEY[:1])

    def read(self, fields: tuple[str, ...]) -> str:
        self._check(fields)
        return statement("read").format(table=self.name, columns=", ".join(fields), key=self._key)

    def guard(self, fields: tuple[str, ...]) -> str:
        """Reads what a guard compares; of an execution also its inbox, for the verdict."""
        sql = self._reads.get(fields)
        if sql is None:
            extra = ("inbox",) if self.has_inbox else ()
            sql = self._reads[fields] = self.read((*fields, *extra) or self.kind.KEY[:1])
        return sql

    def patch(self, fields: tuple[str, ...]) -> str:
        sql = self._patches.get(fields)
        if sql is None:
            self._check(fields)
            assignments = ", ".join(f"{name} = ?" for name in fields)
            sql = statement("patch").format(table=self.name, assignments=assignments, key=self._key)
            self._patches[fields] = sql
        return sql

    def add(self, field: str) -> str:
        sql = self._adds.get(field)
        if sql is None:
            self._check((field,))
            sql = self._adds[field] = statement("add").format(table=self.name, field=field, key=self._key)
        return sql

    def scan(self, prefix: int, *, after: bool) -> str:
        order = ("seq",) if self._seq is not None else self.kind.KEY
        where = " AND ".join(f"{name} = ?" for name in self.kind.KEY[:prefix]) or "1"
        template = statement("scan_after" if after else "scan")
        return template.format(
            table=self.name,
            columns=self.columns,
            prefix=where,
            order=", ".join(order),
            marks=", ".join("?" * len(order)),
        )

    def record(self, row: tuple[Any, ...]) -> Record:
        values = dict(zip(self.fields, row, strict=True))
        return self.kind(**values) if self._is_plain else self.kind.decode(values)

    def _check(self, fields: tuple[str, ...]) -> None:
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise InvalidInput(f"{self.kind.KIND} has no field {unknown[0]!r}")


def _named(fields: list[str]) -> dict[str, str]:
    """By their names: a file of a later release has more columns. A row has all fields; no column is given the number
    that is the store's own."""
    assert fields[-1] != "seq", "SQLite wants as many values as its highest mark says"
    marks = {name: f"?{number}" for number, name in enumerate(fields, start=1) if name != "seq"}
    return {"columns": ",".join(marks), "marks": ",".join(marks.values())}


row_of = msgspec.structs.astuple
"""What inserting a record binds: all its fields, as they are. The writer's cursor settles the times."""


class _Tables(dict[str, Table]):
    def __missing__(self, kind: str) -> Table:
        raise InvalidInput(f"there is no kind of record {kind!r}")


TABLES = _Tables({name: Table(kind) for name, kind in KINDS.items()})
