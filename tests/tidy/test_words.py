"""One word for one thing: names use the glossary (docs/glossary.md), not the words that mean anything.

Calling `asyncio.create_task` or `queue.SimpleQueue` is fine; naming a thing of ours task or queue is not.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.tree import PACKAGE, package_files, relative, without_comments

BANNED = {
    "job": "execution",
    "task": "execution, step or attempt",
    "queue": "lane",
    "manager": "a word for what it does",
    "helper": "a word for what it does",
    "util": "a word for what it does",
    "utility": "a word for what it does",
}
PLURALS = {word: singular for singular in BANNED for word in (singular, singular + "s", re.sub("y$", "ies", singular))}
ALLOWED_FUNCTIONS = {"create_task", "get_task_factory"}  # methods that stand in for asyncio's own
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
TABLE = re.compile(r"\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?[\"\[`]?(\w+)", re.IGNORECASE)


def banned_in(name: str) -> list[str]:
    words = [word.lower() for word in WORD.findall(name)]
    return [f"{name!r}: write {BANNED[PLURALS[word]]}, not {word}" for word in words if word in PLURALS]


def banned_names(source: str) -> list[str]:
    """Classes, functions and type aliases of a module that use a banned noun."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in ALLOWED_FUNCTIONS:
                found += [f"line {node.lineno}: {finding}" for finding in banned_in(node.name)]
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias"):
            found += [f"line {node.lineno}: {finding}" for finding in banned_in(ast.unparse(node.target))]
    return found


def test_modules_use_the_glossary():
    found = {
        f"{relative(path)}: {finding}"
        for path in package_files(".py", ".sql", ".lua")
        for part in path.relative_to(PACKAGE).with_suffix("").parts
        for finding in banned_in(part)
    }
    assert not found, "\n".join(sorted(found))


def test_classes_and_functions_use_the_glossary():
    found = [
        f"{relative(path)}: {finding}" for path in package_files(".py") for finding in banned_names(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_tables_use_the_glossary():
    found = [
        f"{relative(path)}: table {finding}"
        for path in package_files(".sql")
        for table in TABLE.findall(without_comments(path.read_text()))
        for finding in banned_in(table)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "class LeaseManager: ...",
        "class HTTPJob: ...",
        "def enqueue_job(): ...",
        "async def _next_task(): ...",
        "class A:\n    def queue(self): ...",
        "def utils(): ...",
        "class WriterQueue: ...",
        "def test_helper(): ...",
    ],
)
def test_word_rule_notices(source: str):
    assert banned_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "import queue\nwork = queue.SimpleQueue()",
        "t = asyncio.create_task(renew())\ntasks = {t}",
        "def create_task(): ...",
        "def enqueue(): ...\nclass Multitasking: ...",
        "class Utilisation: ...",
    ],
)
def test_word_rule_leaves_alone(source: str):
    assert banned_names(source) == []
