"""The picture: well-formed, with the series that it should have, each where it belongs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gaoler.planning.picture import draw, nice, ticks
from gaoler.planning.simulation import simulate
from tests.planning.conftest import Come, Plan

SVG = "{http://www.w3.org/2000/svg}"


def drawn(plan: Plan, come: Come, title: str = "a title") -> ElementTree.Element:
    log = [come(0, 500), come(0, 500), come(0, 250, priority="grading")]
    return ElementTree.fromstring(draw(simulate(plan(duration_ms=2_000), log), title))


def series(picture: ElementTree.Element) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [
            (float(x), float(y))
            for x, y in (corner.split(",") for corner in element.get("points", "").split())
        ]
        for element in picture.iter()
        if (name := element.get("data-series")) is not None
    }


def test_both_classes_are_there_running_and_waiting(plan: Plan, come: Come) -> None:
    found = series(drawn(plan, come))
    assert list(found) == [
        "running interactive",
        "running grading",
        "waiting interactive",
        "waiting grading",
    ]
    assert all(len(corners) >= 800 for corners in found.values())


def test_axes_have_names_and_units_and_the_legend_names_the_classes(plan: Plan, come: Come) -> None:
    texts = [element.text for element in drawn(plan, come).iter(f"{SVG}text")]
    for words in ("slots in use", "requests waiting", "time in seconds", "interactive", "grading"):
        assert texts.count(words) == 1
    assert "1 slot" in texts
    assert "1.5" in texts  # seconds


def test_a_line_is_as_high_as_what_it_shows(plan: Plan, come: Come) -> None:
    """One waits until 0.5 s, the other class until 1 s; both panels are 0 at their bottom."""
    found = series(drawn(plan, come))
    interactive, grading = found["waiting interactive"], found["waiting grading"]
    bottom = max(y for _, y in interactive)
    left, right = interactive[0][0], interactive[-1][0]
    quarter, half = left + (right - left) / 4, left + (right - left) / 2
    assert {y for x, y in interactive if x < quarter - 0.1} == {
        y for x, y in grading if x < half - 3
    }
    assert {y for x, y in interactive if x > quarter + 3} == {bottom}
    assert {y for x, y in grading if x > half + 3} == {bottom}


def test_nothing_is_drawn_outside_of_the_picture(plan: Plan, come: Come) -> None:
    picture = drawn(plan, come)
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    for corners in series(picture).values():
        assert all(0 < x < width and 0 < y < height for x, y in corners)


def test_a_title_with_signs_of_xml_in_it_is_still_a_picture(plan: Plan, come: Come) -> None:
    picture = drawn(plan, come, 'a <b> & "c"')
    assert picture.findtext(f"{SVG}title") == 'a <b> & "c"'


def test_a_simulation_in_which_nobody_came_has_a_picture(plan: Plan) -> None:
    outcome = simulate(plan(students=0, copies=0, duration_ms=3_600_000))
    picture = ElementTree.fromstring(draw(outcome, "nobody"))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert "time in minutes" in texts
    assert "60" in texts


@pytest.mark.parametrize(
    ("most", "end"), [(0, 1), (1, 1), (2, 2), (3, 5), (11, 20), (23, 25), (64, 100)]
)
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert nice(most) == end


@pytest.mark.parametrize("end", [0.001, 0.5, 1, 7, 60, 300, 12_345])
def test_an_axis_has_a_few_round_ticks(end: float) -> None:
    found = ticks(end)
    assert 3 <= len(found) <= 8
    assert found[0] == 0
    assert found[-1] <= end * 1.000001
