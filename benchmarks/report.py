"""The figures of a run: medians with their noise, bars met or missed, a table to read and rows to keep."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct, field

RESULTS = Path(__file__).parent / "results" / "latest.json"


class Scene(Struct, frozen=True, kw_only=True):
    """What was measured: enough to compare a figure with the same one of another run, system or store."""

    system: str
    version: str
    store: str
    scenario: str
    steps: int = 0
    concurrency: int = 1
    workers: int = 1


class Row(Scene, frozen=True, kw_only=True):
    """One figure. `latest.json` has it without its noise, which is printed, and published with a whole run."""

    metric: str
    value: float
    """The median of the turns."""
    unit: str
    low: float = 0.0
    high: float = 0.0
    """The least and the most that a turn gave: the noise."""


NOISE = ("low", "high")


class Bar(Struct, frozen=True):
    """What a figure has to reach."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'}  {self.text}"


class Machine(Struct, frozen=True, kw_only=True):
    """On what it was measured, and when."""

    processor: str
    cores: int
    system: str
    python: str
    store: str
    """The store and the version of what is behind it."""
    began: str
    """The date."""
    minutes: float
    load_before: float
    load_after: float
    turns: int


class Published(Struct, frozen=True, kw_only=True):
    """A whole run of one store, as the page of benchmarks is made from it."""

    machine: Machine
    rows: list[Row]
    bars: list[Bar]
    note: str = ""
    """What a reader must know of it, written by hand."""


class Report(Struct):
    rows: list[Row] = field(default_factory=list[Row])
    bars: list[Bar] = field(default_factory=list[Bar])

    def add(self, scene: Scene, metric: str, samples: list[float], unit: str) -> float:
        """Keep the median of repeats, print it with its noise, and return it."""
        value, low, high = median(samples), min(samples), max(samples)
        self.rows.append(
            Row(
                **msgspec.structs.asdict(scene),
                metric=metric,
                value=round(value, 4),
                unit=unit,
                low=round(low, 4),
                high=round(high, 4),
            )
        )
        noise = f"{number(low)} – {number(high)}" if len(samples) > 1 else ""
        print(
            f"  {scene.system:8} {scene.scenario:24} c={scene.concurrency:<4} w={scene.workers:<2} {metric:17} "
            f"{number(value):>10} {unit:8} {noise}",
            flush=True,
        )
        return value

    def bar(self, text: str, *, met: bool) -> None:
        bar = Bar(text, met)
        self.bars.append(bar)
        print(f"  {bar}", flush=True)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{name: value for name, value in _fields(row).items() if name not in NOISE} for row in self.rows]
        path.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def _fields(row: Row) -> dict[str, object]:
    return msgspec.structs.asdict(row)


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def percentile(samples: list[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"
