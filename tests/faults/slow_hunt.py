"""Many seeds of the slow stores' plays, one after the other; what goes wrong is shown with its seed.

python -m tests.faults.slow_hunt flows postgres 100 1 2 0.12  # so many seeds from the first on, copies, longest delay
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests import postgres
from tests.conformance.valkey_harness import valkey_url
from tests.faults.slow_flows import FLOWS
from tests.faults.slow_lives import LIVES
from tests.faults.slow_stores import TALK, Outlived, live_through

PLAYS = {"talk": TALK, "flows": FLOWS, "lives": LIVES}


def url_of(store: str, folder: str) -> str:
    if store == "postgres":
        return asyncio.run(postgres.empty())
    return valkey_url(Path(folder)) if store == "valkey" else f"sqlite:///{folder}/slow.db"


def main() -> None:
    play, store = sys.argv[1:3]
    seeds, first, copies = (int(word) for word in sys.argv[3:6])
    longest_s = float(sys.argv[6])
    for seed in range(first, first + seeds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                url = url_of(store, folder)
                asyncio.run(live_through(url, seed, PLAYS[play], copies=copies, longest_s=longest_s))
            except Outlived as wrong:
                print(wrong, flush=True)
            print(f"{play} on {store}, seed {seed}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
