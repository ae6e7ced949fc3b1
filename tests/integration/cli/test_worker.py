"""Signals and processes: drain, hard stop, several processes and what becomes of them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import COMMAND, Outlast

pytestmark = pytest.mark.slow


def alive(outlast: Outlast) -> list[str]:
    return outlast.json("show", "nap")["workers_alive"]


def children_of(parent: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(pid) for pid in listing.stdout.split()]


def is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def status_of(outlast: Outlast, execution_id: str) -> str:
    return outlast.json("show", execution_id)["execution"]["status"]


def test_sigterm_drains_and_a_second_signal_stops_at_once(outlast: Outlast):
    outlast("start", "shop:app", "slow", "--id", "nap", "--arg", "3")
    worker = outlast.begin("worker", "shop:app")
    outlast.until(lambda: status_of(outlast, "nap") == "active", "the claim")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert status_of(outlast, "nap") == "succeeded", "what ran was allowed to finish"

    outlast("start", "shop:app", "slow", "--id", "long", "--arg", "60")
    worker = outlast.begin("worker", "shop:app")
    outlast.until(lambda: status_of(outlast, "long") == "active", "the claim")
    worker.send_signal(signal.SIGINT)
    word = (
        "drains: it claims nothing more, waits up to 30 s for 1 execution (long), and hands back what still runs then"
    )
    outlast.until(lambda: word in outlast.log(), "what it waits for")
    outlast.until(lambda: outlast.log().count("still stopping; a second signal stops at once") == 2, "both workers")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(20) == 1
    assert status_of(outlast, "long") == "active", "its lease is left to run out"


def test_processes_are_kept_alive_and_drain_together(outlast: Outlast):
    outlast("start", "shop:app", "slow", "--id", "nap", "--arg", "0")
    parent = outlast.begin("worker", "shop:app", "--processes", "2")
    outlast.until(lambda: len(alive(outlast)) == 2, "two workers")
    first, second = children_of(parent.pid)
    os.kill(first, signal.SIGKILL)
    outlast.until(lambda: "was ended by SIGKILL; again in 500ms" in outlast.log(), "the notice")
    outlast.until(lambda: len(set(children_of(parent.pid)) - {first}) == 2, "its successor")
    assert second in children_of(parent.pid)
    outlast.until(lambda: len(alive(outlast)) >= 2, "two workers again")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert "Traceback" not in outlast.log()


def test_children_of_a_killed_parent_drain(outlast: Outlast):
    outlast("start", "shop:app", "slow", "--id", "nap", "--arg", "0")
    parent = outlast.begin("worker", "shop:app", "--processes", "2")
    outlast.until(lambda: len(alive(outlast)) == 2, "two workers")
    children = children_of(parent.pid)
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    outlast.until(lambda: not any(is_there(pid) for pid in children), "their end")


def test_an_interrupted_wait_exits_130(outlast: Outlast):
    waiting = outlast.begin("start", "shop:app", "slow", "--id", "nap", "--arg", "60", "--wait")
    outlast.until(lambda: "no worker that serves it is alive" in outlast.log(), "the word for the patient")
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(10) == 130
    assert "outlast: interrupted" in outlast.log()
    assert "Traceback" not in outlast.log()
    assert status_of(outlast, "nap") == "ready", "it goes on without us"


def test_one_ctrl_c_at_the_question_of_a_purge_is_enough(outlast: Outlast):
    outlast("migrate")
    ours, theirs = pty.openpty()
    log = outlast.folder / "log-purge"
    with log.open("w") as said:
        asking = subprocess.Popen([*COMMAND, "purge", "--older-than", "0s"], stdin=theirs, stdout=said, stderr=said)
    try:
        outlast.until(lambda: "[y/N]" in log.read_text(), "the question")
        asking.send_signal(signal.SIGINT)
        assert asking.wait(10) == 130
    finally:
        asking.kill()
        os.close(ours)
        os.close(theirs)
    assert "Traceback" not in log.read_text()


def test_a_reader_that_has_seen_enough_is_no_error(outlast: Outlast):
    outlast("start", "shop:app", "slow", "--id", "nap", "--arg", "60")
    command = f"{' '.join(COMMAND)} --json show nap | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr
