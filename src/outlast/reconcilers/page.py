"""The reconcilers as a table for people: `python -m outlast.reconcilers.page docs/workers.md` puts it there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from outlast.reconcilers.table import ROWS

HEAD = "| name | repairs | every | batch |\n|---|---|---|---|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")


def table() -> str:
    return HEAD + "".join(
        f"| `{row.name}` | {row.what} | {row.interval_ms / 1_000:g} s | {row.batch} |\n" for row in ROWS
    )


def with_table(page: str) -> str:
    """The page with the table of today."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
