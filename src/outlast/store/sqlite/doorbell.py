"""Doorbells between processes that share a file: a datagram socket per listener, in a folder beside the file.

Ringing sends the channels' names to every socket there: no table is read, nothing is polled, and a process that nobody
listens in costs nothing. A full socket drops the ring (its owner has rings to read, and re-scans when it was flooded);
a dead owner's socket is removed by whoever rings it. A lost ring costs one interval of the polling net, never work.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable
from hashlib import sha256
from pathlib import Path

from outlast.store.port import RESCAN

_ADDRESS_MAX = 100
"""Socket addresses are short on every platform; longer folders get a short one in the temporary directory."""
_FLOOD = 8
"""So many rings at once may mean that others were dropped: the shortest buffers hold ten."""
_RING_MAX_BYTES = 32 * 1024


def folder_of(path: str) -> Path:
    beside = Path(f"{path}-bells")
    if len(os.fsencode(beside)) + 32 <= _ADDRESS_MAX:
        return beside
    digest = sha256(os.fsencode(Path(path).resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"outlast-{digest}-bells"


class Doorbell:
    """Rings everyone who listens on this file. Used from any thread."""

    def __init__(self, path: str) -> None:
        self._folder = folder_of(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self, channels: Iterable[str]) -> None:
        heard = "\n".join(sorted(channels)).encode()
        if len(heard) > _RING_MAX_BYTES:
            heard = RESCAN.encode()
        try:
            listeners = list(self._folder.iterdir())
        except FileNotFoundError:
            return  # nobody has listened yet
        for address in listeners:
            self._send(address, heard)

    def _send(self, address: Path, heard: bytes) -> None:
        try:
            self._socket.sendto(heard, str(address))
        except (ConnectionRefusedError, FileNotFoundError):
            address.unlink(missing_ok=True)  # its owner is gone
        except OSError as error:
            # A full buffer: the listener re-scans by itself when it sees the flood.
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.EPERM, errno.EACCES):
                raise

    def listen(self) -> Listener:
        return Listener(self._folder)

    def close(self) -> None:
        self._socket.close()


class Listener:
    """A socket of its own in the running event loop; opened when first iterated or by `open`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._address = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._address))
        self._heard = {RESCAN}
        self._wake = asyncio.Event()
        self._wake.set()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain)

    def _drain(self) -> None:
        rings = 0
        while True:
            try:
                heard = self._socket.recv(_RING_MAX_BYTES + 1)
            except BlockingIOError:
                break
            rings += 1
            self._heard.update(heard.decode(errors="replace").split("\n"))
        if rings >= _FLOOD:
            self._heard.add(RESCAN)
        if rings:
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        while not self._closed:
            await self._wake.wait()
            if self._closed:
                return
            self._wake.clear()
            heard, self._heard = frozenset(self._heard), set[str]()
            yield heard

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._address.unlink(missing_ok=True)
