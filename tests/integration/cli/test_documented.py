"""Every command and every option is in docs/cli.md, with help and examples of its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.cli.main import COMMANDS, EXAMPLES
from tests.integration.cli.conftest import Outlast

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
EVERY = [command for commands in COMMANDS.values() for command in commands]


def section(command: Callable[..., Any]) -> str:
    found = re.search(rf"^### `outlast {command.__name__}`$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section for {command.__name__}"
    return found[1]


def options(command: Callable[..., Any]) -> list[str]:
    """As they are written on the line; what is hidden from --help is not part of the surface."""
    found: list[str] = []
    for name, parameter in inspect.signature(command).parameters.items():
        text = str(parameter.annotation)
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY and name != "context" and "show=False" not in text:
            negative = re.search(r"negative=.(--[\w-]+)", text)
            found.append(negative[1] if negative else f"--{name.rstrip('_').replace('_', '-')}")
    return found


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command.__name__)
def test_a_command_and_its_options_are_documented(command: Callable[..., Any]):
    text = section(command)
    missing = [option for option in options(command) if f"`{option}`" not in text]
    assert not missing, f"docs/cli.md, {command.__name__}: {missing}"
    named = set(re.findall(r"^\| `(--[\w-]+)`", text, re.MULTILINE))
    assert named == set(options(command)), "the page names an option that does not exist"


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command.__name__)
def test_a_command_has_help_with_examples(command: Callable[..., Any]):
    text = inspect.getdoc(command) or ""
    assert "Examples:\n" in text
    assert f"outlast {command.__name__}" in text.partition("Examples:")[2]


def test_help_is_wrapped_by_the_terminal_and_not_by_the_source(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = outlast("replay", "--help").out
    assert "and so is one whose version the app does not have, or whose replay fails. Exits 1 if" in told


def test_the_page_names_no_command_that_does_not_exist():
    named = re.findall(r"^### `outlast (\w+)`$", PAGE, re.MULTILINE)
    assert named == [command.__name__ for command in EVERY], "in the order of --help"
    assert set(re.findall(r"^  outlast (\w+)", EXAMPLES, re.MULTILINE)) <= set(named)
