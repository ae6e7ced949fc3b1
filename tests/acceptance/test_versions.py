"""Code that changes under running executions: versions side by side, and a rolling deploy."""

import functools
import inspect
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.testing import Harness, harness, replay_every_await


def versioned(version: str) -> tuple[App, Any]:
    """`checkout` of one version only: it waits for its delay, then says which version ran."""
    app = App("sqlite:///nowhere.db")

    @app.step
    async def charge() -> str:
        return f"charged by {version}"

    @app.workflow(name="checkout", version=version)
    async def checkout() -> str:
        return await charge()

    return app, checkout


def both() -> tuple[App, Any, Any]:
    app = App("sqlite:///nowhere.db")

    @app.step
    async def charge(version: str) -> str:
        return f"charged by {version}"

    @app.workflow(name="checkout", version="1")
    async def checkout_1() -> str:
        return await charge("1")

    @app.workflow(name="checkout", version="2")
    async def checkout() -> str:
        return await charge("2")

    return app, checkout_1, checkout


async def test_two_versions_of_a_name_live_side_by_side():
    app, old, new = both()
    async with harness(app):
        assert (await old(), await new()) == ("charged by 1", "charged by 2")
        assert {info.version for info in await app.find(workflow="checkout")} == {"1", "2"}
    assert app.registry.newest("checkout") is new


async def test_a_version_is_pinned_at_the_start():
    app, old, _ = both()
    async with harness(app) as h:
        handle = await old.options(delay="1d").start()
        await h.clock.advance("1d")
        assert await handle.result() == "charged by 1"


async def reason(h: Harness, handle: Any) -> tuple[str, str | None]:
    info = await h.info(handle)
    return str(info.status), info.reason


async def test_without_a_worker_of_its_version_an_execution_waits_with_a_reason():
    old_app, old = versioned("1")
    new_app, new = versioned("2")
    async with harness(old_app) as h:
        waiting = await old.options(delay="1h", id="old").start()
        await h.deploy(new_app)
        await h.stop(old_app)  # too early
        await h.clock.advance("2h")
        assert await new() == "charged by 2"
        assert await reason(h, waiting) == ("ready", "version")
        assert [(info.id, info.reason) for info in await old_app.find(status="ready")] == [("old", "version")]
        await h.restart()
        assert await waiting.result() == "charged by 1"


async def test_a_rolling_deploy_lets_each_finish_on_the_version_that_it_began_with():
    """Version 1 alone; then both, while the old worker is still there; then both without it; then version 2 alone."""
    first_app, first = versioned("1")
    both_app, _, second = both()
    last_app, last = versioned("2")
    async with harness(first_app, auto_advance=False) as h:
        old = [await first.options(delay=f"{hours}h").start() for hours in range(1, 11)]
        await h.clock.advance("3h")
        await h.deploy(both_app)
        new = [await second.options(delay=f"{hours}h").start() for hours in range(1, 6)]
        await h.clock.advance("1h")
        await h.stop(first_app)
        await h.clock.advance("3h")
        assert [await handle.result() for handle in old[:7]] == ["charged by 1"] * 7
        assert (await h.info(old[7])).status == "blocked"
        await h.deploy(last_app)
        await h.stop(both_app)  # too early: three of version 1 are left
        new += [await last.options(delay="1h").start()]
        await h.clock.advance("1d")
        assert [await handle.result() for handle in new] == ["charged by 2"] * 6
        assert [await reason(h, handle) for handle in old[7:]] == [("ready", "version")] * 3
        assert await first_app.count(status=["failed", "expired", "cancelled"]) == 0
        await h.restart()
        await h.settle()
        assert [await handle.result() for handle in old[7:]] == ["charged by 1"] * 3
        assert {info.version for info in await first_app.find(status="succeeded")} == {"1", "2"}


async def test_a_missing_capability_is_a_reason_too():
    app, checkout = versioned("1")
    async with harness(app) as h:
        handle = await checkout.options(requires={"gpu"}).start()
        assert await reason(h, handle) == ("ready", "capability:gpu")


async def test_what_is_shown_as_a_reason_is_found_and_counted_by_it():
    app, checkout = versioned("1")
    new_app, _ = versioned("2")
    async with harness(app, auto_advance=False, capabilities=["eu"]) as h:
        for n in range(5):
            await checkout.options(id=f"gpu-{n}", requires={"gpu", "eu"}).start()
            await h.clock.advance("1s")
        await checkout.options(id="later", delay="1h").start()
        await h.settle()
        gpu = "capability:gpu"
        found = await app.find(reason=gpu, limit=2)
        assert [info.id for info in found] == ["gpu-4", "gpu-3"]
        assert {info.reason for info in found} == {gpu}
        assert [info.id for info in await app.find(reason=gpu, after=found[-1].cursor)] == ["gpu-2", "gpu-1", "gpu-0"]
        assert await app.count(reason=gpu, workflow="checkout") == await app.count(reason=gpu, status="ready") == 5
        assert await app.count(reason="capability:eu") == await app.count(reason=gpu, status="suspended") == 0
        assert await app.count(reason="version") == 0
        await h.deploy(new_app)
        await h.stop(app)
        assert await app.count(reason="version") == 5
        assert [info.id for info in await app.find(reason="version", limit=1)] == ["gpu-4"]


