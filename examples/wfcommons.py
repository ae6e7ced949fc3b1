"""Run any workflow of the WfCommons collection (WfFormat JSON) as a flow: same order, every output passed.

python examples/wfcommons.py tests/fixtures/wfcommons/montage.json     # on sqlite:///outlast.db, or $OUTLAST_URL
python examples/wfcommons.py instance.json --speed 1                   # as slow as it was recorded

Each of its tasks is a member that sleeps for the recorded runtime (a millisecond for a second, unless --speed says
otherwise) and returns what it got from its parents: so the result shows that all of them came before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from outlast import App, Flow

app = App()


@app.workflow
async def member(name: str, seconds: float, parents: list[list[str]]) -> list[str]:
    """Everything that came before it, and itself."""
    await asyncio.sleep(seconds)
    return sorted({name}.union(*parents))


def instance_of(document: dict[str, Any]) -> dict[str, tuple[list[str], float]]:
    """By id: the parents and the runtime of each. WfFormat 1.5 keeps the two apart, and says the ids of parents; 1.4
    and before say their names, and 1.2 and before call tasks jobs."""
    workflow = document["workflow"]
    specified = workflow.get("specification", workflow)
    tasks = specified["tasks"] if "tasks" in specified else specified["jobs"]
    executed = {one["id"]: one for one in workflow.get("execution", {}).get("tasks", [])}
    id_of = {one["name"]: one.get("id", one["name"]) for one in tasks}
    id_of |= {one["id"]: one["id"] for one in tasks if "id" in one}  # names may be shared, ids are not
    found: dict[str, tuple[list[str], float]] = {}
    for one in tasks:
        name = one.get("id", one["name"])
        runtime = executed.get(name, one).get("runtimeInSeconds", one.get("runtime", 0.0))
        found[name] = ([id_of[parent] for parent in one.get("parents", [])], float(runtime or 0.0))
    return found


def flow_of(flow: Flow, instance: dict[str, tuple[list[str], float]], *, speed: float) -> Flow:
    """A member for each; parents first, whatever the order of the file."""
    made: dict[str, Any] = {}
    for name in TopologicalSorter({name: parents for name, (parents, _) in instance.items()}).static_order():
        parents, runtime = instance[name]
        outputs = [made[parent].output for parent in parents]
        made[name] = flow.add(name.replace("/", "-"), member, name, runtime / speed, outputs)
    return flow


async def main(instance: dict[str, tuple[list[str], float]], speed: float) -> None:
    async with app:
        handle = await flow_of(app.flow("wfcommons"), instance, speed=speed).start()
        outputs = await handle.result()
        status = await handle.status()
        print(f"{len(outputs)} members, the longest way: {' → '.join(status.critical_path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--speed", type=float, default=1_000.0)
    given = parser.parse_args()
    asyncio.run(main(instance_of(json.loads(given.file.read_text())), given.speed))
