"""A plot is drawn to scale, by anybody's reading of SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.plots import COLOURS, NAME_WIDTH, NUMBER_WIDTH, WIDTH, Mark, bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[ElementTree.Element]:
    """Without the background."""
    return ElementTree.fromstring(svg).findall(f"{SVG}rect")[1:]


def test_bars_are_proportional():
    [longest, shortest] = bars(bar_chart("t", "1/s", [Mark("a", 400.0, 400.0, 400.0), Mark("b", 100.0, 100.0, 100.0)]))
    assert float(longest.attrib["width"]) == WIDTH - NAME_WIDTH - NUMBER_WIDTH
    assert float(shortest.attrib["width"]) * 4 == float(longest.attrib["width"])


def test_the_noise_fits_into_the_picture():
    svg = bar_chart("t", "1/s", [Mark("a", 100.0, 50.0, 200.0)])
    [whisker] = ElementTree.fromstring(svg).findall(f"{SVG}path")
    assert whisker.attrib["d"].endswith(f"H{WIDTH - NUMBER_WIDTH:.1f}")
    [bar] = bars(svg)
    assert float(bar.attrib["width"]) * 2 == WIDTH - NAME_WIDTH - NUMBER_WIDTH


def test_a_single_turn_has_no_noise_to_show():
    svg = bar_chart("t", "ms", [Mark("a", 3.0, 3.0, 3.0)])
    assert not ElementTree.fromstring(svg).findall(f"{SVG}path")


def test_ours_and_the_yardstick_have_their_own_colours():
    svg = bar_chart("t", "1/s", [Mark("outlast", 3.0, 3.0, 3.0), Mark("bare", 4.0, 4.0, 4.0), Mark("x", 1.0, 1.0, 1.0)])
    assert [bar.attrib["fill"] for bar in bars(svg)][:2] == [COLOURS["outlast"], COLOURS["bare"]]
    assert len({bar.attrib["fill"] for bar in bars(svg)}) == 3


def test_names_are_text_and_not_markup():
    svg = bar_chart("<&'>", "1/s", [Mark("<b>&", 3.0, 3.0, 3.0)])
    texts = [text.text for text in ElementTree.fromstring(svg).findall(f"{SVG}text")]
    assert texts == ["<&'> (1/s)", "<b>&", "3.000"]