async def test_with_no_worker_at_all_there_is_no_reason_but_that():
    app, checkout = versioned("1")
    async with harness(app, auto_advance=False) as h:
        await h.stop()
        await h.clock.advance("1m")
        assert await reason(h, await checkout.start()) == ("ready", None)


# ---- patches ------------------------------------------------------------------------------------------------------


def is_patched() -> bool:
    return outlast.patched("fraud-check")


def shop(code: str = "as it was") -> tuple[App, Any]:
    """A deploy of `checkout`: as it was, with a patch, or with its steps in another order."""
    app = App("sqlite:///nowhere.db")

    @app.step
    async def charge() -> str:
        return "charged"

    @app.step
    async def check_fraud() -> str:
        return "checked"

    @app.step(retry=Retry(max_attempts=2, initial="1h", jitter=0.0))
    async def ship() -> str:
        if not shipping:
            shipping.append("tried")
            raise ConnectionError("no ship")
        return "shipped"

    if code == "as it was":

        @app.workflow
        async def checkout() -> list[str]:
            return [await charge(), await ship()]

    elif code == "patched":

        @app.workflow
        async def checkout() -> list[str]:
            done = [await charge(), await ship()]
            if outlast.patched("fraud-check"):
                done.append(await check_fraud())
            return done

    elif code == "patched in a function":

        @app.workflow
        async def checkout() -> list[str]:
            done = [await charge(), await ship()]
            if is_patched():
                done.append(await check_fraud())
            return done

    else:

        @app.workflow
        async def checkout() -> list[str]:
            return [await ship(), await charge()]

    return app, checkout


shipping: list[str] = []


@pytest.fixture(autouse=True)
def _no_ship_at_first():
    shipping.clear()


async def test_a_patched_path_is_taken_by_new_executions_only():
    old_app, old = shop()
    new_app, new = shop("patched")
    async with harness(old_app) as h:
        begun_before = await old.start()
        await h.settle()
        assert (await h.info(begun_before)).reason == "retry"  # in the middle, before the patched place
        await h.deploy(new_app)
        await h.stop(old_app)
        begun_after = await new.start()
        assert await begun_before.result() == ["charged", "shipped"]
        assert await begun_after.result() == ["charged", "shipped", "checked"]


@pytest.mark.parametrize("code", ["patched", "patched in a function"])
async def test_a_patched_execution_stays_patched_through_every_crash(code: str):
    _, checkout = shop(code)
    shipping.append("has come")
    found = await replay_every_await(checkout)
    assert found.outcome == ["charged", "shipped", "checked"]
    assert found.crashes >= 8


async def test_a_new_execution_that_waits_before_the_patch_takes_it():
    app, checkout = shop("patched")
    async with harness(app) as h:
        handle = await checkout.start()
        await h.settle()
        assert (await h.info(handle)).status == "suspended"
        await h.crash()
        await h.restart()
        assert await handle.result() == ["charged", "shipped", "checked"]


def test_a_patch_is_of_a_workflow_s_code():
    with pytest.raises(outlast.WrongPlace, match="it is for a workflow's own code"):
        outlast.patched("fraud-check")


# ---- divergence ---------------------------------------------------------------------------------------------------


async def test_a_diverging_replay_waits_with_reason_version_and_goes_on_after_a_fixed_deploy():
    app, checkout = shop()
    broken_app, _ = shop("in another order")
    fixed_app, _ = shop()
    async with harness(app, auto_advance=False) as h:
        handle = await checkout.start()
        await h.settle()
        await h.stop()
        await h.deploy(broken_app)
        await h.clock.advance("1h")
        info = await h.info(handle)
        assert (info.status, info.reason) == ("suspended", "version")
        assert [one.id for one in await app.find(reason="version")] == [handle.id]
        await h.stop(broken_app)
        await h.deploy(fixed_app)
        await h.settle()
        assert await handle.result() == ["charged", "shipped"]


async def test_a_rehearsal_finds_a_divergence_and_changes_nothing():
    app, checkout = shop()
    broken_app, _ = shop("in another order")
    async with harness(app, auto_advance=False) as h:
        handle = await checkout.start()
        await h.settle()
        before = await handle.journal()
        assert await h.replay(handle) is None
        found = await h.replay(handle, app=broken_app)
        assert found is not None
        assert (found.expected, found.actual) == ("step 'charge'", "step 'ship'")
        assert "test_versions.py:" in found.line
        assert await handle.journal() == before
        await h.clock.advance("1h")
        assert await handle.result() == ["charged", "shipped"]


