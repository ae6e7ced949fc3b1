"""Doorbells between processes that share a file: a datagram socket per listener, in a folder beside the file.

Ringing sends the channels' names to every socket there: no table is read, nothing is polled, and a process that nobody
listens in costs nothing. A full socket drops the ring (its owner has rings to read, and re-scans when it was flooded);
a dead owner's socket is removed by whoever rings it. A lost ring costs one interval of the polling net, never work,
and so ringing never fails.

Who listens to the same store object as rings is told without its socket. Most rings are of that kind: a process that
runs alone rings for itself with every end.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from outlast.errors import StoreError
from outlast.store.port import RESCAN

_ADDRESS_MAX = 100
"""Socket addresses are short on every platform; longer folders get a short one in the temporary directory."""
_FLOOD = 8
"""So many rings at once may mean that others were dropped: the shortest buffers hold ten."""
_RING_MAX_BYTES = 4 * 1024
"""Longer rings say RESCAN. Short ones keep a full buffer at more than a flood's number of rings."""
_HEARD_MAX = 1_000
"""A listener that nobody reads remembers so many channels, then only that it must re-scan."""
_RESTS_NS = 100_000_000
"""A folder that changed longer ago than this cannot change again without showing another time: file systems tell it in
steps of some milliseconds."""
_SHARED_PREFIX = "outlast-bells-"
_SOCKET_NAME = re.compile(r"\d+-[0-9a-f]{8}")


