"""Break the engine's rules one by one, and see that the tests notice: `make check-mutants`.

Each mutant of `catalogue.py` is applied to a copy of the code, and the tests that it names are run on the copy. It is
caught if every one of them fails, and the control still passes: code under which nothing works proves nothing. A mutant
that survives is a missing test; one that no longer applies must follow the code. Both end this with exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from catalogue import CONTROL, MUTANTS, PACKAGE, ROOT, DoesNotApply, Mutant  # beside this file
from outcomes import REPORT

PROCESSES = 2
TEST_TIMEOUT_S = 30
RUN_TIMEOUT_S = 180
COPIED = ("src", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".cache", ".hypothesis")


# ---- copies of the code -------------------------------------------------------------------------------------------


def copy_of_the_code(folder: Path) -> Path:
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def copy_with(mutant: Mutant, green: Path, folder: Path) -> Path:
    """The green copy with its compiled files (times are kept, so they are valid), but for the one file's."""
    shutil.copytree(green, folder, ignore=shutil.ignore_patterns("tmp*", "*.json"))
    path = folder / PACKAGE / mutant.file
    path.write_text(mutant.applied_to(path.read_text()))
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
    return folder


# ---- running tests ------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What pytest said, and what its report says."""

    exit_code: int
    output: str
    seconds: float
    imported: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, test: str) -> list[str]:
        """The outcomes of a test: one for each of its parameters."""
        return [o["outcome"] for node, o in self.outcomes.items() if _is(node, test)]

    def why(self, tests: Sequence[str]) -> list[str]:
        return [
            f"{node.rpartition('::')[2]}: {o['why']}"
            for node, o in self.outcomes.items()
            if o["outcome"] != "passed" and any(_is(node, test) for test in tests)
        ]


def _is(node: str, test: str) -> bool:
    return node == test or node.startswith(f"{test}[")


def run_tests(copy: Path, tests: Sequence[str], part: str = "") -> Ran:
    report = copy / f"report{part}.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short"),
        *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "tests.mutants.outcomes"),
        *(f"--rootdir={copy}", f"--basetemp={copy / f'tmp{part}'}", f"--timeout={TEST_TIMEOUT_S}"),
        *tests,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OUTLAST_"))}
    env |= {"OUTLAST_MUTANT": "1", "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", REPORT: str(report)}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # a quarter of the time, for plugins that are not used here
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.output.decode() if isinstance(error.output, bytes) else error.output
        return Ran(-1, f"no end after {RUN_TIMEOUT_S} s\n{output or ''}", time.monotonic() - began)
    ran = Ran(done.returncode, done.stdout, time.monotonic() - began)
    if report.exists():
        said = json.loads(report.read_text())
        ran.imported, ran.outcomes = said["imported"], said["outcomes"]
    return ran


def wrong_code(ran: Ran, copy: Path, mutant: Mutant | None = None) -> str | None:
    """Whether anything but the copy was tested: an installed package must not win."""
    source = copy / "src"
    elsewhere = [file for file in ran.imported.values() if not Path(file).is_relative_to(source)]
    if "outlast" not in ran.imported or elsewhere:
        return f"the copy was not tested, but {elsewhere or 'nothing'}"
    if mutant is not None and mutant.module is not None:
        expected = str(copy / PACKAGE / mutant.file)
        if ran.imported.get(mutant.module) != expected:
            return f"its tests do not import {mutant.module}"
    return None


# ---- the two halves: green first, then each mutant ----------------------------------------------------------------


def not_green(green: Path, mutants: Sequence[Mutant]) -> str | None:
    """Every test that a mutant names passes on the code as it is, or this says which does not."""
    tests = sorted({*CONTROL, *(test for mutant in mutants for test in mutant.noticed_by)})
    halves = [half for half in (tests[0::PROCESSES], tests[1::PROCESSES]) if half]
    with ThreadPoolExecutor(PROCESSES) as pool:
        all_ran = list(pool.map(lambda n: run_tests(green, halves[n], str(n)), range(len(halves))))
    for ran, half in zip(all_ran, halves, strict=True):
        wrong = wrong_code(ran, green)
        if ran.exit_code != 0:
            return f"pytest ended with {ran.exit_code}:\n{ran.output[-4_000:]}"
        if wrong:
            return wrong
        for test in half:
            if set(ran.of(test)) != {"passed"}:
                return f"{test}: {ran.of(test) or 'not run'}"
    return None


