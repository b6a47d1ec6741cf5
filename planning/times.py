"""How long things take: distributions, as an option writes them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gaoler.config.kinds import Kind, NotAllowedError

NS_PER_MS = 1_000_000
MOST_MS = 86_400_000.0  # a day; what is drawn beyond it counts as this
RETRY_AFTER = "retry-after"
NEVER = "never"
FORMS = "constant:MS, uniform:LOW-HIGH, exponential:MEAN or lognormal:MEDIAN,SIGMA"

_NUMBER = r"([0-9]{1,8}(?:\.[0-9]{1,6})?)"
_FORMS = {
    "constant": re.compile(_NUMBER, re.ASCII),
    "uniform": re.compile(f"{_NUMBER}-{_NUMBER}", re.ASCII),
    "exponential": re.compile(_NUMBER, re.ASCII),
    "lognormal": re.compile(f"{_NUMBER},{_NUMBER}", re.ASCII),
}

_Draw = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of durations; equal to another where it is written alike."""

    text: str
    draw_ms: _Draw = field(compare=False, repr=False)

    def draw_ns(self, chance: random.Random) -> int:
        """One duration, at least 0."""
        return int(min(self.draw_ms(chance), MOST_MS) * NS_PER_MS)


def times(*words: str) -> Kind:
    """A distribution, or one of `words`, which stays text.  Milliseconds."""

    def parse(raw: object) -> Times | str:
        text = str(raw).strip()
        return text if text in words else parse_times(text)

    return Kind(" or ".join([f"one of {FORMS} (milliseconds)", *words]), parse, _plain)


def parse_times(text: str) -> Times:
    """The distribution that is written so.  NotAllowedError where none is."""
    name, _, numbers = text.partition(":")
    found = _FORMS[name].fullmatch(numbers) if name in _FORMS else None
    if found is None:
        raise NotAllowedError
    values = [float(number) for number in found.groups()]
    return Times(text, _drawing(name, values))


def _drawing(name: str, values: list[float]) -> _Draw:
    first, last = values[0], values[-1]
    if name == "constant":
        return lambda _: first
    if name == "uniform":
        if last < first:
            raise NotAllowedError("HIGH is below LOW")
        return lambda chance: first + (last - first) * chance.random()
    if first <= 0:
        raise NotAllowedError("a mean or median of 0 has no spread")
    if name == "exponential":
        return lambda chance: chance.expovariate(1 / first)
    if last > 10:
        raise NotAllowedError("a SIGMA above 10 has no sensible meaning")
    middle = math.log(first)
    return lambda chance: chance.lognormvariate(middle, last)


def _plain(value: Any) -> str:
    return value.text if isinstance(value, Times) else str(value)
