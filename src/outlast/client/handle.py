"""A hold on one execution: wait for it, look at it, tell it things."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from outlast.client import saying
from outlast.client.info import AttemptInfo, FrameInfo, Info, JournalInfo
from outlast.errors import InvalidInput, WrongPlace
from outlast.model.duration import Duration, to_ms
from outlast.runtime.attempts.current import inside
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.operations import tell
from outlast.runtime.operations.child import AwaitChild
from outlast.runtime.operations.wait import After

if TYPE_CHECKING:
    from outlast.authoring.host import Host
    from outlast.client.client import Client

R = TypeVar("R")
T = TypeVar("T")


def refuse_inside(what: str) -> None:
    """Its answer would not be the same in a replay."""
    if inside() is not None:
        raise WrongPlace(f"{what} was called in a workflow's own code, which is replayed: do it in a step")


class Handle(Generic[R]):
    """`handle = await checkout.start(order)`; `receipt = await handle.result()`.

    In a workflow's own code the same words are durable operations: what is told to another execution is journaled and
    delivered once; waiting for a child's result suspends.
    """

    def __init__(self, host: Host, execution_id: str, annotation: Any, *, start: str | None = None) -> None:
        self._host = host
        self._annotation = annotation
        self._start = start
        """The change id of the start, of a child that this code started."""
        self.id = execution_id

    @property
    def _client(self) -> Client:
        """Of the app as it is open now: a handle may outlive the opening that it came from."""
        return self._host.opened()

    @property
    def namespace(self) -> str:
        return self._client.namespace

    async def result(self, timeout: Duration | None = None) -> R:
        """What the workflow returned; raises what it raised.

        `ExecutionCancelled`, `ExecutionExpired` or `ExecutionSkipped` if it ended in such a way; `TimeoutError` after
        `timeout`: the execution goes on.
        """
        attempt = inside()
        if attempt is not None:
            return await attempt.call(self.awaited(timeout))
        if timeout is not None and not to_ms(timeout, what="timeout") and await self._client.has_ended(self.id):
            timeout = None  # nothing is waited for
        waiting = self._client.result(self.id, self._annotation)
        if timeout is None:
            return await waiting
        return await self._in_time(waiting, timeout, f"execution {self.id!r} did not end", "; it goes on")

    async def _in_time(self, waiting: Awaitable[T], timeout: Duration | None, what: str, then: str = "") -> T:
        if timeout is None:
            return await waiting
        try:
            seconds = to_ms(timeout, what="timeout") / 1_000
            limit = self._client.limit(seconds)
        except BaseException:
            if inspect.iscoroutine(waiting):
                waiting.close()
            raise
        try:
            async with limit:
                return await waiting
        except TimeoutError as error:
            if not limit.expired():
                raise  # it is what the workflow raised
            raise TimeoutError(f"{what} within {seconds:g} s{then}") from error

    def awaited(self, timeout: Duration | None) -> AwaitChild:
        limit = None if timeout is None else After(to_ms(timeout, what="timeout"))
        return AwaitChild(self.id, self._annotation, start=self._start, limit=limit)

    async def info(self) -> Info:
        """How it is now: `info.status`, why it waits (`info.reason`), what it failed with (`info.error`), what it was
        started with (`info.input()`)."""
        return await self._client.info(self.id)

    def frames(self, *, after: int = 0) -> AsyncIterator[FrameInfo]:
        """What it emits, from an offset on, as it comes: `async for frame in handle.frames(): print(frame.value)`.

        Ends when the execution has ended. It does not matter which worker emits, or how often that changes.
        """
        if isinstance(cast("object", after), bool) or not isinstance(cast("object", after), int) or after < 0:
            raise InvalidInput(f"after must be the offset of a frame, or 0 for all of them, not {after!r}")
        return self._client.frames(self.id, after)

    async def journal(self) -> list[JournalInfo]:
        """Its recorded operations, in the order in which they were recorded."""
        return await self._client.journal(self.id)

    async def attempts(self) -> list[AttemptInfo]:
        """All tries at running it, of every generation, the first one first."""
        return await self._client.attempts(self.id)

    async def send(self, name: str, value: Any = None, *, key: str | None = None) -> None:
        """Send it an event, kept until it is received. Events of one name are received in the order of their sending.

        The same `key` again is the same event, and sent once.
        """
        attempt = inside()
        if attempt is not None:
            await attempt.call(self.sending(name, value, key))
        else:
            await self._client.send(self.id, name, value, key)

    @overload
    async def update(
        self, name: str, value: Any = ..., *, type: type[T], key: str | None = ..., timeout: Duration | None = ...
    ) -> T: ...
    @overload
    async def update(
        self, name: str, value: Any = ..., *, type: Any = ..., key: str | None = ..., timeout: Duration | None = ...
    ) -> Any: ...
    async def update(
        self, name: str, value: Any = None, *, type: Any = Any, key: str | None = None, timeout: Duration | None = None
    ) -> Any:
        """Ask its code to change something (`@outlast.update(name)`); the answer, once that is accepted, durably.

        `UpdateRefused` if the code refuses it. The same `key` again is the same update, and has the same answer: also
        after a `TimeoutError`, which leaves it where it is.
        """
        refuse_inside("update")
        asked = self._client.update(self.id, name, value, key, type)
        return await self._in_time(asked, timeout, f"update {name!r} was not accepted")

    @overload
    async def query(self, name: str, value: Any = ..., *, type: type[T]) -> T: ...
    @overload
    async def query(self, name: str, value: Any = ..., *, type: Any = ...) -> Any: ...
    async def query(self, name: str, value: Any = None, *, type: Any = Any) -> Any:
        """What its code shows (`@outlast.query(name)`) as it stands after all that is recorded; also when it has ended.

        Nothing is written. Its journal is replayed here, unless it is at rest in this process: so this program needs
        its workflow and version.
        """
        refuse_inside("query")
        return await self._client.query(self.id, name, value, type)

    async def resolve(self, name: str, value: Any = None) -> None:
        """Resolve its deferred. The first resolution stands: the same again is accepted, another one refused."""
        attempt = inside()
        if attempt is not None:
            await attempt.call(self.resolving(name, value))
        else:
            await self._client.resolve(self.id, name, value)

    async def reject(self, name: str, why: str | Exception = "rejected") -> None:
        """Let its deferred raise: `DeferredRejected` with that message, or an exception of your own."""
        attempt = inside()
        if attempt is not None:
            await attempt.call(self.rejecting(name, why))
        else:
            await self._client.reject(self.id, name, why)

    async def interrupt(self) -> None:
        """Ask it to stop gracefully: `outlast.interrupted()` in its code ends. What that means is the code's to say."""
        attempt = inside()
        if attempt is not None:
            await attempt.call(self.interrupting())
        else:
            await self._client.interrupt(self.id)

    async def cancel(self, reason: str = "") -> None:
        """At once if no code runs; otherwise the code is told, and unwinds. Cancelling twice is the same."""
        attempt = inside()
        if attempt is not None:
            await attempt.call(self.cancelling(reason))
        else:
            await self._client.cancel(self.id, reason)

    async def hold(self) -> None:
        """Do not run it (any further, once it next waits) until `release`."""
        await self._client.hold(self.id)

    async def release(self) -> None:
        """Let it go on after a `hold`. Repeating it is the same."""
        await self._client.release(self.id)

    async def retry(self, *, from_step: str | None = None) -> None:
        """Open an ended execution again, or one that waits for its version: what was recorded is not run again.

        With `from_step` that step and all that was recorded after it run again.
        """
        await self._client.retry(self.id, from_step)

    async def fork(self, *, from_step: str, id: str | None = None) -> Handle[R]:
        """A new execution that keeps what this one recorded before the step, and goes on from there.

        `from_step="charge"` is the first recorded call of that name, `"charge#2"` the second. Without an id it is this
        one's with a random mark behind it (`order-42-fork-1f0c2a9b`). This one stays as it is.
        """
        return Handle(self._host, await self._client.fork(self.id, from_step, into=id), self._annotation)

    # ---- inside a workflow ----------------------------------------------------------------------------------------

    def sending(self, name: str, value: Any, key: str | None) -> tell.Send:
        with encoding():
            return tell.Send(self.id, saying.event_sent(self._host.values, name, value, key))

    def resolving(self, name: str, value: Any) -> tell.Resolve:
        with encoding():
            return tell.Resolve(self.id, saying.resolved(self._host.values, name, value))

    def rejecting(self, name: str, why: str | Exception) -> tell.Reject:
        with encoding():
            return tell.Reject(self.id, saying.rejected(self._host.values, name, why))

    def interrupting(self) -> tell.Interrupt:
        with encoding():
            return tell.Interrupt(self.id, saying.interrupted(self._host.values))

    def cancelling(self, reason: str) -> tell.Cancel:
        return tell.Cancel(self.id, saying.cancelled(reason))

    def __repr__(self) -> str:
        return f"<Handle {self.id!r}>"


