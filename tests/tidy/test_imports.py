"""The core is pure, and nobody but the composition root knows a concrete store.

import-linter (`make check`) follows chains between modules; these tests see what it can't: calls, names
built for `importlib`, and stores that its configuration forgot.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGE, ROOT, absolute, imports, module_name, package_files, relative, strings

PURE_ROOMS = ("model", "machine")

IMPURE_MODULES = frozenset(
    """
    aiohttp anyio apsw asyncio asyncpg concurrent contextvars ctypes fcntl glob hiredis http httpx importlib
    io logging mmap multiprocessing opentelemetry os pathlib pickle platform prometheus_client psycopg queue
    random redis sched secrets select selectors shelve shutil signal socket sqlite3 ssl structlog subprocess
    sys tempfile threading time trio urllib uuid_utils uvloop valkey warnings weakref
    """.split()
)
IMPURE_ATTRIBUTES = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "uuid7", "getnode"})
IMPURE_CALLS = frozenset({"open", "print", "input", "eval", "exec", "__import__", "breakpoint", "id", "hash"})
# `now` is also the name of a parameter and of a field there; only calls on these are a clock.
CLOCKS = frozenset({"datetime", "date", "uuid"})


def impurities(source: str) -> list[str]:
    """What a module of `model/` or `machine/` may not do: read a clock, draw a random number, do I/O, log."""
    tree = ast.parse(source)
    if any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body):
        tree = without_main(tree)
    found = [f"line {line}: imports {name}" for line, name in imports(tree) if name.split(".")[0] in IMPURE_MODULES]
    for line, name in imports(tree):
        if name.rpartition(".")[2] in IMPURE_ATTRIBUTES and name.split(".")[0] in CLOCKS:
            found.append(f"line {line}: imports {name}")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                found.append(f"line {node.lineno}: calls {name}()")
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=attribute) if (
                owner in CLOCKS and attribute in IMPURE_ATTRIBUTES
            ):
                found.append(f"line {node.lineno}: uses {owner}.{attribute}")
            case ast.AsyncFunctionDef(name=name):
                found.append(f"line {node.lineno}: async def {name}")
            case ast.Await():
                found.append(f"line {node.lineno}: await")
            case ast.Global():
                found.append(f"line {node.lineno}: global")
            case _:
                pass
    return sorted(set(found))


def without_main(tree: ast.Module) -> ast.Module:
    """A module that is also a command (`python -m outlast.machine.diagram`) may do I/O, in `main` alone.

    Left out: `main`, its call, and the imports that nothing but `main` uses.
    """
    rest = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name == "main")
        and not (isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'")
    ]
    used = {node.id for statement in rest for node in ast.walk(statement) if isinstance(node, ast.Name)}
    body: list[ast.stmt] = []
    for node in rest:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [a for a in node.names if (a.asname or a.name.partition(".")[0]) in used]
            if not node.names:
                continue
        body.append(node)
    return ast.Module(body=body, type_ignores=[])


def foreign_stores(source: str, module: str, stores: frozenset[str], *, is_package: bool = False) -> list[str]:
    """Concrete stores that `module` names, by import or for `importlib`, without being allowed to."""
    if module == "outlast.app":
        return []
    own = next((store for store in stores if module == store or module.startswith(store + ".")), None)
    tree = ast.parse(source)
    named = [(line, absolute(name, module, is_package=is_package)) for line, name in imports(tree)]
    named += [(line, text) for line, text in strings(tree) if text.startswith("outlast.store.")]
    return sorted(
        {
            f"line {line}: {module} names {store}"
            for line, name in named
            for store in stores
            if store != own and (name == store or name.startswith((store + ".", store + ":")))
        }
    )


def concrete_stores() -> frozenset[str]:
    """Every package beside `port` under `store/` is a store."""
    folder = PACKAGE / "store"
    if not folder.is_dir():
        return frozenset()
    return frozenset(f"outlast.store.{p.name}" for p in folder.iterdir() if (p / "__init__.py").exists())


def pure_files() -> list[Path]:
    return [p for p in package_files(".py") if p.relative_to(PACKAGE).parts[0] in PURE_ROOMS]


def test_model_and_machine_are_pure():
    found: list[str] = []
    for path in pure_files():
        found += [f"{relative(path)}: {finding}" for finding in impurities(path.read_text())]
    assert not found, "\n".join(found)


def test_only_app_names_a_concrete_store():
    stores = concrete_stores()
    found: list[str] = []
    for path in package_files(".py"):
        is_package = path.name == "__init__.py"
        for finding in foreign_stores(path.read_text(), module_name(path), stores, is_package=is_package):
            found.append(f"{relative(path)}: {finding}")
    assert not found, "\n".join(found)


def test_import_rules_name_every_store():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["id"]: contract for contract in config["contracts"]}
    behind = {name.replace("*", "store") for name in contracts["stores-behind-app"]["forbidden_modules"]}
    apart = {name.strip(" ()") for name in contracts["stores-apart"]["layers"][0].split("|")}
    assert concrete_stores() - behind == set(), "pyproject.toml: stores-behind-app does not name every store"
    assert concrete_stores() - apart == set(), "pyproject.toml: stores-apart does not name every store"


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import asyncio.events as e",
        "from time import monotonic",
        "def f():\n    import random",
        "import logging\nlog = logging.getLogger()",
        "import apsw",
        "from datetime import datetime\nt = datetime.now()",
        "import datetime\nt = datetime.datetime.now(datetime.UTC)",
        "import datetime\nclock = datetime.date.today",
        "from uuid import uuid4",
        "import uuid\nx = uuid.uuid4()",
        "import os.path",
        "open('x')",
        "async def decide(): ...",
    ],
)
def test_purity_rule_notices(source: str):
    assert impurities(source)


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime, timedelta\nEPOCH = datetime(1970, 1, 1, tzinfo=UTC)",
        "def decide(view, fact, now):\n    return now(3) if fact.now else view.now()",
        "from outlast.machine.changes import At, Now\nx = Now(+5)",
        "import hashlib, enum, dataclasses, math, re",
    ],
)
def test_purity_rule_leaves_alone(source: str):
    assert impurities(source) == []


def test_purity_rule_allows_io_only_in_main():
    command = "def main():\n    print(sys.argv)\nif __name__ == '__main__':\n    main()\n"
    assert impurities("import sys\n" + command) == []
    assert impurities("import sys\nx = sys.argv\n" + command)
    assert impurities("import time\ndef f():\n    return time.time()\n" + command)
    assert impurities("import sys\ndef main():\n    print(sys.argv)")


@pytest.mark.parametrize(
    "module, source",
    [
        ("outlast.runtime.worker", "from outlast.store.sqlite import SqliteStore"),
        ("outlast.runtime.worker", "from outlast.store import sqlite"),
        ("outlast.runtime.worker", "from ..store.sqlite.store import SqliteStore"),
        ("outlast.cli.doctor", "importlib.import_module('outlast.store.sqlite.store')"),
        ("outlast.store.port", "from .sqlite import x"),
        ("outlast.store.postgres.store", "from ..sqlite import rows"),
    ],
)
def test_store_rule_notices(module: str, source: str):
    stores = frozenset({"outlast.store.sqlite", "outlast.store.postgres"})
    assert foreign_stores(source, module, stores)


@pytest.mark.parametrize(
    "module, source",
    [
        ("outlast.app", "from outlast.store.sqlite import SqliteStore"),
        ("outlast.runtime.worker", "from outlast.store.port import Store"),
        ("outlast.store.sqlite.store", "from .rows import encode\nfrom outlast.store.sqlite import rows"),
    ],
)
def test_store_rule_leaves_alone(module: str, source: str):
    stores = frozenset({"outlast.store.sqlite", "outlast.store.postgres"})
    assert foreign_stores(source, module, stores) == []
