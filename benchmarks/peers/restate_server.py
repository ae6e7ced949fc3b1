"""Restate's server, from its npm package: `.cache/peers/restate-server-…`, made on first use; each has a new log."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.environment import INSTALL_TIMEOUT_S, PEERS, PeerMissing

PACKAGE, VERSION = "@restatedev/restate-server", "1.7.12"
READY_S = 60.0


def binary() -> Path:
    """The server's program."""
    folder = PEERS / f"restate-server-{VERSION}"
    if not (found := _programs(folder)):
        npm = shutil.which("npm")
        if npm is None:
            raise PeerMissing("its server comes as an npm package, and there is no npm here")
        print(f"  making {folder} from {PACKAGE}, once", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(
                [*command, f"{PACKAGE}@{VERSION}"],
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            raise PeerMissing(f"{PACKAGE} could not be installed: {detail.strip().splitlines()[-1]}") from error
        found = _programs(folder)
    if not found:
        raise PeerMissing(f"{PACKAGE} has no program for this machine")
    return found[0]


def _programs(folder: Path) -> list[Path]:
    return sorted(folder.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))


@contextmanager
def restate_server(room: str) -> Iterator[str]:
    """A server of its own on the loopback: `INGRESS,ADMIN`, the addresses of both."""
    program = binary()
    ports = _free_ports(3)
    ingress, admin, node = (f"127.0.0.1:{port}" for port in ports)
    with TemporaryDirectory(prefix="outlast-restate-", dir=room) as folder:
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": ingress,
            "RESTATE_ADMIN__BIND_ADDRESS": admin,
            "RESTATE_BIND_ADDRESS": node,
            "RESTATE_ADVERTISED_ADDRESS": f"http://{node}",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
        }
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(program), "--base-dir", folder, "--node-name", "bench"],
                env={**os.environ, **settings},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _until_healthy(server, f"http://{admin}/health", Path(folder) / "log")
            yield f"http://{ingress},http://{admin}"
        finally:
            server.kill()
            server.wait()


def _until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            raise PeerMissing(f"its server did not start: {log.read_text()[-500:]}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
