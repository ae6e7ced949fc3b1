"""Every change of state is decided in `machine/`: nobody else builds a `Changes`, or rewrites one.

The testing kit does: it plays those who break the rules.
"""

from __future__ import annotations

import ast

from tests.tidy.tree import PACKAGE, package_files, relative

BUILDERS = ("machine", "testing")
PARTS = ("anchors", "guards", "writes", "rings")


def built(source: str) -> list[int]:
    """The lines on which a `Changes` is made, or another made of it (`structs.replace` of its guards or writes)."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return sorted(call.lineno for call in calls if _makes_changes(call))


def _makes_changes(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    return name == "Changes" or (name == "replace" and any(word.arg in PARTS for word in call.keywords))


def test_changes_are_built_in_the_machine():
    found = [
        f"{relative(path)}:{line}: builds a Changes: decide it in machine/"
        for path in package_files(".py")
        if path.relative_to(PACKAGE).parts[0] not in BUILDERS
        for line in built(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_what_builds_changes_is_seen():
    assert built("x = Changes(id='1', partition=0, anchors=())") == [1]
    assert built("def f() -> Changes:\n    return changes.Changes(id='1')") == [2]
    assert built("structs.replace(answer, guards=(guard, *answer.guards))") == [1]
    assert built("structs.replace(fact, worker=None)") == []
    assert built("answer: Changes = decide(view, fact, now)") == []
