"""Bar charts as SVG, by hand: the page of benchmarks needs no more, and no library for it.

Pure: from names and numbers to text. One colour is ours, one the yardstick's, one everybody else's; every bar has its
number beside it, and a whisker from the least to the most that a turn gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from msgspec import Struct

from benchmarks.report import number

WIDTH, NAME_WIDTH, NUMBER_WIDTH = 720, 150, 110
BAR_HEIGHT, GAP, TOP, BOTTOM = 20, 8, 44, 12
COLOURS = {"outlast": "#2f6f4f", "bare": "#b8b8b8"}
OTHERS = "#6b8fb5"
FONT = "font-family='system-ui, sans-serif' font-size='13'"


class Mark(Struct, frozen=True):
    """One bar."""

    name: str
    value: float
    low: float
    high: float


def bar_chart(title: str, unit: str, marks: Sequence[Mark]) -> str:
    """All bars begin at zero and share one linear scale: a bar twice as long is twice as much."""
    assert marks, "a chart of nothing"
    height = TOP + len(marks) * (BAR_HEIGHT + GAP) + BOTTOM
    room = WIDTH - NAME_WIDTH - NUMBER_WIDTH
    scale = room / max(max(mark.value, mark.high) for mark in marks)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' aria-label='{escape(title, quote=True)}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        f"<text x='8' y='24' {FONT} font-weight='600' fill='#222'>{escape(title)} ({escape(unit)})</text>",
    ]
    for position, mark in enumerate(marks):
        top = TOP + position * (BAR_HEIGHT + GAP)
        middle, text = top + BAR_HEIGHT / 2, top + BAR_HEIGHT * 0.72
        length = max(1.0, mark.value * scale)
        end = NAME_WIDTH + max(length, mark.high * scale) + 6
        lines += (
            f"<text x='{NAME_WIDTH - 8}' y='{text:.1f}' {FONT} text-anchor='end' fill='#222'>"
            f"{escape(mark.name)}</text>",
            f"<rect x='{NAME_WIDTH}' y='{top}' width='{length:.1f}' height='{BAR_HEIGHT}' "
            f"fill='{COLOURS.get(mark.name, OTHERS)}'/>",
            f"<text x='{end:.1f}' y='{text:.1f}' {FONT} fill='#222'>{number(mark.value)}</text>",
        )
        if mark.high > mark.low:
            left, right = NAME_WIDTH + mark.low * scale, NAME_WIDTH + mark.high * scale
            lines.append(f"<path d='M{left:.1f} {middle:.1f}H{right:.1f}' stroke='#222' stroke-width='1.5'/>")
    return "\n".join([*lines, "</svg>"]) + "\n"
