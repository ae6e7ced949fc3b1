"""Code that changes under running executions: versions side by side, and a rolling deploy."""

from typing import Any

from outlast import App
from outlast.testing import Harness, harness


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
