"""`valkeys://` and `rediss://`: the store over TLS. The wheel's server has no TLS, so a proxy speaks it for a real one;
`OUTLAST_TEST_VALKEY` may name a server that does, and then it does so itself.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outlast.app import store_for
from outlast.errors import StoreUnavailable
from outlast.store.port import RESCAN
from outlast.store.valkey import connection
from outlast.testing.conformance.actors import claimed_ids, running, start
from outlast.testing.valkey_server import DURABLE, ValkeyServer, binary, free_ports

FILES = Path(__file__).parents[2] / "fixtures" / "tls"


def speaks_tls() -> bool:
    """Whether the server can do it alone."""
    [port] = free_ports(1)
    command = [binary(), "--port", "0", "--tls-port", str(port), "--tls-cert-file", "/nowhere", "--save", ""]
    told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    return "TLS support" not in told


@asynccontextmanager
async def tls_server() -> AsyncIterator[int]:
    """The port of a server that speaks TLS."""
    [port] = free_ports(1)
    if await asyncio.to_thread(speaks_tls):
        files = ("--tls-cert-file", f"{FILES}/server.pem", "--tls-key-file", f"{FILES}/server.key")
        tls = ("--tls-port", str(port), *files, "--tls-ca-cert-file", f"{FILES}/ca.pem", "--tls-auth-clients", "no")
        with ValkeyServer(options=(*DURABLE, *tls)):
            yield port
        return
    with ValkeyServer() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(FILES / "server.pem", FILES / "server.key")
        links: set[asyncio.Task[None]] = set()

        async def linked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            links.add(asyncio.current_task())  # type: ignore[arg-type]
            there = await asyncio.open_unix_connection(str(server.socket))
            await asyncio.gather(passed_on(reader, there[1]), passed_on(there[0], writer))

        proxy = await asyncio.start_server(linked, "127.0.0.1", port, ssl=context)
        try:
            yield port
        finally:
            proxy.close()
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except (OSError, ssl.SSLError):
        pass  # one side is gone: so is the other
    finally:
        writer.close()


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
async def test_a_store_over_tls(scheme: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(FILES / "ca.pem"))
    async with tls_server() as port:
        store = store_for(f"{scheme}://localhost:{port}")
        await store.migrate()
        await store.open()
        listening = aiter(store.listen())
        assert RESCAN in await anext(listening)
        await start(store, "a")
        assert await claimed_ids(store) == ["a"]
        assert (await running(store, "b")).id == "b"
        await store.close()


async def test_a_server_that_nobody_vouches_for_is_not_talked_to():
    async with tls_server() as port:
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await store_for(f"valkeys://localhost:{port}").migrate()


async def test_a_server_without_tls_is_not_taken_for_one_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.3)  # it never answers
    [port] = free_ports(1)
    with ValkeyServer(port=port):
        with pytest.raises(StoreUnavailable):
            await store_for(f"valkeys://localhost:{port}").migrate()


async def test_redis_in_the_url_means_the_same():
    [port] = free_ports(1)
    with ValkeyServer(port=port):
        store = store_for(f"redis://127.0.0.1:{port}/0")
        await store.migrate()
        await store.open()
        await start(store, "a")
        await store.close()
        again = store_for(f"valkey://127.0.0.1:{port}/0")
        await again.open()
        assert await claimed_ids(again) == ["a"]
        await again.close()
