"""A hold on one flow: wait for it, look at it, cancel or retry it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from outlast.client.flow_info import FlowCancel, FlowGraph, FlowInfo
from outlast.model.duration import Duration, to_ms
from outlast.runtime.attempts.current import inside
from outlast.runtime.operations.subflow import AwaitFlow
from outlast.runtime.operations.wait import After

if TYPE_CHECKING:
    from outlast.authoring.host import Host
    from outlast.client.flows import FlowClient

Policy = Literal["cancel_all", "cancel_pending", "flow_only"]


class FlowHandle:
    """`fh = await flow.start()`; `outputs = await fh.result()`."""

    def __init__(
        self, host: Host, flow_id: str, *, start: str | None = None, annotations: Mapping[str, Any] | None = None
    ) -> None:
        self._host = host
        self._start = start
        self._annotations = annotations or {}
        self.id = flow_id

    @property
    def _client(self) -> FlowClient:
        """Of the app as it is open now: a handle may outlive the opening that it came from."""
        return self._host.opened().flows

    async def result(self, timeout: Duration | None = None) -> dict[str, Any]:
        """The outputs of the members that succeeded, by name, once all have ended.

        `FlowFailed` or `FlowCancelled` if it ended so; `TimeoutError` after `timeout`: the flow goes on.
        """
        attempt = inside()
        if attempt is not None:
            return await attempt.call(self.awaited(timeout))
        if timeout is not None and not to_ms(timeout, what="timeout") and await self._client.has_ended(self.id):
            timeout = None  # nothing is waited for
        if timeout is None:
            return await self._client.result(self.id)
        seconds = to_ms(timeout, what="timeout") / 1_000
        limit = self._host.opened().limit(seconds)
        try:
            async with limit:
                return await self._client.result(self.id)
        except TimeoutError as error:
            raise TimeoutError(f"flow {self.id!r} did not end within {seconds:g} s; it goes on") from error

    def awaited(self, timeout: Duration | None) -> AwaitFlow:
        limit = None if timeout is None else After(to_ms(timeout, what="timeout"))
        return AwaitFlow(self.id, self._annotations, start=self._start, limit=limit)

    async def status(self) -> FlowInfo:
        """How many members are where, what is blocked on what, and the longest way through it."""
        return await self._client.status(self.id)

    async def graph(self) -> FlowGraph:
        return await self._client.graph(self.id)

    async def cancel(self, policy: Policy = "cancel_all", reason: str = "", *, wait: bool = False) -> FlowCancel:
        """From the moment that this is accepted no member is claimed any more.

        It answers at once; the members are cancelled in the background, or before it returns with `wait=True`.
        `cancel_pending` lets go on what runs, `flow_only` leaves all members as they are. Cancelling twice is the same.
        """
        return await self._client.cancel(self.id, policy, reason, wait=wait)

    async def retry(self) -> None:
        """Open the members again that did not succeed, and keep what did."""
        await self._client.retry(self.id)

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id!r}>"


class SyncFlowHandle:
    """The blocking face of a flow's handle."""

    def __init__(self, app: Host, handle: FlowHandle) -> None:
        self._app = app
        self._handle = handle
        self.id = handle.id

    def result(self, timeout: Duration | None = None) -> dict[str, Any]:
        attempt = inside()
        if attempt is not None:
            return attempt.call_from_thread(self._handle.awaited(timeout))
        return self._app.blocking(lambda: self._handle.result(timeout))

    def status(self) -> FlowInfo:
        return self._app.blocking(self._handle.status)

    def graph(self) -> FlowGraph:
        return self._app.blocking(self._handle.graph)

    def cancel(self, policy: Policy = "cancel_all", reason: str = "", *, wait: bool = False) -> FlowCancel:
        return self._app.blocking(lambda: self._handle.cancel(policy, reason, wait=wait))

    def retry(self) -> None:
        self._app.blocking(self._handle.retry)

    def __repr__(self) -> str:
        return f"<SyncFlowHandle {self.id!r}>"
