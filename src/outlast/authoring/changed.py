"""At start-up: was code changed under executions that are open, without a new version?

A signature that differs need not mean that a replay diverges, so this only warns; the replay itself decides. It looks
at the newest open executions of each workflow, a bounded number: after a deploy those are the ones that matter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from outlast.authoring.workflow import Workflow
from outlast.model.status import OPEN
from outlast.store.port import Query, Store

_log = logging.getLogger(__name__)

LOOKED_AT = 500
"""So many open executions of each workflow, at most."""


async def warn_of_changed_code(store: Store, namespace: str, workflows: Iterable[Workflow[Any, Any]]) -> None:
    by_name: dict[str, dict[str, Workflow[Any, Any]]] = {}
    for workflow in workflows:
        by_name.setdefault(workflow.name, {})[workflow.version] = workflow
    for name, versions in by_name.items():
        query = Query(namespace=namespace, status=frozenset(OPEN), workflow=name, limit=LOOKED_AT)
        found = (await store.find(query)).executions
        for version, workflow in versions.items():
            others = [e for e in found if e.version == version and e.signature not in ("", workflow.signature)]
            if others:
                _log.warning(
                    "workflow %r was changed without a new version: %d open executions of version %r, such as %r, were "
                    "started with other code. Those that it no longer fits will wait with reason 'version'; register "
                    "changed code under a new version, and keep the old one until its executions have ended",
                    name,
                    len(others),
                    version,
                    others[0].id,
                )
