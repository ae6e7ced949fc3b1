"""What `help(outlast.X)` tells is about X."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import outlast


def own_doc(thing: Any) -> str | None:
    """Its own docstring: `inspect.getdoc` would give that of a base class."""
    return vars(thing).get("__doc__")


@pytest.mark.parametrize("name", [name for name in outlast.__all__ if name != "Duration"])  # an alias has none
def test_a_public_name_says_what_it_is(name: str):
    thing = getattr(outlast, name)
    text = own_doc(thing) if inspect.isclass(thing) else inspect.getdoc(thing)
    assert text
    assert "efficient serializable" not in text


WORDS = "info journal attempts frames send resolve reject cancel interrupt hold release retry fork query update result"


@pytest.mark.parametrize("name", WORDS.split())
def test_what_a_handle_can_do_is_described(name: str):
    assert inspect.getdoc(getattr(outlast.Handle, name))


@pytest.mark.parametrize("name", "workflow step transaction flow client worker run_worker find count purge".split())
def test_what_an_app_can_do_is_described(name: str):
    assert inspect.getdoc(getattr(outlast.App, name))