@dataclass
class Result:
    mutant: Mutant
    seconds: float
    caught_by: list[str]
    complaint: str | None
    why: list[str]


def try_one(mutant: Mutant, green: Path, folder: Path) -> Result:
    copy = copy_with(mutant, green, folder / mutant.name)
    try:
        ran = run_tests(copy, [*mutant.noticed_by, *CONTROL])
        caught_by = [test for test in mutant.noticed_by if "failed" in ran.of(test)]
        complaint = _complaint(mutant, copy, ran, caught_by)
        return Result(mutant, ran.seconds, caught_by, complaint, ran.why([*mutant.noticed_by, *CONTROL]))
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _complaint(mutant: Mutant, copy: Path, ran: Ran, caught_by: list[str]) -> str | None:
    if ran.exit_code not in (0, 1):
        return f"pytest ended with {ran.exit_code}:\n{ran.output[-2_000:]}"
    wrong = wrong_code(ran, copy, mutant)
    if wrong:
        return wrong
    if ran.exit_code == 0 or not caught_by:
        return "SURVIVED"
    unnoticed = [test for test in mutant.noticed_by if test not in caught_by]
    if unnoticed:
        return "not noticed by " + ", ".join(unnoticed)
    if any(set(ran.of(test)) != {"passed"} for test in CONTROL):
        return "the control fails too: it breaks more than its rule"
    return None


# ---- what is printed ----------------------------------------------------------------------------------------------


def short(test: str) -> str:
    return test.rpartition("::")[2]


def print_line(result: Result, *, why: bool) -> None:
    caught = ", ".join(short(test) for test in result.caught_by) or "nothing"
    print(f"{result.mutant.name:<34} {result.mutant.breaks:<14} {result.seconds:5.1f}  {caught}", flush=True)
    if why:
        for line in result.why:
            print(textwrap.indent(line[:200], " " * 8))
    if result.complaint:
        print(textwrap.indent(f"!! {result.complaint}", "    "), flush=True)


def listed(mutants: Sequence[Mutant]) -> None:
    for mutant in mutants:
        print(f"{mutant.name:<34} {mutant.breaks:<14} {mutant.file}: {mutant.what}")
        for test in mutant.noticed_by:
            print(f"    {test}")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the mutants and the tests that must notice them")
    parser.add_argument("--only", metavar="NAME", action="append", help="try this mutant; may be repeated")
    parser.add_argument("--why", action="store_true", help="show how each test failed")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    names = [mutant.name for mutant in MUTANTS]
    unknown = [name for name in options.only or () if name not in names]
    if unknown:
        print(f"no such mutant: {', '.join(unknown)} (see --list)")
        return 2
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        listed(mutants)
        return 0
    rotten: list[str] = []
    for mutant in MUTANTS:
        try:
            mutant.applied_to((ROOT / PACKAGE / mutant.file).read_text())
        except (DoesNotApply, OSError) as error:
            rotten.append(f"{mutant.name}: {error}")
    if rotten:
        print("These mutants do not apply any more; they must follow the code:", *rotten, sep="\n  ")
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlast-mutants-") as name:
        folder = Path(name).resolve()
        green = copy_of_the_code(folder / "green")
        complaint = not_green(green, mutants)
        if complaint:
            print(f"The tests do not pass without any mutant: {complaint}")
            return 1
        print(f"Green without a mutant ({time.monotonic() - began:.0f} s).\n")
        print(f"{'mutant':<34} {'breaks':<14} {'s':>5}  caught by")
        failed: list[str] = []
        with ThreadPoolExecutor(PROCESSES) as pool:
            for result in pool.map(lambda mutant: try_one(mutant, green, folder), mutants):
                print_line(result, why=options.why)
                if result.complaint:
                    failed.append(result.mutant.name)
    caught = len(mutants) - len(failed)
    print(f"\n{caught} of {len(mutants)} mutants caught, in {time.monotonic() - began:.0f} s.")
    if failed:
        print(f"Not caught as they must be: {', '.join(failed)}. A survivor is a missing test: write it.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
