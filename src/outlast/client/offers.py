"""Why a ready execution is not claimed: what the live workers offer, compared with what it needs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from outlast.model.execution import Execution, parse_route
from outlast.model.record import settled
from outlast.model.session import OFFERS_PARTITION, Offer, Session
from outlast.model.status import Reason, Status
from outlast.store.port import Store


class Offers(Struct, frozen=True):
    """What each live worker says that it offers; None if it has not said it."""

    by_worker: dict[str, Offer | None]

    def of_workflow(self, e: Execution) -> dict[str, list[str]]:
        """The versions of its workflow that are offered, and by whom."""
        found: dict[str, list[str]] = {}
        for worker, offer in sorted(self.by_worker.items()):
            if offer is not None and offer.namespace == e.namespace:
                for workflow, version in offer.serves:
                    if workflow == e.workflow:
                        found.setdefault(version, []).append(worker)
        return found

    def reason(self, e: Execution) -> str | None:
        """Its own reason; of a ready one, why no worker that is alive can take it: `version`, or a capability.

        None also if one can, if none is alive, or if one has not said what it offers.
        """
        if e.status is not Status.READY:
            return e.reason
        offers = [offer for offer in self.by_worker.values() if offer is None or _reaches(offer, e)]
        if not offers or None in offers:
            return None
        serving = [offer for offer in offers if offer is not None and (e.workflow, e.version) in offer.serves]
        if not serving:
            return Reason.VERSION
        missing = [parse_route(e.route).requires - set(offer.capabilities) for offer in serving]
        least = min(missing, key=len)
        return Reason.capability(min(least)) if least else None

    def unserved(self, e: Execution) -> str | None:
        """Which lane, or which namespace, no worker that is alive serves: nobody asks for what is ready there.

        None if one serves it, if none is alive, or if one has not said what it offers.
        """
        offers = [offer for offer in self.by_worker.values() if offer is None or _reaches(offer, e)]
        if offers or not self.by_worker:
            return None
        here = any(offer is not None and offer.namespace == e.namespace for offer in self.by_worker.values())
        return f"lane {e.lane}" if here else f"namespace {e.namespace}"


def _reaches(offer: Offer, e: Execution) -> bool:
    return offer.namespace == e.namespace and e.lane in offer.lanes


def offers_of(sessions: Iterable[object], now: int) -> Offers:
    found = [session for session in sessions if isinstance(session, Session)]
    return Offers({one.worker: one.offer for one in found if (settled(one.expires_at) or 0) > now})


async def offers_in(store: Store) -> Offers:
    return offers_of(await store.scan(Session.KIND, (OFFERS_PARTITION,), limit=10_000), await store.now())
