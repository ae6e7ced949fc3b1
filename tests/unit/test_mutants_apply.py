"""The mutants follow the code: each applies, and the tests that it names exist. `make check-mutants` tries them."""

from __future__ import annotations

import re

import pytest

from tests.mutants.catalogue import CONTROL, MUTANTS, PACKAGE, ROOT, DoesNotApply, Mutant


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """Every test of the tree, and of the conformance suite in the package."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / PACKAGE / "testing/conformance").glob("*.py")]
    return {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_and_names_tests_that_exist(mutant: Mutant, defined: set[str]):
    text = (ROOT / PACKAGE / mutant.file).read_text()
    assert mutant.applied_to(text) != text
    assert re.fullmatch(r"(rule|settlement) \d+", mutant.breaks)
    assert mutant.noticed_by
    for test in (*mutant.noticed_by, *CONTROL):
        file, *_, name = test.split("::")
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
