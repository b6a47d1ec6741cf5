"""Running and waiting over time, as one SVG picture that needs nothing else to be seen.

Two panels share the axis of time: above the slots that each class holds, one class on top
of the other, below the requests of each class that wait.  Each step of a line is the mean
over its span of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gaoler.actors.policy.slots import GRADING, INTERACTIVE
from gaoler.planning.report import plural
from gaoler.planning.simulation import Outcome
from gaoler.planning.tally import CLASSES

WIDTH, LEFT, RIGHT = 960, 64, 24
PANEL_HEIGHT, TOP, GAP = 200, 64, 64
HEIGHT = TOP + 2 * PANEL_HEIGHT + GAP + 56
# A pair that people tell apart who do not see red and green alike.
COLOURS = {INTERACTIVE: "#0072b2", GRADING: "#e69f00"}
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    top: int
    most: float  # the upper end of its axis
    end: float  # the right end, in the unit of its axis

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.end

    def y(self, value: float) -> float:
        return self.top + PANEL_HEIGHT * (1 - value / self.most)


def draw(outcome: Outcome, title: str) -> str:
    """The whole picture.  `title` is one line of text."""
    unit, unit_ns = _unit(outcome.end_ns)
    end = outcome.end_ns / unit_ns
    slots = outcome.scenario.slots * outcome.scenario.nodes
    running = {name: outcome.tally.accounts[name].running.means() for name in CLASSES}
    waiting = {name: outcome.tally.accounts[name].waiting.means() for name in CLASSES}
    span = outcome.tally.accounts[INTERACTIVE].running.span_ns / unit_ns
    upper = Panel(TOP, nice(slots), end)
    lower = Panel(TOP + PANEL_HEIGHT + GAP, nice(max(map(max, waiting.values()))), end)
    parts = [
        _head(title),
        *_axes(upper, "slots in use"),
        *_stacked(upper, running, span),
        *_line_of_slots(upper, slots),
        *_axes(lower, "requests waiting"),
        *_lines(lower, waiting, span),
        _text(WIDTH / 2, HEIGHT - 12, f"time in {unit}", anchor="middle"),
        *_legend(),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _unit(end_ns: int) -> tuple[str, int]:
    """What the axis of time counts, and how long one is."""
    minute_ns = 60 * NS_PER_S
    return ("minutes", minute_ns) if end_ns >= 10 * minute_ns else ("seconds", NS_PER_S)


# --- series -------------------------------------------------------------------------------


def _stacked(panel: Panel, series: dict[str, list[float]], span: float) -> Iterator[str]:
    below = [0.0] * len(series[INTERACTIVE])
    for name in CLASSES:
        above = [low + own for low, own in zip(below, series[name], strict=True)]
        edge = [*_steps(panel, above, span), *reversed(list(_steps(panel, below, span)))]
        yield (
            f'<polygon data-series="running {name}" fill="{COLOURS[name]}" fill-opacity="0.75" '
            f'points="{_points(edge)}"/>'
        )
        below = above


def _lines(panel: Panel, series: dict[str, list[float]], span: float) -> Iterator[str]:
    for name in CLASSES:
        yield (
            f'<polyline data-series="waiting {name}" fill="none" stroke="{COLOURS[name]}" '
            f'stroke-width="1.5" points="{_points(_steps(panel, series[name], span))}"/>'
        )


def _steps(panel: Panel, values: Sequence[float], span: float) -> Iterator[tuple[float, float]]:
    for number, value in enumerate(values):
        yield panel.x(number * span), panel.y(value)
        yield panel.x(min((number + 1) * span, panel.end)), panel.y(value)


def _points(corners: Sequence[tuple[float, float]] | Iterator[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _line_of_slots(panel: Panel, slots: int) -> Iterator[str]:
    y = panel.y(slots)
    yield _rule(LEFT, y, WIDTH - RIGHT, y, 'stroke="#444" stroke-dasharray="6 4"')
    yield _text(WIDTH - RIGHT, y - 5, plural(slots, "slot"), anchor="end")


# --- axes ---------------------------------------------------------------------------------


def nice(most: float) -> float:
    """A round number, at least `most` and at least 1, for the end of an axis."""
    if most <= 1:
        return 1.0
    step = 10.0 ** math.floor(math.log10(most))
    return next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor >= most)


def ticks(end: float) -> list[float]:
    """Round numbers from 0 to `end`, five to seven steps."""
    rough = end / 7
    step = 10.0 ** math.floor(math.log10(rough))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor >= rough)
    return [number * step for number in range(int(end / step + 1e-9) + 1)]


def _axes(panel: Panel, label: str) -> Iterator[str]:
    bottom = panel.top + PANEL_HEIGHT
    for value in ticks(panel.most):
        y = panel.y(value)
        yield _rule(LEFT, y, WIDTH - RIGHT, y, 'stroke="#ddd"')
        yield _text(LEFT - 8, y + 4, f"{value:g}", anchor="end")
    for at in ticks(panel.end):
        x = panel.x(at)
        yield _rule(x, bottom, x, bottom + 5, 'stroke="#444"')
        yield _text(x, bottom + 20, f"{at:g}", anchor="middle")
    yield _rule(LEFT, bottom, WIDTH - RIGHT, bottom, 'stroke="#444"')
    yield _rule(LEFT, panel.top, LEFT, bottom, 'stroke="#444"')
    yield _text(LEFT, panel.top - 10, label, weight="bold")


def _legend() -> Iterator[str]:
    x = WIDTH - RIGHT - 200
    for name in CLASSES:
        yield f'<rect x="{x}" y="14" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield _text(x + 18, 24, name)
        x += 110


# --- elements -----------------------------------------------------------------------------


def _head(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + _text(LEFT, 24, title, weight="bold")
    )


def _rule(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#222">{escape(words)}</text>'
    )
