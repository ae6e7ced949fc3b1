"""The pytest plugin, in a user's own project: one option, and a fixture with their app in a harness."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from outlast.testing.plugin import app_named

SHOP = """
import asyncio
from outlast import App

app = App("sqlite:///real.db")

@app.step
async def charge(cents: int) -> str:
    return f"paid {cents}"

@app.workflow
async def checkout(cents: int) -> str:
    return await charge(cents)
"""

TESTS = """
import pytest
from shop import app, charge, checkout

@pytest.mark.asyncio
async def test_checkout(outlast_app):
    assert outlast_app.app is app
    handle = await checkout.options(delay="90d").start(5)
    await outlast_app.clock.advance("89d")
    assert (await handle.info()).status == "blocked"
    await outlast_app.clock.advance("1d")
    assert await handle.result() == "paid 5"

@pytest.mark.asyncio
async def test_each_test_has_a_store_of_its_own(outlast_app):
    assert await app.count() == 0
    outlast_app.stub(charge, "free")
    assert await checkout(5) == "free"
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    installed = any(point.value == "outlast.testing.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "outlast.testing.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    return tmp_path


def test_the_fixture_opens_the_configured_app(project: Path):
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\noutlast_app = shop:app\n")
    done = run_pytest(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert not (project / "real.db").exists()


MARKED = """
import pytest
from shop import checkout

pytestmark = [pytest.mark.asyncio, pytest.mark.outlast_app(lanes=["default", "mail"], auto_advance=False)]

@pytest.mark.outlast_app(capabilities=["gpu"], auto_advance=True)
async def test_it_takes_what_the_harness_takes(outlast_app):
    assert outlast_app.auto_advance
    assert await checkout.options(lane="mail", requires={"gpu"})(5) == "paid 5"

@pytest.mark.outlast_app(colour="red")
async def test_and_nothing_else(outlast_app):
    ...
"""


def test_a_marker_has_the_settings_of_the_harness(project: Path):
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\noutlast_app = shop:app\n")
    (project / "test_shop.py").write_text(MARKED)
    done = run_pytest(project, "--strict-markers")
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "unknown setting 'colour' of a worker" in done.stdout


def test_the_command_line_names_it_too(project: Path):
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    assert "2 passed" in run_pytest(project, "--outlast-app", "shop:app").stdout


def test_a_project_that_names_none_is_told_what_to_write(project: Path):
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = run_pytest(project)
    assert done.returncode != 0
    assert 'must be module:name, such as "shop:app"' in done.stdout


@pytest.mark.parametrize(
    "target, says",
    [
        ("", 'must be module:name, such as "shop:app"'),
        ("accounts", 'must be module:name, such as "shop:app"'),
        ("acounts:app", "there is no module 'acounts'"),
        ("examples.acounts:app", "there is no module 'examples.acounts'"),
        ("examples.accounts:transfer", "examples.accounts has no App of the name 'transfer'"),
    ],
)
def test_a_wrong_name_says_what_to_write(target: str, says: str):
    with pytest.raises(pytest.UsageError, match=re.escape(says)):
        app_named(target)
