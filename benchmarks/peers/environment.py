"""An environment per peer, made on first use from its pinned requirements: `.cache/peers/NAME`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.settings import CACHE

PEERS = CACHE.parent / "peers"
INSTALL_TIMEOUT_S = 600


class PeerMissing(Exception):
    """The peer cannot be had on this machine: it is left out, and the run says so."""


def python_for(name: str) -> Path:
    """The interpreter of the peer's environment."""
    requirements = Path(__file__).with_name(f"{name}.txt")
    folder = PEERS / name
    python, stamp = folder / "bin" / "python", folder / "outlast-stamp"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"  making {folder} from {requirements.name}, once", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(requirements))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise PeerMissing(f"{name} could not be installed: {detail.strip().splitlines()[-1]}") from error
    stamp.write_text(wanted)
    return python


def version_of(name: str, *, package: str | None = None) -> str:
    """The pinned version of the peer itself; its package may have another name."""
    for line in Path(__file__).with_name(f"{name}.txt").read_text().splitlines():
        pinned, _, version = line.partition("==")
        if pinned == (package or name):
            return version
    raise PeerMissing(f"{name}.txt does not pin {package or name}")


def _run(*command: str) -> None:
    # Of our own environment the peer must see nothing.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, env=environment)
