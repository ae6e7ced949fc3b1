"""Half-finished work is copied from each store to each other one, and finishes there: no step twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outlast.copying import Copying
from outlast.copying.records import NOT_COPIED, same
from outlast.errors import CopyBusy
from outlast.machine.changes import Changes, Delete, Insert
from outlast.model.completion import Completion
from outlast.model.outbox import Delivery
from outlast.model.session import Session
from outlast.model.status import Status
from outlast.store.port import Store
from outlast.testing.conformance.actors import changing, commit_one
from outlast.testing.conformance.samples import samples
from tests.acceptance.conftest import sessions_run_out, status_is
from tests.integration.copying.places import ENDS, URLS, Shop, end, ends, everything, leaks_of, opened

pytestmark = pytest.mark.slow

FEW = "valkey in three parts"
KINDS = [kind for kind in URLS if kind != FEW]
PAIRS = [
    *((one, other) for one in KINDS for other in KINDS if one != other or one == "sqlite"),
    *(("valkey", FEW), (FEW, "valkey")),
]


def pair(source: str, target: str) -> Any:
    marks = [pytest.mark.xdist_group("valkey cluster")] if "cluster" in (source, target) else []
    return pytest.param(source, target, marks=marks, id=f"{source} to {target}")


async def leave_half_done(shop: Shop) -> None:
    """Ended, failed, waiting, sleeping, not begun; and one that runs while its process dies."""
    app = shop.app
    async with app:
        opened_app = app._opened
        assert opened_app is not None
        assert await shop.short.options(id="short", tags={"colour": "red"}).start("short") is not None
        await app.execution("short").result()
        failing = await shop.fails.options(id="fails").start("no")
        with pytest.raises(ValueError, match="no"):
            await failing.result()
        order = await shop.order.options(id="order", tags={"colour": "blue"}).start("order")
        await shop.sleeps.options(id="sleeps").start("sleeps")
        await shop.hangs.options(id="hangs").start("hangs")
        await shop.short.options(id="later", delay="1500ms").start("later")
        await asyncio.wait_for(shop.stuck.wait(), 20)
        await status_is(order, Status.SUSPENDED)
        await status_is(app.execution("order/parcel"), Status.SUSPENDED)
        for word in ("one", "two"):
            await order.send("note", word)
        await opened_app.abandon()
        app._opened = None


async def leaves(store: Store, worker: str) -> None:
    sessions = [record for record in await store.scan(Session.KIND, ()) if isinstance(record, Session)]
    for session in sessions:
        if session.worker == worker:
            gone = Changes(
                id="gone", partition=session.partition, anchors=(session.key,), writes=(Delete(session.key),)
            )
            await commit_one(store, gone)


async def finish(shop: Shop) -> None:
    app = shop.app
    async with app:
        order = app.execution("order")
        await order.resolve("approval", "yes")
        await order.send("note", "three")
        await app.execution("order/parcel").send("go", "now")
        async with asyncio.timeout(30):
            assert await order.result() == ["order: taken", "yes", "one", "two", "three", "order: sent"]
            assert await app.execution("sleeps").result() == "sleeps: up"
            assert await app.execution("hangs").result() == "hangs: ended"
            assert await app.execution("later").result() == "later: done"
        assert await app.execution("short").result() == "short: done"
        assert [frame.value async for frame in order.frames()] == [{"said": "order was taken"}]
        assert (await order.info()).tags == {"colour": "blue"}


@pytest.mark.parametrize("source, target", [pair(*names) for names in PAIRS])
async def test_half_finished_work_goes_on_in_the_other_store(source: str, target: str, tmp_path: Path):
    here, there = await URLS[source](tmp_path), await URLS[target](tmp_path)
    ledger: Counter[str] = Counter()
    await leave_half_done(Shop(here, ledger))
    async with opened(here) as one, opened(there) as other:
        await one.renew("another", lease_ttl_ms=60_000)
        with pytest.raises(CopyBusy):
            await Copying(one, other).run()
        assert await everything(other) == {}
        await leaves(one, "another")
        await sessions_run_out(here)
        copied = await Copying(one, other).run()
        before, after = await everything(one), await everything(other)
        assert copied.records["execution"] == 7
        assert copied.records["frame"] == 2
        assert not copied.resumed
        kept = {key for key in before if key.kind != Delivery.KIND}
        assert {key for key in after if key.kind != Delivery.KIND} == kept
        assert all(same(before[key], after[key]) for key in kept)
        ends = [r.execution for r in await other.scan(Completion.KIND, ()) if isinstance(r, Completion)]
        assert sorted(ends) == ["fails", "short"]
        assert await Copying(one, other).run() != copied, "all of it is found there"
    ledger["let go"] = 1
    await finish(Shop(there, ledger))
    twice = {word: times for word, times in ledger.items() if times != 1}
    assert not twice
    assert ledger["hangs: begun"] == ledger["order: taken"] == 1
    assert leaks_of(there) == []


@pytest.mark.parametrize("source, target", [pair("sqlite", name) for name in KINDS])
async def test_a_record_of_every_kind_arrives(source: str, target: str, tmp_path: Path):
    async with opened(await URLS[source](tmp_path)) as one, opened(await URLS[target](tmp_path)) as other:
        every = [record for record in samples(0) if record.KIND not in NOT_COPIED]
        await commit_one(one, changing(one, "x", *[Insert(record) for record in every]))
        copied = await Copying(one, other).run()
        assert copied.records.keys() == {record.KIND for record in every}


@pytest.mark.parametrize("source, target", [pair(*names) for names in PAIRS])
async def test_completions_come_in_the_order_of_the_feed(source: str, target: str, tmp_path: Path):
    async with opened(await URLS[source](tmp_path)) as one, opened(await URLS[target](tmp_path)) as other:
        await end(one)
        await Copying(one, other).run()
        assert await ends(one) == await ends(other) == ENDS
