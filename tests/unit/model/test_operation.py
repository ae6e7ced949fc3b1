"""The table of operations has every word that a journal may hold, and nobody else keeps a list of them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.machine.replay import BESIDE
from outlast.model import journal
from outlast.model.operation import CALLED, OPERATIONS, UNBIDDEN
from outlast.runtime import operations
from outlast.runtime.attempts.operation import Kind
from tests.tidy.tree import PACKAGE, package_files, relative

WORDS = {
    name
    for name in dir(journal)
    if name.isupper() and getattr(journal, name) in OPERATIONS  # as `STEP`
}
TABLE = PACKAGE / "model" / "operation.py"


def kinds(of: type[Kind] = Kind) -> Iterator[type[Kind]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_kind_of_operation_has_a_row():
    for module in pkgutil.iter_modules(operations.__path__):
        importlib.import_module(f"{operations.__name__}.{module.name}")
    words = {kind.OP for kind in kinds() if "OP" in kind.__dict__}
    assert len(words) >= 15
    assert words <= set(OPERATIONS)
    recorded_by_the_engine = set(OPERATIONS) - words
    assert recorded_by_the_engine == set(OPERATIONS) - CALLED | UNBIDDEN


def test_every_word_of_the_journal_has_a_row():
    tree = ast.parse(Path(journal.__file__).read_text())
    outcomes = {journal.SUCCEEDED, journal.FAILED, journal.CANCELLED, journal.BEGAN}
    values = {
        value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for value in ast.walk(node.value)
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and not value.value.endswith(".")
    }
    assert values - outcomes <= set(OPERATIONS)


def test_what_stands_beside_a_call_is_no_operation_of_its_own():
    beside = {word for word, operation in OPERATIONS.items() if operation.beside}
    assert beside
    assert not beside & CALLED
    assert all("{name}" in OPERATIONS[word].title for word in beside), f"they are named as their call, without {BESIDE}"


def lists_of_words(source: str) -> list[str]:
    """Sets, lists, tuples and tables of two or more words of operations, and what compares an `op` with one."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            elements = node.elts
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            asked = isinstance(node.left, ast.Attribute) and node.left.attr in ("op", "OP")
            if asked and isinstance(node.comparators[0], ast.Set | ast.List | ast.Tuple):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
            continue
        elif isinstance(node, ast.Dict):
            elements = [key for key in node.keys if key is not None]
        else:
            continue
        if isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        words = [one for one in elements if isinstance(one, ast.Name) and one.id in WORDS]
        if len(words) > 1:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_nobody_else_keeps_a_list_of_operations():
    found = [
        f"{relative(path)}: {finding}"
        for path in package_files(".py")
        if path != TABLE and "outlast.model.journal" in (source := path.read_text())
        for finding in lists_of_words(source)
    ]
    assert not found, "\n".join(["ask model/operation.py instead:", *found])


@pytest.mark.parametrize(
    "source",
    [
        "WAITED = frozenset({SLEEP, TIMER})",
        "if entry.op in (RETRY, WAIT): ...",
        "if kind.OP in ('send', 'flow'): ...",
        "FACES = {STEP: 'step', SLEEP: 'sleep'}",
    ],
)
def test_a_list_of_operations_is_found(source: str):
    assert lists_of_words(source)


@pytest.mark.parametrize("source", ["STEP, RETRY = 'step', 'retry'", "entry.op == CANCEL", "(STEP, SUCCEEDED)"])
def test_what_is_no_list_of_operations_is_left_alone(source: str):
    assert not lists_of_words(source)