def folder_of(path: str) -> Path:
    beside = Path(f"{path}-bells")
    if len(os.fsencode(beside)) + 32 <= _ADDRESS_MAX:
        return beside
    digest = sha256(os.fsencode(Path(path).resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"{_SHARED_PREFIX}{os.getuid()}-{digest}")


class Doorbell:
    """Rings everyone who listens on this file. Used from any thread."""

    def __init__(self, path: str) -> None:
        self._pid = os.getpid()
        self._folder = folder_of(path)
        # A socket for each listener: what a frozen one does not read fills its own buffer, not everybody's.
        self._senders: dict[str, socket.socket] = {}
        self._names: set[str] = set()
        self._listed: int | None = None
        """When the folder had last changed as its names were read; None if that may have been just now."""
        self._guard = threading.Lock()
        self._closed = False
        self.listeners: dict[str, Listener] = {}
        """Its own, by the names of their sockets."""

    def ring(self, channels: Iterable[str]) -> None:
        channels = frozenset(channels)
        for listener in self.tell(channels):
            listener.wake_soon()
        self.send(self.others(), channels)

    def tell(self, channels: Iterable[str]) -> list[Listener]:
        """The listeners of one's own: those that are to be woken now that they were told."""
        return [listener for listener in [*self._own.values()] if listener.hears(channels)]

    def others(self) -> list[str]:
        """Everyone else who listens, by the names of their sockets."""
        with self._guard:
            if self._closed:
                return []
            try:
                self._look_who_listens()
            except OSError:
                return []  # in most cases: nobody has listened yet
            own = self._own
            return [name for name in self._names if name not in own]

    @property
    def _own(self) -> dict[str, Listener]:
        """None in a forked child: they are its parent's."""
        return self.listeners if self._pid == os.getpid() else {}

    def _look_who_listens(self) -> None:
        """Every end of an execution rings, and listeners come and go with processes: the folder's names are read again
        only when it has changed."""
        _check_owner(self._folder)
        changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 (a ring is hot)
        if changed == self._listed:
            return
        self._names = {name for name in os.listdir(self._folder) if _SOCKET_NAME.fullmatch(name)}  # noqa: PTH208
        for gone in self._senders.keys() - self._names:
            self._senders.pop(gone).close()
        self._listed = changed if time.time_ns() - changed > _RESTS_NS else None

    def send(self, names: list[str], channels: Iterable[str]) -> None:
        """To those of the `others`."""
        if not names:
            return
        heard = "\n".join(sorted(channels)).encode()
        if len(heard) > _RING_MAX_BYTES:
            heard = RESCAN.encode()
        with self._guard:
            if not self._closed:
                for name in names:
                    self._send(name, heard)

    def _send(self, name: str, heard: bytes) -> None:
        address = f"{self._folder}/{name}"
        try:
            sender = self._senders.get(name)
            if sender is None:
                sender = self._senders[name] = _new_socket()
            try:
                sender.sendto(heard, address)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                sender.sendto(RESCAN.encode(), address)
        except (ConnectionRefusedError, FileNotFoundError):
            _remove(address)  # its owner is gone
        except OSError:
            pass  # a full buffer: the listener re-scans by itself when it sees the flood; or another user's socket

    def listen(self) -> Listener:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        listener = Listener(self._folder, name, gone=lambda: self.listeners.pop(name, None))
        self.listeners[name] = listener
        return listener

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for sender in self._senders.values():
                sender.close()
            self._senders.clear()


class Listener:
    """A socket of its own, read by the event loop that it was made in."""

    def __init__(self, folder: Path, name: str, *, gone: Callable[[], object]) -> None:
        """`gone` is called when nothing is heard any more."""
        self.loop = asyncio.get_running_loop()
        self._address = f"{folder}/{name}"
        self._gone = gone
        self._socket = _new_socket()
        try:
            _hang(self._socket, folder, self._address)
        except OSError as error:
            self._socket.close()
            raise StoreError(f"no doorbell can be hung in {folder} ({error}): poll instead") from error
        self._heard = {RESCAN}
        self._wake = asyncio.Event()
        self._wake.set()
        self._told = True
        """Somebody has seen to it that this is woken; until then nobody else need."""
        self._guard = threading.Lock()
        self._closed = False
        self.loop.add_reader(self._socket.fileno(), self._drain)

    def hears(self, channels: Iterable[str]) -> bool:
        """Without its socket, in any thread: whether who tells it must wake it, too."""
        with self._guard:
            self._heard.update(channels)
            if len(self._heard) > _HEARD_MAX:
                self._heard = {RESCAN}
            told, self._told = self._told, True
        return not told

    def wake(self) -> None:
        """In its loop."""
        self._wake.set()

    def wake_soon(self) -> None:
        """In any thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody is left to hear it
            self.loop.call_soon_threadsafe(self._wake.set)

    def _drain(self) -> None:
        heard = set[str]()
        rings = 0
        while True:
            try:
                ring = self._socket.recv(_RING_MAX_BYTES + 1)
            except OSError:  # nothing left to read
                break
            rings += 1
            heard.update(ring.decode(errors="replace").split("\n"))
        if rings >= _FLOOD:
            heard.add(RESCAN)
        if rings and self.hears(heard):
            self.wake()

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        while not self._closed:
            await self._wake.wait()
            if self._closed:
                return
            self._wake.clear()
            with self._guard:
                heard, self._heard, self._told = frozenset(self._heard), set[str](), False
            if heard:  # else it was heard before, with what came then
                yield heard

    async def close(self) -> None:
        if asyncio.get_running_loop() is self.loop or self.loop.is_closed():
            self._let_go()
        else:
            # Its loop reads the socket: only there can it be let go.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(RuntimeError):  # its loop is closed, and who waited there is gone
            self._wake.set()
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        _remove(self._address)
        self._gone()
        with suppress(OSError):  # the last one takes the folder with it
            Path(self._address).parent.rmdir()


def _hang(bell: socket.socket, folder: Path, address: str) -> None:
    """Bind the socket; again if somebody else's last listener took the folder away in between."""
    for chance in range(20, 0, -1):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_owner(folder)
            bell.bind(address)
            return
        except (FileNotFoundError, FileExistsError):  # it went, or came and went
            if chance == 1:
                raise


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _check_owner(folder: Path) -> None:
    """In the temporary directory anybody may have put something under our folder's name."""
    if folder.name.startswith(_SHARED_PREFIX):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to somebody else", str(folder))


def _remove(address: str) -> None:
    with suppress(OSError):  # somebody else was faster, or it is not ours to remove
        if stat.S_ISSOCK(os.lstat(address).st_mode):
            Path(address).unlink()
