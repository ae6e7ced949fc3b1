"""Files and functions that can be read in one sitting. What is longer wants splitting."""

from __future__ import annotations

import ast

from tests.tidy.tree import package_files, relative

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80


def too_long(source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{lines} lines, at most {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []


def long_functions(source: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{node.name}, line {node.lineno}: {lines} lines, at most {FUNCTION_LINES_MAX}")
    return found


def test_files_are_short():
    found = [
        f"{relative(path)}: {finding}"
        for path in package_files(".py", ".sql", ".lua")
        for finding in too_long(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_functions_are_short():
    found = [
        f"{relative(path)}: {finding}" for path in package_files(".py") for finding in long_functions(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_size_rules_notice():
    assert too_long("x\n" * (FILE_LINES_MAX + 1))
    assert not too_long("x\n" * FILE_LINES_MAX)
    assert long_functions("async def f():\n" + "    x\n" * FUNCTION_LINES_MAX)
    assert not long_functions("def f():\n" + "    x\n" * (FUNCTION_LINES_MAX - 1))
