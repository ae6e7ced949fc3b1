"""Systems as processes: each part that one plays (worker, starter, embedded load) is a process that `driving` drives.

What goes wrong in a peer is said, and the peer is left out of that case; what goes wrong in ours is an error.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from benchmarks.peers.environment import PeerMissing, python_for, version_of

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 120.0
OWN = ("outlast", "bare")
T = TypeVar("T")


class System(Struct, frozen=True, kw_only=True):
    """What is measured, and how it is run."""

    name: str
    version: str
    module: str
    verbs: frozenset[str]
    """What it can be asked to do: see `driving.Load`."""
    python: Path | None = None
    """The interpreter of its environment; ours, if there is none."""


def peer(name: str, verbs: Iterable[str], *, package: str | None = None) -> System | None:
    """A peer in its own environment, made on first use; without a registry at hand it is left out."""
    try:
        python = python_for(name)
        version = version_of(name, package=package)
    except PeerMissing as missing:
        print(f"  without {name}: {missing}", flush=True)
        return None
    return System(
        name=name, version=version, module=f"benchmarks.peers.{name}_load", verbs=frozenset(verbs), python=python
    )


class Part:
    """One process of a system: `with Part(system, "carry", url, 10, 100, 1.0) as part: part.until("ready") …`."""

    def __init__(self, system: System, *arguments: object) -> None:
        environment = dict(os.environ)
        if system.python is not None:
            # Of our own environment a peer must see nothing.
            environment = {key: value for key, value in environment.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._what = f"{system.name} {arguments[0]}"
        self._process = subprocess.Popen(
            [str(system.python or sys.executable), "-m", system.module, *(str(argument) for argument in arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def line(self, patience_s: float = PATIENCE_S) -> str:
        """The next that it says."""
        try:
            line = self._lines.get(timeout=patience_s)
        except queue.Empty:
            raise PeerMissing(f"{self._what} said nothing for {patience_s:.0f} s: {self._complaint()}") from None
        if line is None:
            raise PeerMissing(f"{self._what} ended: {self._complaint()}")
        return line

    def until(self, word: str) -> list[str]:
        """All that it says up to a line that begins with that word, which is the last."""
        said = [self.line()]
        while said[-1].partition(" ")[0] != word:
            said.append(self.line())
        return said

    def numbers(self, word: str, count: int) -> list[float]:
        """The numbers of `count` lines that begin with that word."""
        return [float(self.until(word)[-1].partition(" ")[2]) for _ in range(count)]

    def number(self, word: str) -> float | None:
        """The number of the first line so far that begins with that word, if there is one."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return None
            if line is not None and line.partition(" ")[0] == word:
                return float(line.partition(" ")[2])

    def tell(self, word: str = "go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def figures(self) -> Any:
        """Its last word."""
        while not (line := self.line()).startswith(("{", "null")):
            pass
        return msgspec.json.decode(line)

    def _complaint(self) -> str:
        self._readers[1].join(0.5)
        return "".join(self._errors).strip()[-500:] or "without a word"

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # At once, with the children that it started, which are in its session: some take long to end by themselves,
        # and what they leave behind goes with their place.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(1.0)


def ask(system: System, *arguments: object) -> Any:
    """What a part says at its end, if it needs nobody else."""
    with Part(system, *arguments) as part:
        return part.figures()


@contextmanager
def working(system: System, url: str, *, workers: int, concurrency: int) -> Iterator[list[Part]]:
    """So many worker processes, each for so many executions at a time, told to begin together."""
    with ExitStack() as stack:
        parts = [
            stack.enter_context(Part(system, "work", url, concurrency, number, workers)) for number in range(workers)
        ]
        for part in parts:
            part.until("loaded")
        for part in parts:
            part.tell()
        yield parts


def in_turns(systems: Iterable[System], repeats: int, turn: Callable[[System], T], *, verb: str) -> dict[str, list[T]]:
    """Each system gets its turn, again and again; one that fails is left out of this case."""
    able = [system for system in systems if verb in system.verbs]
    turns: dict[str, list[T]] = {system.name: [] for system in able}
    for _ in range(repeats):
        for system in able:
            if system.name not in turns:
                continue
            try:
                turns[system.name].append(turn(system))
            except PeerMissing as failed:
                if system.name in OWN:
                    raise
                print(f"  without {system.name}: {failed}", flush=True)
                del turns[system.name]
    return turns


def settle(seconds: float) -> None:
    time.sleep(seconds)
