"""Processes of a test's own, to be killed at every point in turn, without starting Python for each of them.

    async with Forks("tests.acceptance.killed") as forks:
        returncode, said = await forks.call("sqlite:///a.db", "3")

`python -m tests.forks MODULE` imports the module once; for each line of arguments it forks, and the child calls the
module's `main` with them. Nothing is opened before the fork, and no thread runs: a child is as good as new.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Forks:
    def __init__(self, module: str) -> None:
        self._module = module
        self._parent: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Forks:
        self._parent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.forks",
            self._module,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._parent is not None
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        await self._parent.wait()

    async def call(self, *args: str) -> tuple[int, str]:
        """How a process that called `main` with these ended, as a `returncode`, and what it wrote to stdout."""
        assert self._parent is not None
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{json.dumps(args)}\n".encode())
        ended = await self._parent.stdout.readline()
        assert ended, "the process that forks is gone"
        returncode, said = json.loads(ended)
        return returncode, said


def _forked(main: object, args: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), sys.stdout.fileno())
            os._exit(_called(main, args))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode()


def _called(main: object, args: list[str]) -> int:
    try:
        main(*args)  # type: ignore[operator]
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(module: str) -> None:
    main = importlib.import_module(module).main
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(_forked(main, json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