class SyncHandle(Generic[R]):
    """The blocking face of a handle."""

    def __init__(self, app: Host, handle: Handle[R]) -> None:
        self._app = app
        self._handle = handle
        self.id = handle.id

    def result(self, timeout: Duration | None = None) -> R:
        attempt = inside()
        if attempt is not None:
            return attempt.call_from_thread(self._handle.awaited(timeout))
        return self._app.blocking(lambda: self._handle.result(timeout))

    def info(self) -> Info:
        return self._app.blocking(self._handle.info)

    def frames(self, *, after: int = 0) -> Iterator[FrameInfo]:
        """What it emits, from an offset on, as it comes; ends when the execution has ended."""

        async def begun() -> AsyncIterator[FrameInfo]:
            return self._handle.frames(after=after)

        frames = self._app.blocking(begun)

        async def following() -> FrameInfo | None:
            return await anext(frames, None)

        while (frame := self._app.blocking(following)) is not None:
            yield frame

    def journal(self) -> list[JournalInfo]:
        return self._app.blocking(self._handle.journal)

    def attempts(self) -> list[AttemptInfo]:
        return self._app.blocking(self._handle.attempts)

    def send(self, name: str, value: Any = None, *, key: str | None = None) -> None:
        attempt = inside()
        if attempt is not None:
            attempt.call_from_thread(self._handle.sending(name, value, key))
        else:
            self._app.blocking(lambda: self._handle.send(name, value, key=key))

    @overload
    def update(
        self, name: str, value: Any = ..., *, type: type[T], key: str | None = ..., timeout: Duration | None = ...
    ) -> T: ...
    @overload
    def update(
        self, name: str, value: Any = ..., *, type: Any = ..., key: str | None = ..., timeout: Duration | None = ...
    ) -> Any: ...
    def update(
        self, name: str, value: Any = None, *, type: Any = Any, key: str | None = None, timeout: Duration | None = None
    ) -> Any:
        refuse_inside("update")
        return self._app.blocking(lambda: self._handle.update(name, value, type=type, key=key, timeout=timeout))

    @overload
    def query(self, name: str, value: Any = ..., *, type: type[T]) -> T: ...
    @overload
    def query(self, name: str, value: Any = ..., *, type: Any = ...) -> Any: ...
    def query(self, name: str, value: Any = None, *, type: Any = Any) -> Any:
        refuse_inside("query")
        return self._app.blocking(lambda: self._handle.query(name, value, type=type))

    def resolve(self, name: str, value: Any = None) -> None:
        attempt = inside()
        if attempt is not None:
            attempt.call_from_thread(self._handle.resolving(name, value))
        else:
            self._app.blocking(lambda: self._handle.resolve(name, value))

    def reject(self, name: str, why: str | Exception = "rejected") -> None:
        attempt = inside()
        if attempt is not None:
            attempt.call_from_thread(self._handle.rejecting(name, why))
        else:
            self._app.blocking(lambda: self._handle.reject(name, why))

    def interrupt(self) -> None:
        attempt = inside()
        if attempt is not None:
            attempt.call_from_thread(self._handle.interrupting())
        else:
            self._app.blocking(self._handle.interrupt)

    def cancel(self, reason: str = "") -> None:
        attempt = inside()
        if attempt is not None:
            attempt.call_from_thread(self._handle.cancelling(reason))
        else:
            self._app.blocking(lambda: self._handle.cancel(reason))

    def hold(self) -> None:
        self._app.blocking(self._handle.hold)

    def release(self) -> None:
        self._app.blocking(self._handle.release)

    def retry(self, *, from_step: str | None = None) -> None:
        self._app.blocking(lambda: self._handle.retry(from_step=from_step))

    def fork(self, *, from_step: str, id: str | None = None) -> SyncHandle[R]:
        return SyncHandle(self._app, self._app.blocking(lambda: self._handle.fork(from_step=from_step, id=id)))

    def __repr__(self) -> str:
        return f"<SyncHandle {self.id!r}>"
