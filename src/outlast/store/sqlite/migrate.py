"""The schema: numbered files in `migrations/`, applied in order, each once, under the writers' lock."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from importlib.resources import files

import apsw

from outlast.errors import SchemaMissing, SchemaOutdated, SchemaTooNew, StoreCorrupt
from outlast.store.sqlite.connection import rows_of
from outlast.store.sqlite.statements import statement

_NAME = re.compile(r"(\d{4})_\w+\.sql")


def migrations() -> dict[int, str]:
    """Every migration of this code, by number."""
    folder = files("outlast.store.sqlite").joinpath("migrations")
    found = {int(match[1]): entry for entry in folder.iterdir() if (match := _NAME.fullmatch(entry.name))}
    return {number: found[number].read_text() for number in sorted(found)}


SCHEMA = max(migrations())
OLDEST = 1
"""Code of this schema or a later one works on `SCHEMA`. Migrations add (tables, columns with a default); one that takes
something away raises this number, one release after the last that used it: while a deploy rolls, both are at work."""


def schema_of(cursor: apsw.Cursor) -> int:
    """The schema's number in this file; 0 if there is none."""
    if rows_of(cursor, statement("has_schema"))[0][0] == 0:
        return 0
    return _number(cursor, "schema") or 0


def _number(cursor: apsw.Cursor, name: str) -> int | None:
    rows = rows_of(cursor, statement("meta_read"), (name,))
    if not rows:
        return None
    number = str(rows[0][0])
    if not number.isdecimal():
        raise StoreCorrupt(f"the {name} in outlast_meta is {number!r}, not a number: restore the file from a backup")
    return int(number)


def check_schema(cursor: apsw.Cursor) -> None:
    found = schema_of(cursor)
    if found == 0:
        raise SchemaMissing("there is no Outlast schema in this file yet: run migrate() first")
    if found < SCHEMA:
        raise SchemaOutdated(f"the file has schema {found}, this version of Outlast needs {SCHEMA}: run migrate()")
    _refuse_too_new(cursor, found)


def _refuse_too_new(cursor: apsw.Cursor, found: int) -> None:
    """A later schema says what the oldest code is that works with it."""
    if found > SCHEMA and (_number(cursor, "oldest") or found) > SCHEMA:
        raise SchemaTooNew(found, SCHEMA)


def migrate(cursor: apsw.Cursor) -> int:
    """Apply what is missing, inside the caller's transaction."""
    found = schema_of(cursor)
    _refuse_too_new(cursor, found)
    for number, text in migrations().items():
        if number > found:
            cursor.execute(text)
    if found < SCHEMA:
        for name, value in (("schema", SCHEMA), ("oldest", OLDEST)):
            cursor.execute(statement("meta_write"), (name, str(value)))
    return SCHEMA
