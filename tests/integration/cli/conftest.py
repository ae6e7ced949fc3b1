"""`outlast` as people run it, in a folder of its own: workers as real processes, short commands in this one.

A command in this process goes the whole way from its words to its output and exit code, without the second that a new
interpreter takes; `outlast.real(...)` is `python -m outlast`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outlast.cli import main

COMMAND = [sys.executable, "-m", "outlast"]

# A shell's background job ignores Ctrl-C, and so does every process that it starts: those of the tests must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Answer:
    code: object
    out: str
    err: str


@dataclass
class Outlast:
    folder: Path
    capture: pytest.CaptureFixture[str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *arguments: str) -> Answer:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = self.capture.readouterr()
        return Answer(ended.value.code, said.out, said.err)

    def json(self, *arguments: str, code: int = 0) -> Any:
        answer = self(*arguments, "--json")
        assert answer.code == code, answer
        return json.loads(answer.out)

    def real(self, *arguments: str) -> Answer:
        done = subprocess.run(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder / f"log-{len(self.processes)}").open("w") as log:
            process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log, text=True)
        self.processes.append(process)
        return process

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def until(self, true: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if found := true():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {timeout_s} s: {what}\n{self.log()}")


@pytest.fixture
def outlast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Outlast]:
    shutil.copy(Path(__file__).with_name("shop.py"), tmp_path / "shop.py")
    for name in [name for name in os.environ if name.startswith("OUTLAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("shop", "sick"):
        sys.modules.pop(name, None)
    commands = Outlast(tmp_path, capsys)
    yield commands
    for name in ("shop", "sick"):
        sys.modules.pop(name, None)
    for process in commands.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
