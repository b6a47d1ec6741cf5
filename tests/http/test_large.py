"""Answers that are written piece by piece."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaoler.http import errors, large
from gaoler.http.decode import decode
from gaoler.http.large import Base64, Text, UnsentAnswers, joined, pieces

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab"\\é', max_size=4), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_in_pieces_an_answer_is_what_it_is_in_one(value: object) -> None:
    assert b"".join(pieces(value)) == errors.dump(value)


@given(st.binary(), st.integers(1, 7))
def test_a_text_is_the_same_wherever_it_was_cut(data: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "_PIECE_BYTES", size)
        written = b"".join(pieces({"a": Text(data)}))
    assert decode(written) == {"a": data.decode("utf-8", "replace")}


@given(st.binary(), st.integers(1, 7))
def test_base64_is_the_same_wherever_it_was_cut(data: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "_PIECE_BYTES", 3 * size)
        written = b"".join(pieces([Base64(data)]))
    assert decode(written) == [base64.b64encode(data).decode()]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 50))
def test_small_parts_are_joined_and_none_is_lost(parts: list[bytes], least: int) -> None:
    written = list(joined(iter(parts), least))
    assert b"".join(written) == b"".join(parts)
    assert all(len(part) >= least for part in written[:-1])


def test_no_piece_is_much_longer_than_what_it_is_made_from() -> None:
    written = list(joined(pieces(Text(b"\0" * (1 << 20)))))
    assert max(map(len, written)) <= large.LARGE_BYTES + 6 * (48 << 10)
    assert len(written) > 10


def test_answers_without_room_cut_off_those_that_are_the_longest_under_way() -> None:
    unsent = UnsentAnswers(100)
    ended: list[str] = []
    first = unsent.hold(60, lambda: ended.append("first"))
    second = unsent.hold(30, lambda: ended.append("second"))
    with first, second:
        with unsent.hold(50, lambda: ended.append("third")):
            assert ended == ["first"]
            assert unsent.held_bytes == 80
            unsent.check()
        with unsent.hold(1000, lambda: ended.append("fourth")):
            assert ended == ["first", "second"]  # one alone may be larger than all
            unsent.check()
    assert unsent.held_bytes == 0


def test_an_answer_counts_until_it_was_sent_or_given_up() -> None:
    unsent = UnsentAnswers(100)

    async def send(whole: bool) -> None:
        sent: Any = unsent.send([Text(b"x" * (1 << 20))], 40, lambda: None)
        await anext(sent)
        assert unsent.held_bytes == 40
        if whole:
            assert [piece async for piece in sent]
        await sent.aclose()

    for whole in (True, False):
        asyncio.run(send(whole))
        assert unsent.held_bytes == 0