async def test_steps_that_are_recorded_in_another_order_are_named_with_their_line():
    def ordered(*names: str) -> tuple[App, Any]:
        app = App("sqlite:///of-the-user.db")

        @app.step
        async def charge() -> str:
            return "charged"

        @app.step
        async def ship() -> str:
            return "shipped"

        steps = {"charge": charge, "ship": ship}

        @app.workflow(name="checkout")
        async def checkout() -> list[str]:
            done = [await steps[name]() for name in names]
            await outlast.sleep("1h")
            return done

        return app, checkout

    app, checkout = ordered("charge", "ship")
    turned, _ = ordered("ship", "charge")
    async with harness(app, auto_advance=False) as h:
        handle = await checkout.start()
        found = await h.replay(handle, app=turned)
        assert found is not None
        assert (found.expected, found.actual) == ("step 'charge'", "step 'ship'")
        assert "test_versions.py:" in found.line


# ---- arguments ----------------------------------------------------------------------------------------------------


async def takes_an_order(order: str) -> str:
    return order


async def takes_more(order: str, currency: str) -> str:
    return order + currency


async def takes_another_name(order_id: str) -> str:
    return order_id


async def takes_another_type(order: int) -> str:
    return str(order)


async def takes_more_if_given(order: str, currency: str = "EUR") -> str:
    return order


def with_parameters(like: Any, *, is_async: bool = True) -> tuple[App, Any, list[str]]:
    """A deploy of `checkout` that takes what `like` takes, and what its undos have undone."""
    app = App("sqlite:///nowhere.db")
    undone: list[str] = []

    @app.step
    async def release() -> None:
        undone.append("released")

    async def sleep_first(*args: Any, **kwargs: Any) -> str:
        await outlast.compensate(release)
        await outlast.sleep("1h")
        return await like(*args, **kwargs)

    def sleep_in_a_thread(*args: Any, **kwargs: Any) -> str:
        outlast.compensate(release)
        outlast.sync.sleep("1h")
        return "tea"

    fn: Any = functools.wraps(like)(sleep_first if is_async else sleep_in_a_thread)
    fn.__signature__ = inspect.signature(like, eval_str=True)
    del fn.__wrapped__  # a def around an async def would be refused
    return app, app.workflow(fn, name="checkout"), undone


CHANGES = [
    (takes_more, "not take them: checkout requires 'currency', which this execution was started without"),
    (takes_another_name, "not take them: checkout does not take 'order', which this execution was started with"),
    (takes_another_type, "not take them: checkout: order: Expected `int`, got `str`; it should be int"),
]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("like, actual", CHANGES)
async def test_code_that_does_not_take_the_arguments_any_more_suspends_with_reason_version(
    like: Any, actual: str, is_async: bool, caplog: pytest.LogCaptureFixture
):
    app, checkout, undone = with_parameters(takes_an_order, is_async=is_async)
    broken_app, _, also_undone = with_parameters(like, is_async=is_async)
    fixed_app, _, _ = with_parameters(takes_more_if_given, is_async=is_async)
    async with harness(app, auto_advance=False) as h:
        begun = await checkout.start("tea")
        await h.settle()
        await h.stop()
        not_begun = await checkout.start("tea")
        for handle in (begun, not_begun):
            found = await h.replay(handle, app=broken_app)
            assert found is not None
            assert (found.expected, found.actual) == ("its arguments", actual)
        await h.deploy(broken_app)
        await h.clock.advance("1h")
        for handle in (begun, not_begun):
            assert await reason(h, handle) == ("suspended", "version")
        assert f"recorded its arguments, but the code now does {actual}" in caplog.text
        assert [record.levelname for record in caplog.records].count("ERROR") == 2  # each is tried once
        await h.stop(broken_app)
        await h.deploy(fixed_app)
        await h.clock.advance("1h")
        assert [await handle.result() for handle in (begun, not_begun)] == ["tea", "tea"]
        assert undone == also_undone == []


async def test_a_parent_waits_for_a_child_whose_parameter_was_renamed():
    def family(like: Any) -> tuple[App, Any, list[str]]:
        app, ship, undone = with_parameters(like)

        @app.workflow
        async def parent() -> str:
            await outlast.compensate(app.step(undo, name="undo"), "parent")
            return await ship("tea")

        async def undo(who: str) -> None:
            undone.append(who)

        return app, parent, undone

    app, parent, _ = family(takes_an_order)
    broken_app, _, undone = family(takes_another_name)
    async with harness(app, auto_advance=False) as h:
        handle = await parent.start()
        await h.settle()
        await h.stop()
        await h.deploy(broken_app)
        await h.clock.advance("1h")
        [child] = await app.find(workflow="checkout")
        assert await reason(h, handle) == ("suspended", f"child:{child.id}")
        assert (child.status, child.reason, undone) == ("suspended", "version", [])


async def test_code_that_does_not_take_the_arguments_leaves_its_patches_to_the_code_that_does():
    def patched(takes: Any) -> tuple[App, Any]:
        app = App("sqlite:///nowhere.db")

        @app.workflow
        async def buy(order: takes) -> bool:  # pyright: ignore[reportInvalidTypeForm]
            return outlast.patched("fraud-check")

        return app, buy

    app, buy = patched(str)
    broken_app, _ = patched(int)
    async with harness(app, auto_advance=False) as h:
        await h.stop()
        handle = await buy.start("tea")
        await h.deploy(broken_app)
        await h.settle()
        assert await reason(h, handle) == ("suspended", "version")
        assert await handle.journal() == []
