"""Where the time goes, in the event loop's thread and in the writer's: cProfile of both, printed apart."""

from __future__ import annotations

import cProfile
import pstats
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LINES = 25


@contextmanager
def profiled() -> Iterator[None]:
    """Profiles this thread, and every thread that begins in the block."""
    profiles: list[tuple[str, cProfile.Profile]] = []

    def begin(*_: object) -> None:
        # Called as the thread's first event; the profile takes its place.
        profile = cProfile.Profile()
        profiles.append((threading.current_thread().name, profile))
        profile.enable()

    threading.setprofile(begin)
    here = cProfile.Profile()
    profiles.append((threading.current_thread().name, here))
    here.enable()
    try:
        yield
    finally:
        here.disable()
        threading.setprofile(None)
        for _, profile in profiles:
            profile.create_stats()
        # The loop's thread and the writer's; the others opened files.
        busiest = sorted(profiles, key=lambda each: pstats.Stats(each[1]).total_calls, reverse=True)[:2]  # pyright: ignore[reportAttributeAccessIssue]
        for name, profile in busiest:
            print(f"\nthread {name}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(LINES)
