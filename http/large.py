"""Answers too large to be made at once: written piece by piece, and bounded all together.

A program's output of 16 MiB can be JSON of 120 MiB.  Making that in one go would hold the
event loop for a second and keep all of it for as long as the client takes; so what is kept is
the output as it came, and each piece is made when the client has taken the one before.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gaoler.http import errors

# From here on, of outputs and files in one answer, it is written piece by piece.
LARGE_BYTES = 64 << 10
# Bytes of the output in one piece; its JSON is up to six times as long.  A multiple of
# three, so that pieces of base64 join without padding.
_PIECE_BYTES = 48 << 10


@dataclass(frozen=True, slots=True)
class Text:
    """Stands in an answer for the text of these bytes, what is no UTF-8 replaced."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Base64:
    """Stands in an answer for these bytes as base64."""

    data: bytes


def pieces(value: object) -> Iterator[bytes]:
    """The JSON of an answer that may hold `Text` and `Base64`; joined, what `dump` would give."""
    if isinstance(value, Text):
        yield from _quoted(_text(value.data))
    elif isinstance(value, Base64):
        yield from _quoted(_base64(value.data))
    elif isinstance(value, Mapping):
        yield from _object(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from _array(value)
    else:
        yield errors.dump(value)


def _object(value: Mapping[str, object]) -> Iterator[bytes]:
    before = b"{"
    for name, member in value.items():
        yield before + errors.dump(name) + b":"
        yield from pieces(member)
        before = b","
    yield b"}" if value else b"{}"


def _array(value: Sequence[object]) -> Iterator[bytes]:
    before = b"["
    for member in value:
        yield before
        yield from pieces(member)
        before = b","
    yield b"]" if value else b"[]"


def _quoted(texts: Iterator[str]) -> Iterator[bytes]:
    yield b'"'
    for text in texts:
        yield errors.dump(text)[1:-1]
    yield b'"'


def _text(data: bytes) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(data), _PIECE_BYTES):
        yield decoder.decode(data[start : start + _PIECE_BYTES])
    yield decoder.decode(b"", final=True)


def _base64(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield base64.b64encode(data[start : start + _PIECE_BYTES]).decode("ascii")


def joined(parts: Iterator[bytes], least: int = LARGE_BYTES) -> Iterator[bytes]:
    """The same bytes in parts that are worth a write each."""
    kept: list[bytes] = []
    size = 0
    for part in parts:
        kept.append(part)
        size += len(part)
        if size >= least:
            yield b"".join(kept)
            kept, size = [], 0
    if kept:
        yield b"".join(kept)


class UnsentAnswers:
    """The outputs in answers that are being sent, all together.

    Clients that take nothing of their answers must not fill the memory: where a new one has
    no room, those that have been under way the longest are cut off.

    Invariant: held <= limit, or there is one answer alone.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[object, tuple[int, Callable[[], None]]] = {}  # the oldest first

    @property
    def held_bytes(self) -> int:
        return sum(size for size, _ in self._held.values())

    def check(self) -> None:
        """State the invariant."""
        assert self.held_bytes <= self._limit_bytes or len(self._held) == 1

    async def send(
        self, answer: object, held_bytes: int, cut_off: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """The answer's JSON; each piece is made when the one before has been taken."""
        with self.hold(held_bytes, cut_off):
            for piece in joined(pieces(answer)):
                yield piece
                await asyncio.sleep(0)  # a client that takes all at once is not alone here

    @contextmanager
    def hold(self, size_bytes: int, cut_off: Callable[[], None]) -> Iterator[None]:
        """Count an answer for as long as it is being sent; `cut_off` ends its connection."""
        while self._held and self.held_bytes + size_bytes > self._limit_bytes:
            oldest = next(iter(self._held))
            self._held.pop(oldest)[1]()
        key = object()
        self._held[key] = (size_bytes, cut_off)
        try:
            yield
        finally:
            self._held.pop(key, None)
