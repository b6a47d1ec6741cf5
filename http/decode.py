"""A body's bytes as plain values, and everything that JSON (RFC 8259) does not allow refused.

ujson does the decoding.  It is laxer than JSON: it takes NaN and Infinity, lone surrogates
(escaped ones and such as CESU-8 bytes), control characters inside strings, "01", "1." and a
bare "-".  Each of these would come back later as a 500, or as a value that the client did
not write.  So the text first passes a checker that builds nothing and knows no mercy; it
costs a tenth of the decoding.
"""

from __future__ import annotations

import math
import re

import msgspec
import ujson

from gaoler.http.errors import Problem

# Each value takes memory and time with the interpreter's lock held, in which nothing else
# runs: `[],` costs its sender three bytes and us a hundred.
MOST_VALUES = 500_000

_STRING = re.compile(rb'"[^"]*"')  # once the escapes are gone


def decode(body: bytes | bytearray) -> object:
    """The value that `body` spells; of two equal keys the later one counts.

    Raises Problem 400 `invalid_request` for all that is not JSON in UTF-8, for nesting
    deeper than about a thousand levels, and for numbers that no float or int can hold;
    422 `limits_exceeded` for more than MOST_VALUES values.
    """
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem("invalid_request", f"the body is not UTF-8 (at byte {error.start})")
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        _check_count(body)
        value: object = ujson.loads(text)
    except RecursionError:
        raise Problem("invalid_request", "the body is nested too deeply")
    except (msgspec.DecodeError, ujson.JSONDecodeError) as error:
        raise Problem("invalid_request", f"the body is not valid JSON: {_reason(error)}")
    except ValueError:  # Python's own limit for an int's digits
        raise Problem("invalid_request", "the body has a number of too many digits")
    if _has_infinity(value):
        raise Problem("invalid_request", "the body has a number that is too large")
    return value


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")[:200]


def _check_count(body: bytes | bytearray) -> None:
    """Raise Problem 422 where there are more than MOST_VALUES; the body is valid JSON."""
    # Every value but the first has a comma or an opening bracket before it.
    if body.count(b",") + body.count(b"[") + body.count(b"{") < MOST_VALUES:
        return
    without_escapes = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value has at most four quotes: those of its name and its own.
    if without_escapes.count(b'"') > 4 * MOST_VALUES or _values(without_escapes) > MOST_VALUES:
        raise Problem("limits_exceeded", f"the body has more than {MOST_VALUES} values")


def _values(body: bytes | bytearray) -> int:
    """How many values there are, at all depths; the body is JSON without escaped quotes."""
    signs = _STRING.sub(b"0", body).translate(None, b" \t\r\n")
    empty = signs.count(b"[]") + signs.count(b"{}")
    return 1 + signs.count(b",") + signs.count(b"[") + signs.count(b"{") - empty


def _has_infinity(value: object) -> bool:
    """True where a number in the value, at any depth, was too large for a float."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, float) and not math.isfinite(one):
            return True
    return False
