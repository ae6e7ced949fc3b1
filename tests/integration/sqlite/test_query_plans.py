"""Claim, due, purge and find read the index that is meant for them, and cost the same however long the history is.

What the store really runs is recorded, explained by SQLite, and counted in steps of its virtual machine: a count is the
same on every machine and every day, a time is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast.model.status import Status
from outlast.store.port import DueKind, Filter, Query, Store
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock
from tests.integration.sqlite.history import DUE, NOW_MS, YEAR_MS, build
from tests.integration.sqlite.tools import NS, claim_request, dump, opened

Statement = tuple[str, Any]
Call = Callable[[SqliteStore], Awaitable[Any]]

HARMLESS_SCANS = ("SCAN hop", "SCAN holder", "SCAN json_each", "SCAN CONSTANT ROW", "SCAN (subquery")
"""Not tables: the rows of a recursive query, the values of a list, what a subquery gave."""

NO_SORT = ""


class Watch:
    """Every statement that a store runs: its text and values, and the steps that it took."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.steps = 0
        self.connections: list[apsw.Connection] = []

    def __call__(self, connection: apsw.Connection) -> None:
        self.connections.append(connection)
        connection.exec_trace = self._note
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)

    def _note(self, _: apsw.Cursor, sql: str, values: Any) -> bool:
        if sql.lstrip().upper().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
            self.statements.append((sql, values))
        return True

    def _count(self, event: dict[str, Any]) -> None:
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    async def of(self, call: Call, store: SqliteStore) -> list[Statement]:
        self.statements, self.steps = [], 0
        await call(store)
        statements, self.statements = self.statements, []
        assert statements
        return [
            (sql, values) for sql, values in statements if "outlast_clock" not in sql and "sqlite_schema" not in sql
        ]


def plan(path: Path, statement: Statement) -> list[str]:
    sql, values = statement
    connection = apsw.Connection(str(path))
    rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    connection.close()
    return [str(row[3]) for row in rows]


