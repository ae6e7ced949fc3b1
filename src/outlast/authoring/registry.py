"""The workflows of an app, by name and version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlast.authoring.callables import is_typed_in, place_of
from outlast.errors import DuplicateRegistration, InvalidName, UnknownWorkflow
from outlast.model.names import OWN_PREFIX

if TYPE_CHECKING:
    from outlast.authoring.workflow import Workflow


class Registry:
    def __init__(self) -> None:
        self._workflows: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self._own: dict[tuple[str, str], Workflow[Any, Any]] = {}
        """The engine's own: served, and not shown."""
        self._served: frozenset[tuple[str, str]] | None = None

    def add_own(self, workflow: Workflow[Any, Any]) -> None:
        self._own[workflow.name, workflow.version] = workflow
        self._served = None

    def add(self, workflow: Workflow[Any, Any]) -> None:
        key = (workflow.name, workflow.version)
        if workflow.name.startswith(OWN_PREFIX):
            raise InvalidName("workflow", workflow.name, f"names that begin with {OWN_PREFIX!r} are reserved")
        before = self._workflows.get(key)
        if before is not None:
            if is_typed_in(before.fn) and is_typed_in(workflow.fn):
                advice = "to define it anew, make the app anew in the same cell, above it (app = App(…)), or restart"
            else:
                advice = "give one of them another name=, or version= if it is a newer one"
            raise DuplicateRegistration(
                f"workflow {workflow.name!r}, version {workflow.version!r}, is registered twice in this app, at "
                f"{place_of(before.fn)} and at {place_of(workflow.fn)}: {advice}"
            )
        self._workflows[key] = workflow
        self._served = None

    def get(self, name: str, version: str) -> Workflow[Any, Any]:
        if (name, version) in self._own:
            return self._own[name, version]
        try:
            return self._workflows[name, version]
        except KeyError:
            raise UnknownWorkflow(f"no workflow {name!r}, version {version!r}; {self._known()}") from None

    def newest(self, name: str) -> Workflow[Any, Any]:
        """The version of that name that was registered last."""
        found = [workflow for (known, _), workflow in self._workflows.items() if known == name]
        if not found:
            raise UnknownWorkflow(f"no workflow {name!r}; {self._known()}")
        return found[-1]

    def served(self) -> frozenset[tuple[str, str]]:
        """Remembered: each end of a member asks whether what follows is served here."""
        if self._served is None:
            self._served = frozenset((*self._workflows, *self._own))
        return self._served

    def __iter__(self) -> Iterator[Workflow[Any, Any]]:
        return iter(self._workflows.values())

    def _known(self) -> str:
        names = sorted({name for name, _ in self._workflows})
        return f"this app has {', '.join(names)}" if names else "this app has none yet"
