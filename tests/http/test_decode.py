"""What is JSON comes through as it was written; what is not is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gaoler.http.decode import MOST_VALUES, decode
from gaoler.http.errors import Problem

# Every body that ujson alone would take although JSON forbids it is in here.
NOT_JSON = {
    "nothing": b"",
    "white space alone": b" \n",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a bare word": b"steps",
    "trailing garbage": b'{"steps": []} x',
    "a second value": b"1 2",
    "a NUL after the end": b"{}\0",
    "an open object": b'{"steps": [{"cmd": "/bin/true"}',
    "a trailing comma in an array": b"[1,]",
    "a trailing comma in an object": b'{"a":1,}',
    "a leading comma": b"[,1]",
    "a leading zero": b"01",
    "a leading zero after a minus": b"[-01]",
    "two zeros": b"00",
    "a plus sign": b"+1",
    "a point without digits after it": b"1.",
    "a point without digits before it": b".5",
    "a bare minus": b"-",
    "an exponent without digits": b"1e",
    "a hexadecimal number": b"0x10",
    "an underscore in a number": b"1_0",
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "NaN in an ignored field": b'{"steps": [], "x": [{"y": NaN}]}',
    "a number that no float holds": b'{"x": 1e999}',
    "a number that no float holds, in full": b"[" + b"9" * 400 + b".5]",
    "an integer of five thousand digits": b"1" * 5000,
    "a raw newline in a string": b'"a\nb"',
    "a raw tab in a string": b'"a\tb"',
    "a raw control character in a string": b'"a\x01b"',
    "a raw NUL in a string": b'"a\0b"',
    "a raw control character in a key": b'{"a\x1fb": 1}',
    "an unknown escape": rb'"\x41"',
    "half an escape": rb'"\u12"',
    "single quotes": b"'a'",
    "a comment": b"/* c */ 1",
    "a line comment": b"1 // c",
    "a key that is no string": b"{1: 2}",
    "a bare key": b"{a: 1}",
    "Python's words": b"[True, None]",
    "a form feed": b"\x0c1",
    "a byte that is not UTF-8": b'{"steps": ["caf\xe9"]}',
    "an overlong encoding": b'"\xc0\x80"',
    "a surrogate as bytes": b'"\xed\xa0\x80"',
    "UTF-16": '"a"'.encode("utf-16"),
    "a lone high surrogate": rb'"x\ud800y"',
    "a lone low surrogate": rb'"\udc00"',
    "two surrogates the wrong way round": rb'"\ude00\ud83d"',
    "a high surrogate before another escape": rb'"\ud83d\u0041"',
    "a lone surrogate in a key": rb'{"\ud800": 1}',
    "a lone surrogate in an ignored field": rb'{"steps": [], "x": ["\udfff"]}',
    "three thousand brackets": b"[" * 3000 + b"]" * 3000,
    "three thousand objects": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "a hundred thousand open brackets": b"[" * 100_000,
    "deep brackets inside a request": b'{"steps": [' + b"[" * 3000 + b"]" * 3000 + b"]}",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_a_400(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        decode(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    assert refused.value.detail.isprintable()
    assert len(refused.value.detail) < 300


@pytest.mark.parametrize("body", [b"1" * 5000, b'{"x": [' + b"1" * 5000 + b"]}"])
def test_a_number_of_too_many_digits_is_told_in_words_for_a_client(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        decode(body)
    assert refused.value.detail == "the body has a number of too many digits"


TOO_MANY_VALUES = {
    "numbers": b"[" + b"0," * (MOST_VALUES - 1) + b"0]",
    "empty arrays": b'{"x": [' + b"[]," * MOST_VALUES + b"[]]}",
    "empty objects": b"[" + b"{ } , " * MOST_VALUES + b"{}]",
    "empty strings": b"[" + b'"",' * (4 * MOST_VALUES) + b'""]',
    "arrays in arrays": b"[" + b",".join([b"[" * 500 + b"]" * 500] * 1001) + b"]",
    "members": b"{" + b'"":0,' * MOST_VALUES + b'"":0}',
    "odd strings": b"[" + rb'"\"\\","a,\\\"",' * (MOST_VALUES // 2) + b"0]",
}


@pytest.mark.parametrize("body", TOO_MANY_VALUES.values(), ids=TOO_MANY_VALUES.keys())
def test_more_values_than_anybody_needs_are_a_422(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        decode(body)
    assert (refused.value.status, refused.value.code) == (422, "limits_exceeded")
    assert refused.value.detail == "the body has more than 500000 values"


def test_as_many_values_as_are_allowed_are_taken() -> None:
    # The array itself is one.
    assert decode(b"[" + b"0," * (MOST_VALUES - 2) + b"0]") == [0] * (MOST_VALUES - 1)
    assert decode(b"[" + b"[ ]," * (MOST_VALUES - 2) + b"{}]")
    members = b",".join(b'"%d":""' % number for number in range(MOST_VALUES - 1))
    assert len(decode(b"{" + members + b"}")) == MOST_VALUES - 1  # type: ignore[arg-type]


@pytest.mark.parametrize("sign", [",", "[", "{", "[]", '",', '\\",[', "\\,"])
def test_what_stands_in_a_string_is_no_value(sign: str) -> None:
    text = sign * (MOST_VALUES + 1)
    assert decode(json.dumps([text, 1]).encode()) == [text, 1]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"null", None),
        (b' {"a": [1, 2.5, true, "x"]}\n', {"a": [1, 2.5, True, "x"]}),
        (rb'"caf\u00e9 \ud83d\ude00 \u0000 \/"', "café 😀 \0 /"),
        ('"ü\u2028"'.encode(), "ü\u2028"),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"[-0, 0, 1e5, 1E-5, 10.0]", [0, 0, 1e5, 1e-5, 10.0]),
        (b"[1125899906842624, 18446744073709551616]", [2**50, 2**64]),
        (b'"1e999 is only text"', "1e999 is only text"),
    ],
)
def test_what_is_json_is_taken_as_written(body: bytes, value: object) -> None:
    assert decode(body) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\0é😀"), inner),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_every_value_comes_back_as_it_was(value: Any, ascii_only: bool) -> None:
    decoded = decode(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert decoded == value or _close(decoded, value)


def _close(one: Any, other: Any) -> bool:
    """Equal but for the last digit of a float: ujson does not round as Python does."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    return bool(one == other)


SIGNS = st.sampled_from([bytes([sign]) for sign in b'{}[],:"\\01-.e+ \n\0a/'])
WORDS = st.sampled_from(
    [b"true", b"null", b"NaN", b"Infinity", rb"\ud800", rb"\udc00", rb"\n", b"\xff", b"\xc3\xa9"]
)
PIECES = SIGNS | WORDS


def _strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
    return value


@given(st.lists(PIECES, max_size=12).map(b"".join) | st.binary(max_size=30))
@example(b"-")
@example(b"[01]")
def test_a_body_is_taken_exactly_where_pythons_strict_reader_takes_it(body: bytes) -> None:
    try:
        wanted = _strict(body.decode("utf-8"))
    except ValueError:
        with pytest.raises(Problem):
            decode(body)
        return
    try:
        assert decode(body) == wanted or _close(decode(body), wanted)
    except Problem as problem:
        # Python reads 1e999 as infinity; here it is too large.
        assert "too large" in problem.detail  # noqa: PT017
