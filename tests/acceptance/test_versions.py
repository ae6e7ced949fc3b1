"""Code that changes under running executions: versions side by side, and a rolling deploy."""

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
