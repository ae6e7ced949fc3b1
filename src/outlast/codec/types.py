"""Names of types, as they are the same in every process: `shop.orders:CardDeclined`.

The program that was started is the module `__main__` to itself and goes by its own name to everybody else. Both ways
are covered, so that `except CardDeclined` in a script works when a worker that imported the script raised it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def type_name(kind: type) -> str:
    module = kind.__module__
    if module == "__main__":
        module = main_name() or module
    return f"{module}:{kind.__qualname__}"


def find_type(name: str) -> type | None:
    """The type of that name, if it can be imported here."""
    module, _, qualname = name.partition(":")
    if not module or not qualname or "<" in qualname:
        return None  # defined in a function: nobody else can reach it
    try:
        found: Any = _module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception:  # whatever a module does when it is imported
        return None
    return found if isinstance(found, type) else None


def main_name() -> str | None:
    """What others call the program that runs here: `shop` of `python shop.py`, `shop.orders` of `python -m`."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name.removesuffix(".__main__") if spec.name != "__main__" else None
    path = getattr(main, "__file__", None)
    stem = Path(path).stem if path else ""
    return stem if stem.isidentifier() else None


def _module(name: str) -> ModuleType:
    if name == main_name() and name not in sys.modules:
        return sys.modules["__main__"]
    return sys.modules.get(name) or importlib.import_module(name)