# ---- the files ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "long.db"
    build(path, finished=100_000, ready=10_000)
    return path


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No history, and the same ready work."""
    path = tmp_path_factory.mktemp("history") / "empty.db"
    build(path, finished=0, ready=10_000)
    return path


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.db"
    build(path, finished=300, ready=100)
    return path


@pytest.fixture
def million_file(tmp_path: Path) -> Iterator[Path]:
    """Built in about half a minute without the payloads and attempts of the ended, which claim and due never read."""
    path = tmp_path / "million.db"
    build(path, finished=1_000_000, ready=100_000, bare=True)
    yield path
    path.unlink()


@pytest.fixture
def empty_beside_million(tmp_path: Path) -> Path:
    path = tmp_path / "beside.db"
    build(path, finished=0, ready=100_000, bare=True)
    return path


def clock() -> ManualClock:
    return ManualClock(NOW_MS + YEAR_MS // 2)


def claiming(store: Store, claim_id: str = "measured") -> Awaitable[Any]:
    return store.claim(claim_request(claim_id, limit=10, worker="measured"))


# ---- plans --------------------------------------------------------------------------------------------------------

LEASE, READY = "outlast_execution_lease", "outlast_execution_ready"
TAGGED = Filter(namespace=NS, tag=("customer", "ada7"))

CALLS: dict[str, tuple[Call, set[str], str]] = {
    # what is called: its indexes, and the sort that it may need
    "claim": (claiming, {READY, LEASE}, "ORDER BY"),  # of a repeated claim's own handful: claim_again.sql
    "renew": (lambda s: s.renew("dead-1", lease_ttl_ms=1_000), {LEASE}, NO_SORT),
    "held": (lambda s: s.held("dead-1", frozenset({0})), {LEASE}, NO_SORT),
    "due leases": (lambda s: s.due(DueKind.LEASE, limit=5), {LEASE}, "ORDER BY"),  # of what lapsed sessions hold
    "due timeouts": (lambda s: s.due(DueKind.TIMEOUT, limit=5), {"outlast_execution_timeout"}, NO_SORT),
    "due deadlines": (lambda s: s.due(DueKind.DEADLINE, limit=5), {"outlast_execution_deadline"}, NO_SORT),
    "due timers": (lambda s: s.due(DueKind.TIMER, limit=5), {"outlast_execution_timer"}, NO_SORT),
    "due retention": (lambda s: s.due(DueKind.RETENTION, limit=5), {"outlast_execution_retention"}, NO_SORT),
    "due outbox": (lambda s: s.due(DueKind.OUTBOX, limit=5), {"outlast_outbox_due"}, NO_SORT),
    "due sessions": (lambda s: s.due(DueKind.SESSION, limit=5), {"outlast_session_expiry", LEASE}, NO_SORT),
    "due flows": (lambda s: s.due(DueKind.FLOW, limit=5), {"outlast_flow_retention"}, NO_SORT),
    "due cancels": (lambda s: s.due(DueKind.CANCEL, limit=5), {"outlast_flow_cancel"}, NO_SORT),
    "due summaries": (lambda s: s.due(DueKind.SUMMARY, limit=5), {"outlast_summary_check"}, NO_SORT),
    "due dependencies": (lambda s: s.due(DueKind.DEPENDENCY, limit=5), {"outlast_summary_depend"}, NO_SORT),
    "due siblings": (lambda s: s.due(DueKind.SIBLING, limit=5), {"outlast_member_siblings"}, NO_SORT),
    "due timers, filtered": (
        lambda s: s.due(DueKind.TIMER, limit=5, filter=TAGGED),
        {"outlast_execution_timer", "outlast_tag"},
        NO_SORT,
    ),
    "purge by retention": (lambda s: s.purge(limit=5), {"outlast_execution_retention"}, NO_SORT),
    "purge by age": (
        lambda s: s.purge(finished_before=NOW_MS + 50, limit=5),
        {"outlast_execution_finished"},
        NO_SORT,
    ),
    "purge, filtered": (
        lambda s: s.purge(finished_before=NOW_MS + 500, limit=5, filter=TAGGED),
        {"outlast_execution_finished", "outlast_tag"},
        NO_SORT,
    ),
    "find": (lambda s: s.find(Query(namespace=NS)), {"outlast_execution_created"}, NO_SORT),
    "find by time": (
        lambda s: s.find(Query(namespace=NS, created_from=NOW_MS + 5, created_before=NOW_MS + 500)),
        {"outlast_execution_created"},
        NO_SORT,
    ),
    "find, next page": (
        lambda s: s.find(Query(namespace=NS, after=f"{NOW_MS + 500}:finished-000000500")),
        {"outlast_execution_created"},
        NO_SORT,
    ),
    "find by status": (
        lambda s: s.find(Query(namespace=NS, status=frozenset({Status.SUCCEEDED}))),
        {"outlast_execution_status"},
        NO_SORT,
    ),
    "find by status, next page": (
        lambda s: s.find(
            Query(namespace=NS, status=frozenset({Status.SUCCEEDED}), after=f"{NOW_MS + 500}:finished-000000500")
        ),
        {"outlast_execution_status"},
        NO_SORT,
    ),
    "find by workflow": (
        lambda s: s.find(Query(namespace=NS, workflow="checkout")),
        {"outlast_execution_workflow"},
        NO_SORT,
    ),
    "find by id": (lambda s: s.find(Query(namespace=NS, id_prefix="finished-00000001")), {"PRIMARY KEY"}, "ORDER BY"),
    "find by a tag that few have": (
        lambda s: s.find(Query(namespace=NS, tags={"customer": "ada7"})),
        {"outlast_tag_value", "PRIMARY KEY"},
        "ORDER BY",
    ),
    "find by a tag that many have": (
        lambda s: s.find(Query(namespace=NS, tags={"kind": "order"})),
        {"outlast_tag_value", "outlast_execution_created"},
        NO_SORT,
    ),
    "find those that are held": (
        lambda s: s.find(Query(namespace=NS, status=frozenset({Status.ACTIVE}))),
        {LEASE},
        "ORDER BY",  # of what workers hold now
    ),
    "count those that are held": (
        lambda s: s.count(Query(namespace=NS, status=frozenset({Status.ACTIVE}))),
        {LEASE},
        NO_SORT,
    ),
    "find by several statuses": (
        lambda s: s.find(Query(namespace=NS, status=frozenset({Status.READY, Status.FAILED}))),
        {"outlast_execution_status"},
        NO_SORT,
    ),
    "find by several statuses, some held": (
        lambda s: s.find(Query(namespace=NS, status=frozenset({Status.READY, Status.ACTIVE}))),
        {"outlast_execution_status", LEASE},
        "ORDER BY",
    ),
    "count by several statuses": (
        lambda s: s.count(Query(namespace=NS, status=frozenset({Status.READY, Status.ACTIVE}))),
        {"outlast_execution_status", LEASE},
        NO_SORT,
    ),
    "find by tag and status": (
        lambda s: s.find(Query(namespace=NS, tags={"customer": "ada7"}, status=frozenset({Status.READY}))),
        {"outlast_tag_value", "PRIMARY KEY"},
        "ORDER BY",
    ),
    "count by a tag": (
        lambda s: s.count(Query(namespace=NS, tags={"kind": "order"}, status=frozenset({Status.READY}))),
        {"outlast_tag_value"},
        NO_SORT,
    ),
    "count by status": (
        lambda s: s.count(Query(namespace=NS, status=frozenset({Status.READY}))),
        {"COVERING INDEX outlast_execution_status"},
        NO_SORT,
    ),
}


@pytest.mark.parametrize("what", CALLS)
async def test_plan(long_file: Path, what: str):
    call, indexes, sort = CALLS[what]
    watch = Watch()
    async with opened(long_file, clock=clock(), migrated=False, on_connect=watch) as store:
        statements = await watch.of(call, store)
    plans = {statement[0]: plan(long_file, statement) for statement in statements}
    lines = [line for plan_ in plans.values() for line in plan_]
    told = "\n\n".join(f"{sql}\n" + "\n".join(f"    {line}" for line in plan_) for sql, plan_ in plans.items())
    assert not [line for line in lines if line.startswith("SCAN") and not line.startswith(HARMLESS_SCANS)], told
    for index in indexes:
        assert any(index in line for line in lines), f"{index} is not used:\n{told}"
    sorts = [line for line in lines if "TEMP B-TREE" in line]
    assert not [line for line in sorts if not sort or sort not in line], told


async def test_pages_are_the_same_whatever_the_plan(small_file: Path, monkeypatch: pytest.MonkeyPatch):
    """Newest first and complete: by rare and common tags, by one and by several statuses."""
    tags: dict[str, set[tuple[str, str]]] = {}
    for _, execution, tag, value in dump(small_file)["outlast_tag"]:
        tags.setdefault(execution, set()).add((tag, value))
    asked: list[dict[str, Any]] = [
        {"tags": {"customer": "ada7"}},
        {"tags": {"kind": "order", "customer": "ada7"}},
        {"tags": {"kind": "order"}, "status": frozenset({Status.SUCCEEDED, Status.READY})},
        {"status": frozenset({Status.SUCCEEDED, Status.READY, Status.CANCELLED})},
        {"status": frozenset({Status.ACTIVE})},
        {"status": frozenset({Status.ACTIVE}), "workflow": "checkout"},
        {"status": frozenset({Status.SUCCEEDED, Status.ACTIVE})},
        {"status": frozenset(Status)},
    ]
    async with opened(small_file, clock=clock(), migrated=False) as store:
        everything = (await store.find(Query(namespace=NS, limit=1_000))).executions
        for conditions in asked:
            wanted, status = conditions.get("tags", {}), conditions.get("status", frozenset(Status))
            workflow = conditions.get("workflow")
            expected = [
                e.id
                for e in everything
                if e.status in status and wanted.items() <= tags.get(e.id, set()) and workflow in (None, e.workflow)
            ]
            assert expected
            for few in (1, 5_000):
                monkeypatch.setattr("outlast.store.sqlite.reading.FEW", few)
                found: list[str] = []
                after: str | None = None
                while True:
                    page = await store.find(Query(namespace=NS, limit=7, after=after, **conditions))
                    found += [e.id for e in page.executions]
                    after = page.cursor
                    if after is None:
                        break
                assert found == expected
                assert await store.count(Query(namespace=NS, **conditions)) == len(expected)


# ---- costs --------------------------------------------------------------------------------------------------------

COSTS: dict[str, Call] = {
    "claim": claiming,
    **{f"due {kind}": (lambda s, kind=kind: s.due(kind, limit=5)) for kind in DueKind},
    **{f"due {kind}, a whole page": (lambda s, kind=kind: s.due(kind, limit=1_000)) for kind in DueKind},
    "renew": lambda s: s.renew("dead-1", lease_ttl_ms=1_000),
    "held": lambda s: s.held("dead-1", frozenset({0})),
    "find those that are held": lambda s: s.find(Query(namespace=NS, status=frozenset({Status.ACTIVE}))),
    "count those that are held": lambda s: s.count(Query(namespace=NS, status=frozenset({Status.ACTIVE}))),
}


async def steps(path: Path, what: str) -> int:
    watch = Watch()
    async with opened(path, clock=clock(), migrated=False, on_connect=watch) as store:
        await watch.of(COSTS[what], store)
        return watch.steps


@pytest.mark.parametrize("what", COSTS)
async def test_cost_does_not_grow_with_history(long_file: Path, empty_file: Path, what: str):
    long, empty = await steps(long_file, what), await steps(empty_file, what)
    assert long <= 1.5 * empty, f"{what}: {long:,} steps with history, {empty:,} without"


async def test_what_is_measured_finds_its_work(long_file: Path):
    """Otherwise a cheap answer would be an empty one."""
    async with opened(long_file, clock=clock(), migrated=False) as store:
        assert len((await claiming(store, "another")).executions) == 10
        for kind in DueKind:
            due = await store.due(kind, limit=5)
            assert len(due.items) == 5, kind
            assert due.depth >= DUE - 5, kind


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("a million executions")
async def test_cost_at_a_million_finished_and_a_hundred_thousand_ready(million_file: Path, empty_beside_million: Path):
    ratios = {what: await steps(million_file, what) / await steps(empty_beside_million, what) for what in COSTS}
    assert max(ratios.values()) <= 1.5, ratios
    print({what: round(ratio, 3) for what, ratio in ratios.items()})
