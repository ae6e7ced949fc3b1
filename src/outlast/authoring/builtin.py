"""Workflows of the engine's own, which every app serves beside its user's."""

from __future__ import annotations

from typing import Any

from outlast.authoring.host import Host
from outlast.authoring.workflow import AsyncWorkflow, Workflow, workflow_options

GATHER = "outlast.gather"


async def _gather(results: list[Any]) -> list[Any]:
    """The results of a map, in order: they came as its input."""
    return results


def gather_for(app: Host) -> Workflow[Any, Any]:
    return AsyncWorkflow(app, _gather, workflow_options({"name": GATHER}))
