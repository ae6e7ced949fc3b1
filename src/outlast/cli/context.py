"""What every command has: the store and namespace that the global options name, and ways to open them.

looking    reads only; a store that is not there stays so
acting     an app on a store that is there: cancel, hold, retry, …
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import quote

from cyclopts import Parameter, Token

from outlast.app import App, store_for
from outlast.cli.output import Output
from outlast.cli.sealing import SEALED, PlainOnly
from outlast.config import Config
from outlast.errors import CodecError, CodecHookFailed, ExecutionNotFound, SchemaMissing
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import flow_key
from outlast.store.port import Store

FAILED, USAGE = 1, 2
SILENT_S = 2.0
"""Whoever waits longer for a store to answer is told so."""


class Failed(Exception):
    """The command could not do it, and nothing else has said so yet. `kind` is the error's name in --json."""

    def __init__(self, text: str, *, kind: str = "Failed", code: int = FAILED) -> None:
        self.kind = kind
        self.code = code
        super().__init__(text)


@dataclass
class Context:
    out: Output
    given_url: str | None = None
    given_namespace: str | None = None
    shown_store: str | None = None
    """The store in use, once it is known: errors name it too."""

    def check(self) -> None:
        """The global options, whatever the command makes of them: an unset variable is no namespace."""
        Config.load({}, url=self.given_url, namespace=self.given_namespace)

    def config(self) -> Config:
        return Config.load(os.environ, url=self.given_url, namespace=self.given_namespace)

    @property
    def namespace(self) -> str:
        return self.config().namespace

    def uses(self, store_url: str, namespace: str) -> None:
        """Say which store is in use, before anything else."""
        self.shown_store = store_url
        self.out.note(f"store {store_url} · namespace {namespace}")

    @contextmanager
    def opening(self, store_url: str) -> Generator[None]:
        """A server that is away is waited for, with patience: say so, before that looks like a command that hangs."""
        told = f"waiting for {store_url}, which does not answer yet"
        timer = asyncio.get_running_loop().call_later(SILENT_S, self.out.note, told)
        try:
            yield
        finally:
            timer.cancel()

    @asynccontextmanager
    async def looking(self) -> AsyncGenerator[Store]:
        """The store, open for reading."""
        config = self.config()
        store = store_for(for_reading(config.url))
        if self.shown_store is None:
            self.uses(store.url, config.namespace)
        try:
            with self.opening(store.url):
                await store.open()
        except SchemaMissing as missing:
            raise nothing_there(store, missing) from missing
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def acting(self) -> AsyncGenerator[App]:
        """An app that knows no workflows, on a store that is there."""
        config = self.config()
        store = store_for(config.url)
        self.uses(store.url, config.namespace)
        try:
            with self.opening(store.url):
                await store.open()  # opening an app would make what is not there
        except SchemaMissing as missing:
            raise nothing_there(store, missing) from missing
        finally:
            await store.close()
        async with App(config.url, namespace=config.namespace, codec=PlainOnly()).client() as app:
            try:
                yield app
            except CodecHookFailed as error:
                raise sealed() from error


def _whole(_: object, given: Sequence[Token]) -> int:
    """The parser by itself would take 1.5, and round it."""
    try:
        return int(given[0].value)
    except ValueError:
        raise ValueError(f"write a whole number, not {given[0].value!r}") from None


ContextArgument: TypeAlias = Annotated[Context, Parameter(parse=False)]
Id: TypeAlias = Annotated[str, Parameter(help="The execution's id.")]
Whole: TypeAlias = Annotated[int, Parameter(converter=_whole)]


async def execution_of(store: Store, namespace: str, execution_id: str, *, of_flows: str = "show") -> Execution:
    found, flow = await store.load([execution_key(namespace, execution_id), flow_key(namespace, execution_id)])
    if isinstance(found, Execution):
        return found
    if flow is not None:
        told = f"{execution_id} is a flow, not an execution: `outlast flows {of_flows} {execution_id}`"
        raise Failed(told, kind=ExecutionNotFound.__name__)
    raise ExecutionNotFound(namespace, execution_id)


def sealed() -> Failed:
    return Failed(SEALED, kind=CodecError.__name__)


def nothing_there(store: Store, missing: SchemaMissing) -> Failed:
    return Failed(
        f"there is no store at {store.url}: check --url and $OUTLAST_URL, or make one with `outlast migrate`",
        kind=type(missing).__name__,
    )


def for_reading(url: str) -> str:
    """An SQLite file is opened without a writer: looking leaves no trace in a file, whoever's it is."""
    if "://" not in url:
        url = f"sqlite:///{quote(url)}"
    if not url.startswith("sqlite:") or "mode=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}mode=ro"
