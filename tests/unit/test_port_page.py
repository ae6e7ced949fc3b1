"""What a store must have is on the page that says how to write one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from msgspec import structs

from outlast.store import port

PAGE = (Path(__file__).resolve().parents[2] / "docs/write-a-store.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(\w+)`", PAGE))
WORDS = {18: "Eighteen", 19: "Nineteen", 20: "Twenty"}


def public(of: object) -> dict[str, object]:
    return {name: value for name, value in vars(of).items() if not name.startswith("_")}


def test_every_method_and_property_of_the_port_is_named():
    methods = {name for name, value in public(port.Store).items() if inspect.isfunction(value)}
    properties = {name for name, value in public(port.Store).items() if isinstance(value, property)}
    assert methods | properties <= NAMED
    assert f"{WORDS[len(methods)]} methods and three properties" in PAGE
    assert len(properties) == 3


def test_every_capability_and_what_a_store_may_have_besides_is_named():
    assert {field.name for field in structs.fields(port.Capabilities)} <= NAMED
    besides = {
        name
        for name, value in public(port).items()
        if getattr(value, "_is_runtime_protocol", False) and value is not port.Store
    }
    assert "Transacting" in besides
    assert besides <= NAMED
