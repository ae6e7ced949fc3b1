"""What the other processes of a test do: `main` is called in them (`tests.forks`), or by `python -m` this module.

They speak in lines on stdout, and wait for lines on stdin: signals instead of sleeps.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import apsw

from outlast.errors import OutlastError
from outlast.machine.facts import AnyFact, Complete
from outlast.model.execution import execution_key
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite import migrate as migrating
from outlast.testing import CrashPoints
from tests.integration.sqlite.tools import NS, claim_request, opened, running, start, step


def say(what: object) -> None:
    """One write for a line: a fork and its parent share the pipe, and must not write into each other's lines."""
    os.write(sys.stdout.fileno(), f"{what}\n".encode())


def hear() -> str:
    return sys.stdin.readline().strip()


async def heard() -> str:
    return await asyncio.to_thread(hear)


# ---- migrations ---------------------------------------------------------------------------------------------------


async def migrate_and_open(path: str) -> None:
    """All at once: on the word, migrate, open, write, read."""
    store = SqliteStore(path)
    say("here")
    hear()
    say(await store.migrate())
    await store.open()
    async with running(store) as engine:
        told = await engine.tell(NS, f"by-{os.getpid()}", start(f"by-{os.getpid()}"))
        say(told.applied)
    await store.close()


async def upgrade_and_open(path: str) -> None:
    """As if this code knew a schema 2."""
    ours = migrating.migrations()
    more = "ALTER TABLE outlast_session ADD COLUMN host TEXT; CREATE TABLE outlast_new (a TEXT) STRICT;"
    migrating.migrations = lambda: {**ours, 2: more}
    migrating.SCHEMA = 2
    await migrate_and_open(path)


# ---- writing ------------------------------------------------------------------------------------------------------


async def write_until_told(path: str) -> None:
    """Starts executions, one commit each, until a line comes; says how many, and the longest wait."""
    async with opened(path, migrated=False) as store, running(store) as engine:
        say("here")
        hear()
        stop = asyncio.create_task(heard())
        count, longest = 0, 0.0
        while not stop.done():
            began = time.perf_counter()
            execution_id = f"w{os.getpid()}-{count}"
            told = await engine.tell(NS, execution_id, start(execution_id))
            assert told.applied
            longest = max(longest, time.perf_counter() - began)
            count += 1
        say(f"{count} {longest:.3f}")


async def die_at(path: str, what: str, execution_id: str, nth: int) -> None:
    """SIGKILL itself at the nth crash point of one operation."""
    points = CrashPoints()
    async with opened(path, migrated=False, points=points) as store, running(store) as engine:
        points.kill_at("*", nth=nth)
        if what == "claim":
            await store.claim(claim_request(f"claim {execution_id}", lanes=(execution_id,)))
        else:
            await engine.tell(NS, execution_id, fact_of(what, execution_id))
    say("alive")


def fact_of(what: str, execution_id: str) -> AnyFact:
    match what:
        case "start":
            return start(execution_id, tags={"a": "b"}, lane=execution_id)
        case "step":
            return step(1, change_id=f"step {execution_id}")
        case _:
            return Complete(change_id=f"complete {execution_id}", epoch=1, output=b"7")


async def hold_the_lock(path: str) -> None:
    """Stops in the middle of a commit, says so, and goes on when told."""

    def stop(name: str) -> None:
        if name == "commit:commit":
            say("holding")
            hear()

    async with opened(path, migrated=False, points=stop) as store, running(store) as engine:
        await engine.tell(NS, "of-the-holder", start("of-the-holder"))
        say("committed")


async def open_and_close(path: str, times: int) -> None:
    """Comes and goes, with a write each time; patience for nothing."""
    for n in range(times):
        async with opened(path, migrated=False) as store, running(store, patience_s=0.0) as engine:
            execution_id = f"o{os.getpid()}-{n}"
            assert (await engine.tell(NS, execution_id, start(execution_id))).applied


async def fork_a_child(path: str) -> None:
    """Forks while the store is open: the child must be told to open its own, and must not keep the parent's locks."""
    async with opened(path, migrated=False) as store, running(store) as engine:
        await engine.tell(NS, "before-fork", start("before-fork"))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            answer = "no error"
            try:
                store._write("commit", lambda tx: None)
            except OutlastError as error:
                answer = f"{type(error).__name__}: {error}"
            with suppress(BaseException):
                store._opened().let_go()
            os.write(writer, answer.encode())
            os.close(writer)
            say(f"child {os.getpid()}")
            hear()  # lives on for as long as the test wants it
            os._exit(0)
        os.close(writer)
        say(os.read(reader, 1_000).decode())
        os.close(reader)
        told = await engine.tell(NS, "after-fork", start("after-fork"))
        say(told.applied)
        await asyncio.Event().wait()


# ---- doorbell -----------------------------------------------------------------------------------------------------


async def listen(path: str) -> None:
    """Says what it hears; no polling anywhere."""
    async with opened(path, migrated=False) as store:
        async for channels in store.listen():
            say(" ".join(sorted(channels)))


# ---- no permission, no room ---------------------------------------------------------------------------------------


async def unprivileged(path: str, uid: int) -> None:
    """As a user who may read the file but not write it."""
    await asyncio.to_thread(os.getpid)  # imports what it needs while it still may read it
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    for url in (f"sqlite:///{path}", f"sqlite:///{path}?mode=ro"):
        store = SqliteStore(url)
        try:
            await store.open()
            say(f"opened {(await store.now()) > 0}")
        except BaseException as error:
            say(f"{type(error).__name__}: {error}")
        finally:
            await store.close()


async def fill_the_disk(folder: str) -> None:
    """On a small filesystem of its own: full, then room again, with the same store."""
    path, ballast = Path(folder, "full.db"), Path(folder, "ballast")
    async with opened(path) as store, running(store) as engine:
        await engine.tell(NS, "first", start("first"))
        await asyncio.to_thread(ballast.write_bytes, b"x" * 300_000)
        count = 0
        try:
            while True:
                await engine.tell(NS, f"more-{count}", start(f"more-{count}", input=b"y" * 50_000))
                count += 1
        except OutlastError as error:
            say(f"{type(error).__name__}: {error}")
        kept = await store.load([execution_key(NS, f"more-{n}") for n in range(count + 1)])
        say([record is not None for record in kept] == [True] * count + [False])
        await asyncio.to_thread(ballast.unlink)
        told = await engine.tell(NS, f"more-{count}", start(f"more-{count}", input=b"y" * 50_000))
        say(told.applied)
    connection = apsw.Connection(str(path))
    say(connection.pragma("integrity_check"))
    connection.close()


def main(what: str, *arguments: str) -> None:
    asyncio.run(globals()[what](*[int(a) if a.isdecimal() else a for a in arguments]))


if __name__ == "__main__":
    main(*sys.argv[1:])
