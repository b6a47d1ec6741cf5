"""Fuzzed: a body's bytes, against Python's own reader of JSON made strict.

Input: a body.
"""

from __future__ import annotations

import json
import math
from typing import Any
from unittest import mock

from gaoler.http import decode as decode_module
from gaoler.http.decode import decode
from gaoler.http.errors import Problem

LONGEST_BYTES = 400
WORDS = (
    *(b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity", rb"\ud83d\ude00", rb"\ud800"),
    *(rb"\udc00", rb"\n", rb"\u0000", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"1e999", b"-0.0"),
    *(b"01", b"1.", b"[],", b'"":0,', rb"\\", rb"\"", b"[[", b"]]", b"{}", b"9007199254740993"),
)
# So that a small input can have more than the most.
MOST_VALUES = 20
# Of brackets; the interpreter's own stack decides how many more are too many.
_DEEP = 150


class Refused(ValueError):
    """No JSON."""


def fuzz(data: bytes) -> None:
    with mock.patch.object(decode_module, "MOST_VALUES", MOST_VALUES):
        check(data, MOST_VALUES)


def check(body: bytes, most_values: int = decode_module.MOST_VALUES) -> None:
    """A body is taken exactly where the strict reader takes it, and means the same."""
    try:
        got = decode(body)
    except Problem as problem:
        check_refusal(problem)
        _check_deserved(problem, body, most_values)
        return
    wanted, values = strictly(body)
    assert values <= most_values
    assert finite(got)
    assert close(got, wanted), f"{got!r} is not {wanted!r}"


def check_refusal(problem: Problem) -> None:
    assert problem.code in ("invalid_request", "limits_exceeded")
    assert problem.detail.isprintable()
    assert len(problem.detail) < 300


def _check_deserved(problem: Problem, body: bytes, most_values: int) -> None:
    if "nested too deeply" in problem.detail:
        assert body.count(b"[") + body.count(b"{") > _DEEP
        return
    try:
        wanted, values = strictly(body)
    except Refused:
        assert problem.status == 400
        return
    if values > most_values:
        assert problem.status == 422
    else:
        assert "too large" in problem.detail
        assert not finite(wanted)


def strictly(body: bytes) -> tuple[Any, int]:
    """The value, and how many values there are in it.  Raises Refused."""
    values = 1  # all but the outermost are counted where they stand

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal values
        values += len(pairs)
        values += sum(_inside_lists(value) for _, value in pairs)
        return dict(pairs)

    def refuse(word: str) -> None:
        raise Refused(word)

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=refuse, object_pairs_hook=take)
        json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as error:
        raise Refused(str(error))
    return value, values + _inside_lists(value)


def _inside_lists(value: Any) -> int:
    """Values in a list, and in lists in it; objects count their own."""
    if not isinstance(value, list):
        return 0
    return len(value) + sum(map(_inside_lists, value))


def finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(finite, value))
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


def close(one: Any, other: Any) -> bool:
    """Equal but for the last digit of a float: ujson does not round as Python does."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
