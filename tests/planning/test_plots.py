"""Line plots: where values are on an axis, in characters, and as SVG."""

import xml.etree.ElementTree as ET

import pytest

from flyweight.planning.plots import Limit, LinePlot, Series, make_axis
from flyweight.planning.svg import draw_lines
from flyweight.planning.text_plot import draw_text

PLOT = LinePlot(
    title="A <title> & more",
    x="size",
    y="memory",
    series=[
        Series("one & only", [(1, 1), (10, 10), (100, 100)]),
        Series("flat", [(1, 20), (100, 20)]),
    ],
    limits=[Limit("half", 50), Limit("outside", 1e6)],
    log_x=True,
)


def test_a_linear_axis_begins_at_zero_and_has_round_ticks() -> None:
    axis = make_axis([3, 97], log=False)
    assert axis.ticks == (0, 20, 40, 60, 80, 100)
    assert [axis.place(value) for value in (0, 50, 100)] == [0, 0.5, 1]


def test_a_linear_axis_of_one_value() -> None:
    assert make_axis([0.0], log=False).place(0.0) == 0


def test_a_logarithmic_axis_ends_at_round_values() -> None:
    axis = make_axis([0.6, 168], log=True)
    assert (axis.low, axis.high) == (0.5, 200)
    assert axis.place(10) == pytest.approx(0.5)  # the middle of 0.5 and 200 in logarithms
    assert make_axis([7.0], log=True).ticks == (5, 10)


def test_a_plot_in_characters_fits_and_names_its_series() -> None:
    drawn = draw_text(PLOT, 60)
    lines = drawn.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "● one & only   ▲ flat"
    assert "half" in drawn and "outside" not in drawn
    rows = [line for line in lines if "│" in line or "┤" in line]
    assert rows[0].endswith("●") and "●" in rows[-1]  # the highest point and the lowest


def test_an_svg_is_valid_and_has_every_point_and_name() -> None:
    root = ET.fromstring(draw_lines(PLOT))
    tag = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{tag}circle")) == 5
    words = {one.text for one in root.findall(f"{tag}text")}
    assert {"A <title> & more", "one & only", "flat", "half", "size", "memory"} <= words


def test_a_document_has_the_points() -> None:
    assert PLOT.make_document()["series"]["flat"] == [[1, 20], [100, 20]]
