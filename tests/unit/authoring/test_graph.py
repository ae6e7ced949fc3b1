"""Graphs: a circle is found, in whatever order its members were written down."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outlast.authoring.graph import cycle_in, in_order

NAMES = "abcde"
graphs = st.permutations(NAMES).flatmap(
    lambda names: st.fixed_dictionaries({name: st.lists(st.sampled_from(NAMES), unique=True) for name in names})
)


@given(graphs)
def test_a_graph_goes_round_in_circles_if_not_all_of_it_can_be_put_in_order(graph: dict[str, list[str]]):
    upstreams = {name: tuple(above) for name, above in graph.items()}
    cycle = cycle_in(upstreams)
    assert bool(cycle) == (len(in_order(upstreams)) < len(upstreams))
    for one, behind in pairwise(cycle):
        assert one in upstreams[behind]
    assert not cycle or cycle[0] == cycle[-1]


def test_what_only_waits_for_what_was_written_before_it_goes_round_in_no_circle():
    assert cycle_in({"a": (), "b": ("a",), "c": ("b", "a")}) == []
    assert cycle_in({"b": ("a",), "a": ()}) == []
    assert cycle_in({"a": (), "b": ("c",), "c": ("b",)}) in (["b", "c", "b"], ["c", "b", "c"])
