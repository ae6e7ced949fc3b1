"""The proxy counts a round trip when a client speaks after it was answered."""

from __future__ import annotations

import asyncio

from benchmarks.round_trips import Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()
    await writer.wait_closed()


async def test_requests_are_counted_and_what_is_pipelined_is_one():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with Proxy("127.0.0.1", port).listening() as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for _ in range(3):
                writer.write(b"one\n")
                assert await reader.readline() == b"one\n"
            writer.write(b"two\nthree\n")
            assert await reader.readline() == b"two\n"
            assert await reader.readline() == b"three\n"
            writer.close()
            await writer.wait_closed()
            assert proxy.trips == 4
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)  # the server's side closes too
