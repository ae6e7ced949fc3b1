"""The mutants follow the code: each applies, and the tests that it names exist. `make check-mutants` tries them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.mutants.catalogue import CONTROL, MUTANTS, PACKAGE, ROOT, DoesNotApply, Mutant


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """Every test of the tree, and of the conformance suite in the package: `test_…`, or `TestClass::test_…`."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / PACKAGE / "testing/conformance").glob("*.py")]
    return {name for path in files for name in _tests_in(ast.parse(path.read_text()).body)}


def _tests_in(body: list[ast.stmt]) -> Iterator[str]:
    for found in body:
        if isinstance(found, ast.ClassDef):
            name = found.name
            name = f"Test{name.removesuffix('Conformance')}" if name.endswith("Conformance") else name
            yield from (f"{name}::{test}" for test in _tests_in(found.body))
        elif isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and found.name.startswith("test_"):
            yield found.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_and_names_tests_that_exist(mutant: Mutant, defined: set[str]):
    text = (ROOT / PACKAGE / mutant.file).read_text()
    assert mutant.applied_to(text) != text
    assert re.fullmatch(r"(rule|settlement) \d+", mutant.breaks)
    assert mutant.noticed_by
    for test in (*mutant.noticed_by, *CONTROL):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert name.partition("[")[0] in defined, test


def test_mutants_have_names_of_their_own():
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("text", ["", "x = 1\nx = 1\n", "def x = 1\n"], ids=["not there", "there twice", "not Python"])
def test_mutant_that_does_not_apply_says_so(text: str):
    mutant = Mutant(
        name="m", breaks="rule 1", what="", file="limits.py", old="x = 1\n", new="x = 2\n", noticed_by=("t",)
    )
    assert mutant.applied_to("x = 1\n") == "x = 2\n"
    with pytest.raises(DoesNotApply):
        mutant.applied_to(text)
