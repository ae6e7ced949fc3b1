"""The pytest plugin: the fixture `outlast_app`, a harness around the app that `outlast_app = "shop:app"` names.

    # pyproject.toml                          # or: pytest --outlast-app shop:app
    [tool.pytest.ini_options]
    outlast_app = "shop:app"

    async def test_checkout(outlast_app):
        assert await checkout(order) == "paid"
        await outlast_app.clock.advance("90d")

    @pytest.mark.outlast_app(lanes=["default", "mail"])    # what `harness` takes, for a test, a class or a module

An async test needs pytest-asyncio or anyio, as ever.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outlast.app import App
    from outlast.testing.harness import Harness

OPTION = "outlast_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    described = "the app that the fixture outlast_app opens, as module:name, such as shop:app"
    parser.addini(OPTION, help=described, default="")
    parser.getgroup("outlast").addoption("--outlast-app", dest=OPTION, default=None, help=described)


def pytest_configure(config: pytest.Config) -> None:
    described = "what the harness of the fixture outlast_app takes: lanes, capabilities, start, auto_advance, …"
    config.addinivalue_line("markers", f"{OPTION}(**settings): {described}")


def app_named(target: str) -> App:
    """The app that `module:name` names."""
    from outlast.app import App  # not before a test wants it: every run of pytest loads this file

    module, colon, name = target.partition(":")
    if not module or not colon or not name:
        raise pytest.UsageError(
            f'outlast_app must be module:name, such as "shop:app", not {target!r}: '
            "set it in pytest's configuration, or give --outlast-app"
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise pytest.UsageError(f"outlast_app = {target!r}: there is no module {error.name!r} on the path") from error
    if not isinstance(found, App):
        raise pytest.UsageError(f"outlast_app = {target!r}: {module} has no App of the name {name!r}")
    return found


def _target(config: pytest.Config) -> str:
    return str(config.getoption(OPTION, default=None) or config.getini(OPTION) or "")


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those of the test itself count more than those of its class, and these more than those of the module."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(OPTION))):
        if marker.args:
            raise pytest.UsageError(f"the marker {OPTION} takes settings by name, such as lanes=[…], not {marker.args}")
        settings.update(marker.kwargs)
    return settings


async def _outlast_app(request: pytest.FixtureRequest) -> AsyncGenerator[Harness]:
    """The configured app in a harness: a private store, a virtual clock, a worker. Closed with the test."""
    from outlast.testing.harness import harness

    async with harness(app_named(_target(request.config)), **_settings(request)) as opened:
        yield opened


def _fixture() -> Any:
    """pytest-asyncio wants its own decorator; anyio takes pytest's."""
    decorate: Any = pytest.fixture
    if importlib.util.find_spec("pytest_asyncio") is not None:
        decorate = importlib.import_module("pytest_asyncio").fixture
    return decorate(name=OPTION)(_outlast_app)


outlast_app = _fixture()
