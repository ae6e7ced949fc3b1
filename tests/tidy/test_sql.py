"""SQL and Lua live in their own files, and know no state of the machine.

Only claim reads and writes statuses natively; a partial index may name one so that claim stays short.
Everywhere else a status is a value that the machine decided and that the store passes through.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.tidy.tree import PACKAGE, package_files, relative, strings, without_comments

STATUSES = "blocked ready active suspended succeeded failed cancelled expired skipped".split()

QUOTED_STATUS = re.compile(rf"""(?P<quote>['"])(?P<status>{"|".join(STATUSES)})(?P=quote)""", re.IGNORECASE)
INDEX = re.compile(r"\s*create\s+(unique\s+)?index\b", re.IGNORECASE)

# In capitals anywhere in a string, or in any case where it can only be a statement.
SQL = re.compile(
    r"\b(?:SELECT|UPDATE)\s|\bINSERT\s+(?:OR\s+\w+\s+)?INTO\b|\bREPLACE\s+INTO\b|\bDELETE\s+FROM\b"
    r"|\b(?:CREATE|ALTER|DROP)\s+(?:\w+\s+)?(?:TABLE|INDEX|VIEW|TRIGGER)\b|\bWITH\s+\w+\s+AS\s*\("
    r"|(?i:^\s*(?:select\s.+\sfrom\s|insert\s+(?:or\s+\w+\s+)?into\s|update\s+\S+\s+set\s|delete\s+from\s))",
    re.DOTALL,
)
LUA = re.compile(r"\bredis\.p?call\s*\(")


def statuses_named(path: str, text: str) -> list[str]:
    """Quoted statuses in a SQL or Lua file where none belongs. `path` is relative to `store/`."""
    where = PurePosixPath(path)
    if where.name.startswith("claim") and "migrations" not in where.parts:
        return []
    text = without_comments(text, lua=where.suffix == ".lua")
    found: list[str] = []
    start = 0
    for statement in text.split(";") if where.suffix == ".sql" else [text]:
        if not ("migrations" in where.parts and INDEX.match(statement)):
            for match in QUOTED_STATUS.finditer(statement):
                line = text.count("\n", 0, start + match.start()) + 1
                found.append(f"line {line}: names status {match['status']}")
        start += len(statement) + 1
    return found


def sql_in_python(source: str) -> list[str]:
    """SQL or Lua written in a Python string. PRAGMA, BEGIN, COMMIT, ROLLBACK and SAVEPOINT are fine."""
    return sorted(
        {
            f"line {line}: {what} in a string: {' '.join(text.split())[:60]!r}"
            for line, text in strings(ast.parse(source))
            for what, pattern in (("SQL", SQL), ("Lua", LUA))
            if pattern.search(text)
        }
    )


def misplaced(path: str) -> bool:
    """Whether a .sql or .lua file, relative to the package, is outside of a store's rooms for it."""
    parts = PurePosixPath(path).parts
    rooms = {".sql": {"queries", "migrations"}, ".lua": {"scripts"}}[PurePosixPath(path).suffix]
    return not (len(parts) >= 4 and parts[0] == "store" and parts[2] in rooms)


def test_sql_and_lua_name_no_status_outside_of_claim_and_partial_indexes():
    found = [
        f"{relative(path)}: {finding}"
        for path in package_files(".sql", ".lua")
        for finding in statuses_named(path.relative_to(PACKAGE).as_posix(), path.read_text())
    ]
    assert not found, "\n".join(found)


def test_no_sql_in_python():
    found = [
        f"{relative(path)}: {finding}" for path in package_files(".py") for finding in sql_in_python(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_sql_and_lua_files_are_in_their_rooms():
    found = [relative(p) for p in package_files(".sql", ".lua") if misplaced(p.relative_to(PACKAGE).as_posix())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "path, text",
    [
        ("store/sqlite/queries/due.sql", "SELECT id FROM execution WHERE status = 'ready';"),
        ("store/sqlite/queries/due.sql", "SELECT 'a;b'; SELECT 1 WHERE s IN (\n'blocked')"),
        ("store/sqlite/migrations/0001.sql", "CREATE TABLE e (status TEXT CHECK (status IN ('ready')));"),
        ("store/sqlite/migrations/0001_claim.sql", "CREATE TABLE e (status TEXT DEFAULT 'ready');"),
        ("store/sqlite/migrations/claim.sql", "CREATE TABLE e (status TEXT DEFAULT 'ready');"),
        ("store/valkey/scripts/renew.lua", 'if status == "active" then return 1 end'),
    ],
)
def test_status_rule_notices(path: str, text: str):
    assert statuses_named(path, text)


@pytest.mark.parametrize(
    "path, text",
    [
        ("store/sqlite/queries/claim.sql", "UPDATE execution SET status = 'active' WHERE status = 'ready'"),
        ("store/sqlite/queries/claim_sessions.sql", "SELECT 1 WHERE status = 'ready'"),
        ("store/valkey/scripts/claim.lua", "local s = 'ready'"),
        (
            "store/sqlite/migrations/0001.sql",
            "-- the queue\nCREATE TABLE e (s TEXT);\nCREATE UNIQUE INDEX r ON e (s) WHERE s = 'ready';",
        ),
        ("store/sqlite/queries/due.sql", "-- not 'ready'\n/* nor 'active' */ SELECT already_active FROM e"),
        ("store/valkey/scripts/renew.lua", '--[[ "active"\n ]] return 1 -- "ready"'),
    ],
)
def test_status_rule_leaves_alone(path: str, text: str):
    assert statuses_named(path, text) == []


def test_status_rule_counts_lines():
    assert statuses_named("store/a/queries/b.sql", "SELECT 1;\n\nSELECT 'ready'") == ["line 3: names status ready"]


@pytest.mark.parametrize(
    "source",
    [
        'run("SELECT 1")',
        'run(f"SELECT {columns} FROM execution")',
        'run("""\n  insert into lease values (1)""")',
        'run("INSERT OR IGNORE INTO lease VALUES (1)")',
        'run(b"DELETE FROM lease")',
        'run("UPDATE lease SET epoch = 1")',
        'run("select id from lease")',
        'run("CREATE TABLE x (y)")',
        "script = \"return redis.call('GET', KEYS[1])\"",
    ],
)
def test_sql_string_rule_notices(source: str):
    assert sql_in_python(source)


@pytest.mark.parametrize(
    "source",
    [
        'run("PRAGMA journal_mode = WAL"); run("BEGIN IMMEDIATE"); run("COMMIT"); run("ROLLBACK TO sp")',
        '"""SELECT is explained in a docstring."""',
        'raise StoreError("cannot update the lease: select another lane")',
        'run("SAVEPOINT one"); run("RELEASE one")',
    ],
)
def test_sql_string_rule_leaves_alone(source: str):
    assert sql_in_python(source) == []


def test_room_rule_notices():
    assert misplaced("store/sqlite/claim.sql")
    assert misplaced("runtime/queries/claim.sql")
    assert misplaced("store/sqlite/scripts/claim.sql")
    assert not misplaced("store/sqlite/queries/claim.sql")
    assert not misplaced("store/valkey/scripts/claim.lua")
