"""What can be said of a graph: whether it goes round in circles, and what stands behind what. Without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def in_order(upstreams: Mapping[str, Iterable[str]]) -> list[str]:
    """All of them, each behind those that it waits for; upstreams that are not there keep nobody waiting."""
    left = {name: {one for one in above if one in upstreams} for name, above in upstreams.items()}
    downstreams: dict[str, list[str]] = {name: [] for name in upstreams}
    for name, above in left.items():
        for upstream in above:
            downstreams[upstream].append(name)
    found = [name for name, above in left.items() if not above]
    for name in found:  # grows meanwhile
        for below in downstreams[name]:
            left[below].discard(name)
            if not left[below]:
                found.append(below)
    return found


def cycle_in(upstreams: Mapping[str, tuple[str, ...]]) -> list[str]:
    """A cycle, in the order in which its members would wait for each other, its first one again at the end; or []."""
    if _behind_what_they_wait_for(upstreams):
        return []
    left = {name: set(above) for name, above in upstreams.items()}
    downstreams: dict[str, list[str]] = {name: [] for name in upstreams}
    for name, above in upstreams.items():
        for upstream in above:
            downstreams[upstream].append(name)
    free = [name for name, above in left.items() if not above]
    while free:
        name = free.pop()
        del left[name]
        for below in downstreams[name]:
            left[below].discard(name)
            if not left[below]:
                free.append(below)
    if not left:
        return []
    # Everything that is left waits for something that is left: going up arrives where one has been.
    name, path = next(iter(left)), list[str]()
    seen: dict[str, int] = {}
    while name not in seen:
        seen[name] = len(path)
        path.append(name)
        name = min(left[name])
    return [*reversed([*path[seen[name] :], name])]


def _behind_what_they_wait_for(upstreams: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether they are given in such an order, as authors mostly write them down."""
    before: set[str] = set()
    for name, above in upstreams.items():
        if not before.issuperset(above):
            return False
        before.add(name)
    return True
