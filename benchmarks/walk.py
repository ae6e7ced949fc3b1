"""`python -m benchmarks.walk`: the files that one execution crosses in the thread of the event loop.

An execution records a step and waits for an event; it is sent that event and ends. `sys.setprofile` notes each call of
a function of Outlast, in the order in which they come: from the call of `start` to the suspension, and from the call of
`send` to the result. The thread of the store and other processes are not counted. A file that is left and entered again
counts as a change of file each time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from msgspec import Struct

import outlast
from outlast import App
from outlast.runtime.worker import Worker

PACKAGE = str(Path(outlast.__file__).parent)


class Walk(Struct, frozen=True):
    """What a part of an execution's way crosses."""

    calls: int
    functions: int
    files: tuple[str, ...]
    changes: int


class _Trace:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls.append((frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_code.co_qualname))

    def walk(self) -> Walk:
        files = [file for file, _ in self.calls]
        changes = sum(one != other for one, other in pairwise(files))
        return Walk(len(files), len(set(self.calls)), tuple(sorted(set(files))), changes)


@contextmanager
def _traced() -> Iterator[_Trace]:
    trace = _Trace()
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)


async def walks(file: Path) -> tuple[Walk, Walk]:
    """From start to suspended, and from send to completed, of an execution that is not the first of its process."""
    app = App(f"sqlite:///{file}")

    @app.step
    async def charge(number: int) -> int:
        return number

    @app.workflow
    async def waits(number: int) -> int:
        return await charge(number) + await outlast.receive("more", int)

    async with app.worker(reconcilers=False, poll="1h") as worker:
        for name in ("warm", "traced"):
            with _traced() as start:
                handle = await waits.options(id=name).start(1)
                await _suspended(worker, name)
            with _traced() as send:
                await handle.send("more", 2)
                assert await handle.result() == 3
    return start.walk(), send.walk()


async def _suspended(worker: Worker, name: str) -> None:
    """Nobody announces it, and to ask the store would be counted: the worker runs it, and then no more."""
    while worker.resident("default", name) is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    while worker.resident("default", name) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def main() -> None:
    with TemporaryDirectory() as folder:
        parts = asyncio.run(walks(Path(folder) / "outlast.db"))
    for what, walk in zip(("start to suspended", "send to completed"), parts, strict=True):
        print(f"{what}: {len(walk.files)} files, {walk.changes} changes of file, {walk.calls} calls")
        print("   ", " ".join(walk.files))


if __name__ == "__main__":
    main()
