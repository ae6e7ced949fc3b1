"""Processes of a test's own, to be killed at any point, without starting Python for each of them.

    process = forked("tests.acceptance.fleet", "worker", url)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0

`python -m tests.forks` runs once beside each process of tests. For each process that is asked for it imports its module
(the first time), and forks; the child calls the module's `main` with the arguments. No module opens anything when it is
imported, and no thread runs before the fork: a child is as good as new. When the tests' process is gone, all of them
are.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent


class Forked:
    """One of them, as a `subprocess.Popen` looks. On a pipe of its own it is told the pid, and later the returncode."""

    def __init__(self, reports: int) -> None:
        self._reports = os.fdopen(reports, "rb", buffering=0)
        self._lock = threading.Lock()
        self.pid = self._next()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        returncode = self._ended(timeout)
        if returncode is None:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        return returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since, and the report is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._reports], [], [], timeout)[0]:
                self.returncode = self._next()
                self._reports.close()
        return self.returncode

    def _next(self) -> int:
        said = self._reports.readline()
        assert said, "the process that forks is gone"
        return int(said)

    def __del__(self) -> None:
        self._reports.close()


class _Parent:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()
        atexit.register(self._close)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()

    def fork(self, request: dict[str, Any], streams: list[int]) -> Forked:
        reports, theirs = os.pipe()
        line = f"{json.dumps(request)}\n".encode()
        with self._lock:  # one request at a time: the next one is read when this one has been answered
            sent = socket.send_fds(self._requests, [line], [theirs, *streams])
            self._requests.sendall(line[sent:])
            os.close(theirs)
            return Forked(reports)


@cache
def _parent() -> _Parent:
    return _Parent()


def forked(module: str, *args: str, env: Mapping[str, str] | None = None, **streams: IO[Any]) -> Forked:
    """A process that calls the module's `main` with these. Its environment is `env`, or that of the tests by now; its
    stdin, stdout and stderr are what is given, or those of the tests."""
    env = os.environ if env is None else env
    request = {"module": module, "args": args, "env": dict(env), "streams": list(streams)}
    return _parent().fork(request, [stream.fileno() for stream in streams.values()])


def called(module: str, *args: str) -> tuple[int, str]:
    """How a process that called `main` with these ended, as a `returncode`, and what it wrote to stdout."""
    with tempfile.TemporaryFile("w+") as output:
        returncode = forked(module, *args, stdout=output).wait()
        output.seek(0)
        return returncode, output.read()


# ---- in the process that forks ------------------------------------------------------------------------------------


class _Nursery:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._reports: dict[int, int] = {}
        """Where the end of each child is told, by its pid."""
        self._ends, self._ended = os.pipe()
        os.set_blocking(self._ended, False)
        signal.set_wakeup_fd(self._ended)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Who interrupts the tests closes our socket, too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Until the tests are gone."""
        while True:
            ready, _, _ = select.select([self._requests, self._ends], [], [])
            if self._ends in ready:
                os.read(self._ends, 4_096)
                self._tell_ends()
            if self._requests in ready:
                line, passed, _, _ = socket.recv_fds(self._requests, 65_536, 4)
                if not line:
                    break
                while not line.endswith(b"\n"):
                    line += self._requests.recv(65_536)
                self._fork(json.loads(line), *passed)
        for pid in self._reports:
            os.kill(pid, signal.SIGKILL)

    def _tell_ends(self) -> None:
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._tell(self._reports.pop(pid), os.waitstatus_to_exitcode(status))

    def _tell(self, reports: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody asks any more
            os.write(reports, f"{number}\n".encode())
        os.close(reports)

    def _fork(self, request: dict[str, Any], reports: int, *streams: int) -> None:
        main = importlib.import_module(request["module"]).main
        pid = os.fork()
        if not pid:
            self._be_born(reports)
            for name, stream in zip(request["streams"], streams, strict=True):
                os.dup2(stream, getattr(sys, name).fileno())
                os.close(stream)
            os.environ.clear()
            os.environ.update(request["env"])
            os._exit(_called(main, request["args"]))
        os.write(reports, f"{pid}\n".encode())
        self._reports[pid] = reports
        for stream in streams:
            os.close(stream)

    def _be_born(self, reports: int) -> None:
        """In the child: nothing of the nursery's is left."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._requests.close()
        for own in (self._ends, self._ended, reports, *self._reports.values()):
            os.close(own)


def _called(main: Any, args: list[str]) -> int:
    """The exit code, as Python's own."""
    try:
        main(*args)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()
