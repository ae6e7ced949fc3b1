"""Workflows of the engine's own, which every app serves beside its user's."""

from __future__ import annotations

from typing import Any

from outlast.authoring.host import Host
from outlast.authoring.workflow import AsyncWorkflow, Workflow, workflow_options
from outlast.codec.annotations import Unresolved

GATHER = "outlast.gather"
STARRED = "*"
"""Before the name of an argument that takes any number, of which the item of a map is one."""


async def _gather(results: list[Any]) -> list[Any]:
    """The results of a map, in order: they came as its input."""
    return results


def gathered(result: Any) -> Any:
    """By what the results of a map are read, if each item gives such a `result`: a join may do without some of them."""
    return list[Any] if isinstance(result, Unresolved) else list[result | None]


def gather_for(app: Host) -> Workflow[Any, Any]:
    return AsyncWorkflow(app, _gather, workflow_options({"name": GATHER}))
