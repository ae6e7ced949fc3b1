"""A loopback proxy in front of a PostgreSQL socket: counts round trips, adds latency, holds what is
asked, cuts every connection at once."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests import postgres

SOCKET = ".s.PGSQL.5432"
ASKS = (ord("S"), ord("Q"))
"""Sync and simple Query: after each of them a client waits for the server."""


class Proxy:
    """`async with Proxy() as proxy: PostgresStore(proxy.url_of(database))`."""

    def __init__(self, *, latency_s: float = 0.0) -> None:
        self._behind = urlsplit(postgres.server().url)
        self.latency_s = latency_s
        self.round_trips = 0
        self.mute = False
        """Answers are swallowed: to the client it looks as if the network had gone."""
        self.passing = asyncio.Event()
        """While it is not set, what clients ask waits here, also if they die meanwhile."""
        self.passing.set()
        self.held = 0
        """So many messages have waited."""
        self._pipes: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._folder = tempfile.TemporaryDirectory(prefix="outlast-px-", dir="/tmp")
        self._server = await asyncio.start_unix_server(self._serve, Path(self._folder.name) / SOCKET)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._folder.cleanup()

    def url_of(self, url: str) -> str:
        """The same database, through this proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{user}@", query=f"host={quote(self._folder.name, safe='')}").geturl()

    def cut(self) -> None:
        pipes, self._pipes = self._pipes, set()
        for pipe in pipes:
            pipe.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await self._open()
        except OSError:
            writer.transport.abort()
            return
        self._pipes |= {writer, behind_writer}
        for pump in (self._ask(reader, behind_writer), self._answer(behind_reader, writer)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the server itself, wherever it is."""
        [host] = parse_qs(self._behind.query).get("host", [self._behind.hostname or "localhost"])
        port = self._behind.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(Path(host) / f".s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            length = await reader.readexactly(4)
            writer.write(length + await reader.readexactly(int.from_bytes(length) - 4))
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
                if not self.passing.is_set():
                    self.held += 1
                    await self.passing.wait()
                if head[0] in ASKS:
                    self.round_trips += 1
                    await asyncio.sleep(self.latency_s)
                writer.write(head + body)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if not self.mute:
                    writer.write(data)
        writer.transport.abort()
