"""`replay` before a deploy says of an execution that waits what the workers of that deploy will do: go on with it, or
suspend it with reason `version`."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.testing import Harness, harness

ledger: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_refunded():
    ledger.clear()


Code = Callable[[Any], Awaitable[Any]]


def elsewhere() -> App:
    app = App("sqlite:///nowhere.db")

    @app.workflow
    async def ship() -> str:
        await outlast.sleep("1h")
        return "shipped"

    return app


def deploy(code: Code) -> App:
    app = elsewhere()

    @app.step
    async def charge() -> str:
        return "charged"

    @app.step
    async def check_fraud() -> str:
        return "checked"

    @app.step(name="refund", retry=Retry(max_attempts=1))
    async def refund() -> str:
        if "refunded" in ledger:
            return "refunded"
        ledger.append("refunded")
        raise ConnectionError("not yet")

    ship = app.registry.newest("ship")
    shop = SimpleNamespace(flow=app.flow, ship=ship, refund=refund, charge=charge, check_fraud=check_fraud)

    @app.workflow(name="checkout", retry=Retry(max_attempts=2, initial="1m", jitter=0.0))
    async def checkout() -> Any:
        return await code(shop)

    return app


def deploy_def(code: Callable[[Any], Any]) -> App:
    app = App("sqlite:///nowhere.db")

    @app.step
    def charge() -> str:
        return "charged"

    @app.workflow(name="checkout")
    def checkout() -> Any:
        return code(charge)

    return app


async def told_and_done(
    old: App, new: App, *, meanwhile: Callable[[Harness, Any], Awaitable[None]] | None = None
) -> tuple[list[str], str | None]:
    """What `replay` says of the new code while it waits, while it is held, and when it was woken; and the reason with
    which a worker of the new code leaves it."""
    told: list[str] = []
    async with harness(old, auto_advance=False) as h:
        handle = await old.registry.newest("checkout").options(id="order-1").start()

        async def replay() -> None:
            found = await h.replay(handle, app=new)
            told.append("as recorded" if found is None else f"{found.expected} -> {found.actual}")
            assert await h.replay(handle) is None

        await h.settle()
        if meanwhile is not None:
            await meanwhile(h, handle)
        assert (await h.info(handle)).status == "suspended"
        await replay()
        await handle.hold()
        await replay()
        await handle.release()
        await h.stop()
        await h.deploy(elsewhere())  # wakes it, and does not have it
        await handle.send("approved", True)
        await handle.resolve("paid", True)
        await h.clock.advance("2h")
        assert (await h.info(handle)).status == "ready"
        await replay()
        await h.deploy(new)
        await h.settle()
        return told, (await h.info(handle)).reason


# ---- what it waits in, and what becomes of it ---------------------------------------------------------------------


async def sleeps(shop: Any) -> str:
    await shop.charge()
    await outlast.sleep("1h", name="cool")
    return "done"


async def no_longer_sleeps(shop: Any) -> str:
    await shop.charge()
    return "done"


async def raises_instead(shop: Any) -> str:
    await shop.charge()
    raise KeyError("new bug")


async def sleeps_by_another_name(shop: Any) -> str:
    await shop.charge()
    await outlast.sleep("1h", name="rest")
    return "done"


async def receives_instead(shop: Any) -> str:
    await shop.charge()
    await outlast.receive("approved", bool)
    return "done"


async def receives_by_that_name(shop: Any) -> str:
    await shop.charge()
    await outlast.receive("cool", bool)
    return "done"


async def checks_before_it_sleeps(shop: Any) -> str:
    await shop.charge()
    await shop.check_fraud()
    await outlast.sleep("1h", name="cool")
    return "done"


async def sleeps_twice(shop: Any) -> str:
    await shop.charge()
    await outlast.sleep("1m", name="warm")
    await outlast.sleep("1h", name="cool")
    return "done"


async def sleeps_in_a_branch(shop: Any) -> str:
    await shop.charge()
    await asyncio.gather(outlast.sleep("1h", name="cool"), shop.check_fraud())
    return "done"


async def waits_for_what_is_not_durable(shop: Any) -> str:
    await shop.charge()
    await asyncio.get_running_loop().create_future()
    return "done"


async def sleeps_longer(shop: Any) -> str:
    await shop.charge()
    await outlast.sleep("3h", name="cool")
    return "done"


async def checks_after_it_has_slept(shop: Any) -> str:
    await sleeps(shop)
    return await shop.check_fraud()


async def raises_after_it_has_slept(shop: Any) -> str:
    await sleeps(shop)
    raise KeyError("new bug")


async def checks_beside_the_sleep(shop: Any) -> str:
    await shop.charge()
    check = asyncio.ensure_future(shop.check_fraud())
    await outlast.sleep("1h", name="cool")
    return await check


async def answers_while_it_sleeps(shop: Any) -> str:
    @outlast.update("hurry")
    def hurry() -> None:
        return None

    @outlast.query("state")
    def state() -> str:
        return "asleep"

    return await sleeps(shop)


async def receives(shop: Any) -> bool:
    return await outlast.receive("approved", bool)


async def receives_another_one(shop: Any) -> bool:
    return await outlast.receive("confirmed", bool)


async def checks_before_it_receives(shop: Any) -> bool:
    await shop.check_fraud()
    return await receives(shop)


async def receives_in_time(shop: Any) -> bool:
    return await outlast.receive("approved", bool, timeout="1d")


async def receives_in_a_patch(shop: Any) -> bool:
    if outlast.patched("fraud"):
        await shop.check_fraud()
    return await receives(shop)


async def awaits_payment(shop: Any) -> bool:
    return await outlast.deferred("paid", bool)


async def checks_before_payment(shop: Any) -> bool:
    await shop.check_fraud()
    return await awaits_payment(shop)


async def ships(shop: Any) -> str:
    return await shop.ship()


async def checks_once_it_is_sent(shop: Any) -> str:
    handle = await shop.ship.start()
    await shop.check_fraud()
    return await handle.result()


async def checks_before_it_ships(shop: Any) -> str:
    await shop.check_fraud()
    return await ships(shop)


async def ships_in_a_flow(shop: Any) -> Any:
    flow = shop.flow("parcels")
    flow.add("ship", shop.ship)
    return await (await flow.start()).result()


async def checks_when_the_flow_has_begun(shop: Any) -> Any:
    flow = shop.flow("parcels")
    flow.add("ship", shop.ship)
    started = await flow.start()
    await shop.check_fraud()
    return await started.result()


async def naps(shop: Any) -> str:
    await asyncio.sleep(3600)
    return "done"


async def receives_or_times_out(shop: Any) -> bool:
    async with asyncio.timeout(86_400):
        return await receives(shop)


async def checks_or_times_out(shop: Any) -> bool:
    async with asyncio.timeout(86_400):
        return await checks_before_it_receives(shop)


async def waits_for_both(shop: Any) -> tuple[None, bool]:
    return await asyncio.gather(outlast.sleep("1h", name="cool"), receives(shop))


async def waits_for_one_of_both(shop: Any) -> list[Any]:
    return await asyncio.gather(shop.check_fraud(), receives(shop))


EDITS = [
    (sleeps, no_longer_sleeps, "sleep 'cool' -> nothing: it returns"),
    (sleeps, raises_instead, "sleep 'cool' -> nothing: it raises KeyError: 'new bug'"),
    (sleeps, sleeps_by_another_name, "sleep 'cool' -> sleep 'rest'"),
    (sleeps, receives_instead, "sleep 'cool' -> receive 'approved'"),
    (sleeps, receives_by_that_name, "sleep 'cool' -> receive 'cool'"),
    (sleeps, checks_before_it_sleeps, "sleep 'cool' -> step 'check_fraud'"),
    (sleeps, sleeps_twice, "sleep 'cool' -> sleep 'warm'"),
    (sleeps, waits_for_what_is_not_durable, "sleep 'cool' -> nothing"),
    (sleeps, sleeps_longer, None),
    (sleeps, checks_after_it_has_slept, None),
    (sleeps, raises_after_it_has_slept, None),
    (sleeps, sleeps_in_a_branch, None),
    (sleeps, checks_beside_the_sleep, None),
    (sleeps, answers_while_it_sleeps, None),
    (receives, no_longer_sleeps, "receive 'approved' -> step 'charge'"),
    (receives, receives_another_one, "receive 'approved' -> receive 'confirmed'"),
    (receives, checks_before_it_receives, "receive 'approved' -> step 'check_fraud'"),
    (receives, receives_in_time, None),
    (receives, receives_in_a_patch, None),
    (receives_in_time, receives, None),
    (receives_in_time, checks_before_it_receives, "receive 'approved' -> step 'check_fraud'"),
    (awaits_payment, checks_before_payment, "deferred 'paid' -> step 'check_fraud'"),
    (ships, checks_before_it_ships, "start 'ship' -> step 'check_fraud'"),
    (ships, checks_once_it_is_sent, "child "),
    (naps, receives, "timer 'asyncio' -> receive 'approved'"),
    # It waits for more than one thing, or for a flow: what comes first is recorded when the code takes it.
    (receives_or_times_out, checks_or_times_out, None),
    (waits_for_both, waits_for_one_of_both, None),
    (ships_in_a_flow, checks_when_the_flow_has_begun, None),
    (answers_while_it_sleeps, sleeps_by_another_name, None),
]


@pytest.mark.parametrize("before, after, said", EDITS, ids=lambda one: getattr(one, "__name__", ""))
async def test_replay_says_what_the_workers_will_do(before: Code, after: Code, said: str | None):
    told, reason = await told_and_done(deploy(before), deploy(after))
    assert {one.startswith(said or "as recorded") for one in told} == {True}, told
    assert (reason == "version") == (said is not None)


def sleeps_in_a_thread(charge: Any) -> str:
    charge()
    outlast.sync.sleep("1h", name="cool")
    return "done"


def charges_twice_in_a_thread(charge: Any) -> str:
    charge()
    return sleeps_in_a_thread(charge)


def no_longer_sleeps_in_a_thread(charge: Any) -> str:
    return charge()


def charges_later_in_a_thread(charge: Any) -> str:
    sleeps_in_a_thread(charge)
    return charge()


EDITS_IN_A_THREAD = [
    (charges_twice_in_a_thread, "sleep 'cool' -> step 'charge', call 2"),
    (no_longer_sleeps_in_a_thread, "sleep 'cool' -> nothing: it returns"),
    (charges_later_in_a_thread, None),
]


@pytest.mark.parametrize("after, said", EDITS_IN_A_THREAD)
async def test_replay_says_what_the_workers_will_do_with_a_def_workflow(after: Any, said: str | None):
    told, reason = await told_and_done(deploy_def(sleeps_in_a_thread), deploy_def(after))
    assert set(told) == {said or "as recorded"}
    assert (reason == "version") == (said is not None)


# ---- what was cancelled, or tried again ---------------------------------------------------------------------------


async def sleeps_when_cancelled(shop: Any) -> str:
    await outlast.compensate(shop.charge)
    try:
        await outlast.sleep("1d")
    except asyncio.CancelledError:
        await outlast.sleep("1h", name="cool")
    return "done"


async def checks_when_cancelled(shop: Any) -> str:
    await outlast.compensate(shop.charge)
    try:
        await outlast.sleep("1d")
    except asyncio.CancelledError:
        await shop.check_fraud()
        await outlast.sleep("1h", name="cool")
    return "done"


async def checks_when_it_was_cancelled(shop: Any) -> str:
    await sleeps_when_cancelled(shop)
    return await shop.check_fraud()


CANCELLED_EDITS = [(checks_when_cancelled, "sleep 'cool' -> step 'check_fraud'"), (checks_when_it_was_cancelled, None)]


@pytest.mark.parametrize("after, said", CANCELLED_EDITS)
async def test_replay_says_what_the_workers_will_do_with_what_was_cancelled(after: Code, said: str | None):
    async def cancel(h: Harness, handle: Any) -> None:
        await handle.cancel()
        await h.settle()

    told, reason = await told_and_done(deploy(sleeps_when_cancelled), deploy(after), meanwhile=cancel)
    assert set(told) == {said or "as recorded"}
    assert (reason == "version") == (said is not None)


async def sleeps_after_a_refund(shop: Any) -> str:
    await shop.charge()
    await shop.refund()
    await outlast.sleep("1h", name="cool")
    return "done"


async def checks_after_a_refund(shop: Any) -> str:
    await shop.charge()
    await shop.refund()
    await shop.check_fraud()
    await outlast.sleep("1h", name="cool")
    return "done"


async def returns_after_a_refund(shop: Any) -> str:
    await shop.charge()
    await shop.refund()
    return "done"


async def checks_when_it_has_slept_after_a_refund(shop: Any) -> str:
    await sleeps_after_a_refund(shop)
    return await shop.check_fraud()


@pytest.mark.parametrize(
    "after", [checks_after_a_refund, returns_after_a_refund, checks_when_it_has_slept_after_a_refund]
)
async def test_replay_says_what_the_workers_will_do_with_what_was_tried_again(after: Code):
    async def try_again(h: Harness, handle: Any) -> None:
        await h.clock.advance("1m")

    told, reason = await told_and_done(deploy(sleeps_after_a_refund), deploy(after), meanwhile=try_again)
    assert {one != "as recorded" for one in told} == {reason == "version"}
