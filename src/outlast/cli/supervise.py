"""Several worker processes under one that watches: signals are passed on, one that dies is started again.

Each child is a process group of its own, so that Ctrl-C in a terminal reaches it once, through its parent. If the
parent itself is killed, its end of a pipe closes, and the children drain: nobody is left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio.subprocess import Process
from contextlib import suppress

from outlast.cli.context import USAGE
from outlast.cli.output import Output
from outlast.client.views.words import duration

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_AFTER_S = 30.0
"""A child that lived so long starts its backoff anew."""
HARD_STOP_S = 5.0


def end_with_parent(pipe: int) -> None:
    """In a child: drain when the parent is gone, however it went."""
    os.set_inheritable(pipe, False)

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="outlast parent", daemon=True).start()


async def supervise(command: list[str], processes: int, out: Output) -> int:
    """Until every child has drained. 0 if all of them went well."""
    readable, writable = os.pipe()
    fleet = Fleet([*command, "--parent-pipe", str(readable)], readable, out)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, fleet.stop)
    try:
        codes = await asyncio.gather(*(fleet.keep(slot) for slot in range(1, processes + 1)))
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        os.close(readable)
        os.close(writable)
    return 0 if not any(codes) else 1


class Fleet:
    def __init__(self, command: list[str], pipe: int, out: Output) -> None:
        self._command = command
        self._pipe = pipe
        self._out = out
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._stops = 0

    def stop(self) -> None:
        """The first time the children drain; the second time they stop at once."""
        self._stops += 1
        self._stopping.set()
        self._out.note("draining: a second signal stops at once" if self._stops == 1 else "stopping at once", style="")
        for child in self._children.values():
            _send(child, signal.SIGTERM)
        if self._stops == 2:
            asyncio.get_running_loop().call_later(HARD_STOP_S, self._kill)

    def _kill(self) -> None:
        for child in self._children.values():
            _send(child, signal.SIGKILL)

    async def keep(self, slot: int) -> int:
        """Keep one child alive until the stop; its last exit code."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_FIRST_S
        while True:
            child = await asyncio.create_subprocess_exec(*self._command, pass_fds=(self._pipe,), process_group=0)
            self._children[slot] = child
            if self._stopping.is_set():  # it came while the child was being made
                _send(child, signal.SIGTERM)
            began = loop.time()
            code = await child.wait()
            del self._children[slot]
            if self._stopping.is_set():
                # Our own signal can only end a child that has not begun, or has drained: both are well.
                return 0 if code == -signal.SIGTERM else code
            if code == USAGE:
                return code  # it will not understand its command line next time either
            if loop.time() - began > HEALTHY_AFTER_S:
                backoff_s = BACKOFF_FIRST_S
            wait = duration(round(backoff_s * 1_000))
            self._out.note(f"worker {slot} (pid {child.pid}) {_died(code)}; again in {wait}", style="warning")
            try:
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
                return 0
            except TimeoutError:
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)


def _died(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended by itself with {code}"


def _send(child: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it is gone already
        child.send_signal(number)
