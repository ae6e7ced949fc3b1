"""Every Python sample of the README and the guides is run, so that none of them is only said to work.

A page is one program: its blocks run from top to bottom in one process of its own, in an empty folder, so that
`App()` has a store of its own. A block with `await` outside of a function runs in an event loop, as in
`python -m asyncio`. A block behind the line `<!-- no test -->` is left out.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/workflows.md",
    "docs/waiting.md",
    "docs/structure.md",
    "docs/flows.md",
    "docs/asking.md",
    "docs/executions.md",
    "docs/workers.md",
    "docs/logging.md",
    "docs/values.md",
    "docs/configuration.md",
    "docs/sqlite.md",
    "docs/testing.md",
    "docs/compensation.md",
    "docs/transactions.md",
    "docs/streams.md",
    "docs/versions.md",
    "docs/moving.md",
    "docs/write-a-store.md",
]
BLOCK = re.compile(
    r"^(?P<mark><!-- no test -->\n\s*)?```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def program_of(text: str) -> str:
    """The page's Python blocks, each on the lines that it has in the page: a traceback names the line to look at."""
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        if not block["mark"]:
            first = text.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


def run_page(program: Path) -> None:
    """In the process of the page: each statement in turn, those that await in one event loop that they share."""
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    sys.modules["__main__"] = main
    with asyncio.Runner() as runner:
        for statement in ast.parse(program.read_text()).body:
            part = ast.Module([statement], type_ignores=[])
            code = compile(part, str(program), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, vars(main)))
            else:
                exec(code, vars(main))


def run(page: str, folder: Path) -> str:
    """What the page prints; its own name as a module, so that types that it defines can be found again."""
    program = folder / f"{Path(page).stem.replace('-', '_').lower()}.py"
    program.write_text(program_of((ROOT / page).read_text()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_sample_of_a_page_runs(page: str, tmp_path: Path):
    run(page, tmp_path)


@pytest.mark.slow
def test_the_quickstart_does_what_the_readme_says_of_it(tmp_path: Path):
    assert run("README.md", tmp_path).splitlines() == ["charging 42", "shipping 42", "parcel-42, paid by payment-42"]
    assert run("README.md", tmp_path).splitlines() == ["parcel-42, paid by payment-42"], "nothing is done twice"
    for command in ("ls", "show order-42", "doctor"):
        line = [sys.executable, "-m", "outlast", *command.split(), "--url", "sqlite:///shop.db"]
        shown = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert shown.returncode == 0, shown.stderr
        assert command == "doctor" or "order-42" in shown.stdout


@pytest.mark.slow
def test_the_harness_of_the_page_on_stores_passes_the_suite(tmp_path: Path):
    program = tmp_path / "test_my_store.py"
    program.write_text(program_of((ROOT / "docs/write-a-store.md").read_text()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_with_samples_is_run():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    with_samples = {page.relative_to(ROOT).as_posix() for page in pages if program_of(page.read_text()).strip()}
    assert with_samples <= set(PAGES), "add it to PAGES"


def test_blocks_keep_their_lines_and_marked_ones_are_left_out():
    text = "# Page\n\n```python\na = 1\n```\n<!-- no test -->\n```python\nb = 2\n```\n```\nc = 3\n```\n"
    assert program_of(text).splitlines()[:4] == ["", "", "", "a = 1"]
    assert "b" not in program_of(text)
    assert "c" not in program_of(text)


def test_a_sample_that_is_wrong_is_noticed(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False, 'wrong'\n```\n")
    with pytest.raises(AssertionError, match=r"line 4.*\n(.*\n){1,2}.*AssertionError: wrong"):
        run(str(page), tmp_path)


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
