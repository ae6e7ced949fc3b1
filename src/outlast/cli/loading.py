"""`module:app` to an App; every way to get it wrong says what to write instead."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeAlias

import msgspec
from cyclopts import Parameter

from outlast.app import App, store_for
from outlast.cli.context import USAGE, Context, Failed, for_reading
from outlast.errors import InvalidInput
from outlast.store.port import Store

_IMPORTING = (__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
Target: TypeAlias = Annotated[str, Parameter(help="Where the app is: module:name, such as shop.orders:app.")]


def load(context: Context, target: str) -> App:
    """The app, on the store and namespace of the global options if they are given, else on its own."""
    name, colon, attribute = target.partition(":")
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise InvalidInput(f"{target!r} is a file: write its module, {dotted}:{attribute or 'app'}")
    module = _module(name, target)
    found = getattr(module, attribute, None) if colon and attribute else None
    if not isinstance(found, App):
        raise InvalidInput(_not_an_app(module, name, attribute))
    changes = {"url": context.given_url, "namespace": context.given_namespace}
    found.config = msgspec.structs.replace(
        found.config, **{option: value for option, value in changes.items() if value is not None}
    )
    if context.given_url is not None:
        found.own_store = None
    return found


def say_store(context: Context, app: App) -> None:
    context.uses(app.new_store().url, app.config.namespace)


def store_to_read(app: App) -> Store:
    """Its store, not open yet. One that the app makes itself is as the app makes it."""
    return store_for(for_reading(app.config.url)) if app.own_store is None else app.new_store()


def _module(name: str, target: str) -> ModuleType:
    if not name:
        raise InvalidInput(f"{target!r} names no module: write module:name, such as shop:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: a console script starts elsewhere
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that our module imports is the author's affair; only the one asked for is a slip of the pen.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from error
        raise InvalidInput(
            f"there is no module {error.name!r} in {here} or on the path: "
            "go to the folder that holds it, or set PYTHONPATH"
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> Failed:
    """With the author's own lines of the traceback: those that led there from the command are ours."""
    told = traceback.TracebackException.from_exception(error)
    own = [frame for frame in told.stack if frame.filename not in _IMPORTING]
    told.stack = traceback.StackSummary.from_list(own)
    return Failed(f"importing {name} failed:\n\n{''.join(told.format()).rstrip()}", kind="ImportError", code=USAGE)


def _not_an_app(module: ModuleType, name: str, attribute: str) -> str:
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    what = f"{name}:{attribute} is not an App" if hasattr(module, attribute) else f"{name} has no {attribute!r}"
    if not attribute:
        what = f"{name!r} names a module, not the app in it"
    if not apps:
        return f"{what}, and no other App: write `app = outlast.App()` in {name}, then {name}:app"
    return f"{what}: write {' or '.join(f'{name}:{app}' for app in apps)}"
