"""Real DAGs: an instance in WfFormat, made with the recipes of WfCommons, runs as a flow on every store."""

from __future__ import annotations

import importlib.util
import json
from graphlib import CycleError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outlast import App

ROOT = Path(__file__).resolve().parents[2]
INSTANCES = sorted((ROOT / "tests" / "fixtures" / "wfcommons").glob("*.json"))
"""Made with `WorkflowGenerator(BlastRecipe.from_num_tasks(45))` and `MontageRecipe.from_num_tasks(60)` of the package
`wfcommons`, in an environment of its own: what it depends on is too much for this project's lock."""
DOCUMENTS = {file: json.loads(file.read_text()) for file in INSTANCES}


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wfcommons_example", ROOT / "examples" / "wfcommons.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ancestors(instance: dict[str, tuple[list[str], float]], name: str) -> set[str]:
    found, waiting = {name}, [name]
    while waiting:
        for parent in instance[waiting.pop()][0]:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


@pytest.mark.parametrize("file", INSTANCES, ids=lambda file: file.stem)
async def test_an_instance_runs_in_its_order_and_passes_every_output(app: App, file: Path):
    module: Any = example()
    instance = module.instance_of(DOCUMENTS[file])
    assert len(instance) > 5
    module.member = app.workflow(name="member")(module.member.fn)
    async with app:
        fh = await module.flow_of(app.flow("wf", id="wf"), instance, speed=1e9).start()
        outputs = await fh.result("60s")
        assert {name.replace("/", "-"): sorted(ancestors(instance, name)) for name in instance} == outputs
        ended = {member.name: member.finished_at for member in (await fh.graph()).members}
        for name, (parents, _) in instance.items():
            for parent in parents:
                assert ended[parent.replace("/", "-")] <= ended[name.replace("/", "-")]


GENERATIONS = [
    {"tasks": [{"name": "a", "runtime": 2}, {"name": "b", "parents": ["a"]}]},
    # What is published of 1.4 has ids, too, and says the names of parents all the same.
    {"tasks": [{"name": "x_a", "id": "a", "runtimeInSeconds": 2}, {"name": "x_b", "id": "b", "parents": ["x_a"]}]},
    {"jobs": [{"name": "x_a", "id": "a", "runtime": 2}, {"name": "x_b", "id": "b", "parents": ["x_a"]}]},
    # 1.5: several may share a name.
    {"specification": {"tasks": [{"name": "b", "id": "a"}, {"name": "b", "id": "b", "parents": ["a"]}]},
     "execution": {"tasks": [{"id": "a", "runtimeInSeconds": 2}]}},
]  # fmt: skip


@pytest.mark.parametrize("workflow", GENERATIONS, ids=["without ids", "1.4", "1.2", "1.5"])
def test_all_generations_of_the_format_are_read(workflow: dict[str, Any]):
    assert example().instance_of({"workflow": workflow}) == {"a": ([], 2.0), "b": (["a"], 0.0)}


def test_an_instance_that_goes_round_in_circles_is_refused():
    module: Any = example()
    with pytest.raises(CycleError):
        module.flow_of(module.app.flow("wf"), {"a": (["b"], 0.0), "b": (["a"], 0.0)}, speed=1)
