"""The schema: numbered files in `migrations/`, applied in order, each once, under a lock; and the functions.

Functions are named by their text, so a release makes its own and leaves those of the release before it alone: while a
deploy rolls, both work on the same database.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from outlast.errors import InvalidConfig, SchemaMissing, SchemaOutdated, SchemaTooNew, StoreCorrupt, StoreError
from outlast.store.postgres.connection import Session
from outlast.store.postgres.errors import DENIED, sqlstate
from outlast.store.postgres.functions import FACE, FUNCTIONS
from outlast.store.postgres.statements import statement
from outlast.store.postgres.url import PARTITIONS_DEFAULT

_NAME = re.compile(r"(\d{4})_\w+\.sql")
ENCODING = "UTF8"


def migrations() -> dict[int, str]:
    """Every migration of this code, by number."""
    folder = files("outlast.store.postgres").joinpath("migrations")
    found = {int(match[1]): entry for entry in folder.iterdir() if (match := _NAME.fullmatch(entry.name))}
    return {number: found[number].read_text() for number in sorted(found)}


SCHEMA = max(migrations())
OLDEST = 1
"""Code of this schema or a later one works on `SCHEMA`. Migrations add (tables, columns with a default); one that takes
something away raises this number, one release after the last that used it: while a deploy rolls, both are at work."""


class Meta(NamedTuple):
    """What a store knows of itself; the schema is 0 if there is none."""

    schema: int = 0
    partitions: int = 0
    identity: str = ""
    """No other database has the same."""
    oldest: int = 0
    """The oldest code that can work with it."""

    def is_too_new(self) -> bool:
        return self.schema > SCHEMA and not 0 < self.oldest <= SCHEMA

    def check(self, partitions: int | None) -> None:
        """Whether it is what the URL says."""
        if self.schema and partitions not in (None, self.partitions):
            raise InvalidConfig(
                f"this store was created with {self.partitions} partitions; ?partitions={partitions} comes too late"
            )


async def schema_of(session: Session) -> Meta:
    found = (await session.rows(statement("migrate:has_schema")))[0]
    if found["encoding"] != ENCODING:
        raise InvalidConfig(
            f"the database {found['database']!r} is in {found['encoding']}, which cannot hold every name: make "
            f"another one (CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0) and name it in the URL"
        )
    if found["n"] == 0:
        return Meta()
    rows = await session.rows(statement("migrate:read"))
    if not rows:
        return Meta()
    meta = {row["name"]: row["value"] for row in rows}
    number, partitions = meta.get("schema", "0"), meta.get("partitions", "0")
    if not (number.isdecimal() and partitions.isdecimal()):
        raise StoreCorrupt(f"outlast.meta says schema {number!r} and partitions {partitions!r}: restore a backup")
    oldest = meta.get("oldest", number)
    identity = " ".join((meta.get("identity", ""), found["database"]))
    return Meta(int(number), int(partitions), identity, int(oldest) if oldest.isdecimal() else 0)


async def check_schema(session: Session, partitions: int | None) -> Meta:
    """What is there, if this code can work with it."""
    meta = await schema_of(session)
    found = meta.schema
    if found == 0:
        raise SchemaMissing("there is no Outlast schema in this database yet: run migrate() first")
    if found < SCHEMA:
        raise SchemaOutdated(f"the database has schema {found}, this version of Outlast needs {SCHEMA}: run migrate()")
    if meta.is_too_new():
        raise SchemaTooNew(found, SCHEMA)
    meta.check(partitions)
    missing = await _missing(session)
    if missing:
        raise SchemaOutdated(f"functions of this version are missing in the database ({missing[0]}): run migrate()")
    return meta


async def _missing(session: Session) -> list[str]:
    rows = await session.rows(statement("migrate:functions"), {"names": list(FUNCTIONS)})
    there = {row["name"] for row in rows}
    return [name for name in FUNCTIONS if name not in there]


async def _made(session: Session, script: str) -> None:
    try:
        await session.script(script)
    except Exception as error:
        if sqlstate(error) != DENIED:
            raise
        raise StoreError(
            f"this release needs a migration, and this role may not migrate ({error}): run `outlast migrate` as the "
            "owner, then roles.sql for the grants of this role (docs/postgres.md)"
        ) from error


async def is_current(session: Session, partitions: int | None) -> bool:
    """Whether there is nothing to do: then a role that may not change the schema can call migrate too."""
    meta = await schema_of(session)
    if meta.is_too_new():
        raise SchemaTooNew(meta.schema, SCHEMA)
    meta.check(partitions)
    return meta.schema >= SCHEMA and not await _missing(session)


async def migrate(session: Session, partitions: int | None) -> int:
    """Apply what is missing, inside the caller's transaction."""
    await session.rows(statement("migrate:lock"))
    meta = await schema_of(session)
    found = meta.schema
    if meta.is_too_new():
        raise SchemaTooNew(found, SCHEMA)
    meta.check(partitions)  # it may have been made while this one waited for the lock
    texts = [text for number, text in migrations().items() if number > found]
    missing = await _missing(session) if found else list(FUNCTIONS)
    texts += [FUNCTIONS[name] for name in missing]
    if any(name in FACE for name in missing) and found <= SCHEMA:
        texts.append(FACE)
    if texts:
        await _made(session, ";\n".join(texts))
    if texts and found <= SCHEMA:
        stored = {
            "schema": str(SCHEMA),
            "partitions": str(partitions or PARTITIONS_DEFAULT),
            "oldest": str(OLDEST),
        }
        await session.rows(statement("migrate:write"), stored)
    return SCHEMA
