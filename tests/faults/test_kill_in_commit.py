"""A real process, killed by SIGKILL at every crash point of a commit in turn.

Whatever the point, whoever opens the file next finds the operation wholly undone or wholly done, and repeating it
verbatim ends in the same state. Meanwhile another process goes on writing to the same file.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.machine.facts import Complete
from outlast.model.execution import execution_key
from outlast.model.kinds import OF_EXECUTION
from outlast.store.port import Store
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints
from tests.integration.sqlite.processes import fact_of
from tests.integration.sqlite.tools import NS, claim_request, intact, opened, others, running, start

OPERATIONS = ("start", "claim", "step", "complete")


async def prepare(store: Store, what: str, execution_id: str) -> None:
    """The state in which the operation is due. A lane of its own: a claim takes this execution and no other."""
    async with running(store) as engine:
        if what != "start":
            await engine.tell(NS, execution_id, start(execution_id, lane=execution_id))
        if what in ("step", "complete"):
            await store.claim(claim_request(f"prepare {execution_id}", lanes=(execution_id,)))


async def operate(store: Store, what: str, execution_id: str) -> None:
    async with running(store) as engine:
        if what == "claim":
            await store.claim(claim_request(f"claim {execution_id}", lanes=(execution_id,)))
        else:
            told = await engine.tell(NS, execution_id, fact_of(what, execution_id))
            # Done before: by the store's word (it met its own record) or by the machine's (it has ended).
            assert told.applied or (told.refusal is not None and told.refusal.code == "already"), told


async def everything_of(store: Store, execution_id: str) -> Any:
    """All records of an execution; times, numbers and its name aside, so that two can be compared."""
    records = await store.load([execution_key(NS, execution_id)])
    for kind in OF_EXECUTION:
        records += await store.scan(kind.KIND, (NS, execution_id))
    return [_plain(record, execution_id) for record in records]


def _plain(record: Any, execution_id: str) -> Any:
    if record is None:
        return None
    aside = {*record.TIMES, "seq"}
    fields = {name: value for name, value in msgspec.to_builtins(record).items() if name not in aside}
    times = {name: getattr(record, name) is not None for name in record.TIMES}
    return msgspec.json.decode(msgspec.json.encode([fields, times]).replace(execution_id.encode(), b"ID"))


async def points_of(folder: Path, what: str) -> tuple[list[str], Any, Any]:
    """The crash points that the operation passes when nothing goes wrong, and the states before and after."""
    points = CrashPoints()
    async with opened(folder / f"{what}.db") as store:
        await prepare(store, what, "reference")
        before = await everything_of(store, "reference")
    # Another one, as the victim is: whoever claimed it knows its fence, and need not read it.
    async with opened(folder / f"{what}.db", points=points) as store:
        points.passed.clear()
        await operate(store, what, "reference")
        return list(points.passed), before, await everything_of(store, "reference")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", OPERATIONS)
async def test_killed_process_leaves_all_or_nothing(tmp_path: Path, what: str):
    path = tmp_path / "outlast.db"
    passed, before, after = await points_of(tmp_path, what)
    commit = next(number for number, name in enumerate(passed, start=1) if name.endswith(":commit"))
    assert commit < len(passed)  # the reply comes after it
    assert before != after
    async with opened(path) as store:
        for nth in range(1, len(passed) + 1):
            await prepare(store, what, f"x{nth}")
        with others(("write_until_told", path)) as [writer]:
            assert writer.line() == "here"
            writer.tell("go")
            for nth in range(1, len(passed) + 1):
                with others(("die_at", path, what, f"x{nth}", nth)) as [victim]:
                    status, out, err = victim.end()
                assert status == -signal.SIGKILL, (passed[nth - 1], out, err)
                found = await everything_of(store, f"x{nth}")
                assert found == (before if nth <= commit else after), f"killed at point {nth}, {passed[nth - 1]}"
                await operate(store, what, f"x{nth}")
                assert await everything_of(store, f"x{nth}") == after, f"repeated after point {nth}, {passed[nth - 1]}"
            writer.tell("stop")
            count, longest = writer.line().split()
            assert int(count) > len(passed)
            assert float(longest) < 5.0
    assert intact(path)


@pytest.mark.slow
async def test_killed_last_process_leaves_a_file_that_opens(tmp_path: Path):
    """Nobody else has the file open: the next one recovers the WAL."""
    path = tmp_path / "outlast.db"
    async with opened(path) as store:
        await prepare(store, "complete", "x")
    for nth in (2, 8, 11):  # before its first statement, between two, after its last
        with others(("die_at", path, "complete", "x", nth)) as [victim]:
            assert victim.end()[0] == -signal.SIGKILL
        assert intact(path)
    store = SqliteStore(str(path))
    await store.open()
    async with running(store) as engine:
        told = await engine.tell(NS, "x", Complete(change_id="complete x", epoch=1, output=b"7"))
        assert told.applied
    await store.close()
    assert intact(path)
