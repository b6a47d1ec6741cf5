"""Following the JSON path of a refusal through the body that was refused."""

from __future__ import annotations

import json
import re
from typing import Any

from gaoler.http.paths import quoted

_PART = re.compile(
    r"\.?(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\[(?P<index>[0-9]+)\]"
    r'|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]'
)
MISSING = object()


def split(detail: str) -> tuple[list[re.Match[str]], str] | None:
    """The parts of the path that a detail begins with, and what is wrong; None without a path."""
    parts: list[re.Match[str]] = []
    at = 0
    while (part := _PART.match(detail, at)) is not None:
        parts.append(part)
        at = part.end()
    if not parts or not detail.startswith(": ", at):
        return None
    return parts, detail[at + 2 :]


def follow(value: Any, parts: list[re.Match[str]]) -> list[Any]:
    """What may be meant; [MISSING] where the last part alone is not there; [] where nothing is.

    More than one where names look alike once they are cut.
    """
    found = [value]
    for number, part in enumerate(parts):
        below = [inner for outer in found for inner in _step(outer, part)]
        if not below and number == len(parts) - 1 and any(isinstance(o, dict) for o in found):
            return [MISSING]
        found = below
    return found


def _step(outer: Any, part: re.Match[str]) -> list[Any]:
    if part["index"] is not None:
        # Where names look alike, a member of an object is told by its place.
        inside = list(outer.values()) if isinstance(outer, dict) else outer
        index = int(part["index"])
        return [inside[index]] if isinstance(inside, list) and index < len(inside) else []
    if not isinstance(outer, dict):
        return []
    if part["name"] is not None:
        return [outer[part["name"]]] if part["name"] in outer else []
    json.loads(part["quoted"])  # it is a JSON string
    return [inner for name, inner in outer.items() if quoted(name) == part["quoted"]]
