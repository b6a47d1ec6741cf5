"""Fuzzed: the stream of frames, however it was cut.

Input: how long a frame may be, how the stream is cut, the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gaoler.sandbox import wire

LONGEST_BYTES = 400
WORDS = tuple(
    struct.pack("<IB", length, kind) for length in (0, 1, 2, 40) for kind in (0, 1, 2, 3, 4, 5)
)


def fuzz(data: bytes) -> None:
    if len(data) < 2:
        return
    longest, cut, stream = 1 + data[0] % 64, 1 + data[1] % 16, data[2:]
    check([stream[at : at + cut] for at in range(0, len(stream), cut)], longest)


def check(pieces: list[bytes], longest: int) -> None:
    """What comes out depends on the bytes alone, not on how they were cut."""
    frames, rest = cut_into_frames(b"".join(pieces), longest)
    decoder = wire.Decoder(longest)
    got: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            for one in decoder.feed(piece):
                check_payload(one[1], longest)
                got.append(one)
            assert decoder.pending < 4 + longest
    except wire.ProtocolError:
        assert rest is None
        assert_refused_for_good(decoder)
    else:
        assert rest is not None
        assert decoder.pending == len(rest)
    assert got == frames


def cut_into_frames(stream: bytes, longest: int) -> tuple[list[tuple[int, bytes]], bytes | None]:
    """The frames up to the end or a fault, and what is left over; None where there is a fault."""
    frames: list[tuple[int, bytes]] = []
    while len(stream) >= 5:
        length, kind = int.from_bytes(stream[:4], "little"), stream[4]
        if not 1 <= length <= longest or not 1 <= kind <= 4:
            return frames, None
        if len(stream) < 4 + length:
            break
        frames.append((kind, stream[5 : 4 + length]))
        stream = stream[4 + length :]
    return frames, stream


def check_payload(payload: bytes, longest: int) -> None:
    """A payload is short enough, and JSON, a result, or a ProtocolError."""
    assert len(payload) < longest
    readers = (wire.read_json, wire.unpack_result)
    for reader in readers:
        try:
            reader(payload)
        except wire.ProtocolError:
            pass


def assert_refused_for_good(decoder: wire.Decoder) -> None:
    """Once something was wrong nothing comes out any more, whatever follows."""
    for more in (b"", wire.frame(wire.GO, b"")):
        assert list(_until_refused(decoder.feed(more))) == []


def _until_refused(frames: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    try:
        yield from frames
    except wire.ProtocolError:
        return
    raise AssertionError("garbage was forgotten")
