"""Reading a request's body: at most so large, at most so slow, at most so much of all together.

The raw ASGI `receive` is read here and nowhere else.  `Intake` wraps it to remember whether
the body has come to its end, which decides how the connection can be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from gaoler.http.errors import ClientGone, Problem

_T = TypeVar("_T")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

# After an answer that came before the body's end, what the client is still sending is taken
# from the socket and thrown away for this long.  Closing at once would make the kernel send
# a reset, and a reset can destroy the answer before the client has read it.
LINGER_S = 2.0


class Intake:
    """One request's incoming messages.

    Invariant: `complete` is true once the last piece of the body was received or the client
    has gone, and from then on `next_piece` is not called.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def next_piece(self) -> bytes:
        """The next piece of the body.  Raises ClientGone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.complete = True
            raise ClientGone
        self.complete = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def gone(self) -> None:
        """Return when the client goes away; for use after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def linger(self) -> None:
        """Throw away what is still coming, for at most LINGER_S."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not self.complete:
                    await self.next_piece()
        except (TimeoutError, ClientGone):
            pass


class AdmittedBytes:
    """The bodies in memory, all together.

    Invariant: 0 <= taken <= limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.taken_bytes = 0

    def check(self) -> None:
        """State the invariant."""
        assert 0 <= self.taken_bytes <= self._limit_bytes

    @contextmanager
    def share(self) -> Iterator[Share]:
        """One request's part of it, given back at the end whatever happens."""
        share = Share(self)
        try:
            yield share
        finally:
            self.taken_bytes -= share.size_bytes

    def take(self, size_bytes: int) -> bool:
        """Whether there is room for that much more; then it is taken."""
        if self.taken_bytes + size_bytes > self._limit_bytes:
            return False
        self.taken_bytes += size_bytes
        return True


class Share:
    """What one request holds of AdmittedBytes."""

    def __init__(self, whole: AdmittedBytes) -> None:
        self._whole = whole
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Take more.  Raises Problem 503 `capacity_exhausted`."""
        if not self._whole.take(size_bytes):
            raise Problem(
                "capacity_exhausted",
                "too many request bodies are in memory",
                reason="busy",
                retry_after_s=1,
            )
        self.size_bytes += size_bytes


def check_headers(headers: Mapping[str, str], limit_bytes: int) -> None:
    """Refuse by the headers alone: 415 for what is not JSON, 413 for a declared size too large.

    The names are in lower case.
    """
    if not _is_json(headers.get("content-type", "")):
        raise Problem("unsupported_media_type", "Content-Type must be application/json")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Problem("unsupported_media_type", "a Content-Encoding is not taken")
    declared = headers.get("content-length", "").strip()
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)


def _is_json(content_type: str) -> bool:
    """application/json, with no charset but UTF-8."""
    media_type, *parameters = content_type.split(";")
    if media_type.strip().lower() != "application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower() in ("utf-8", "utf8")
    return True


async def read_body(intake: Intake, share: Share, limit_bytes: int, timeout_ms: int) -> bytearray:
    """The whole body.

    The time is the whole body's: a client that sends drop by drop gains nothing.  Raises
    Problem 400 `body_timeout`, 413 `body_too_large` as soon as one byte too many has come,
    503 `capacity_exhausted`; ClientGone.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while not intake.complete:
                piece = await intake.next_piece()
                if len(body) + len(piece) > limit_bytes:
                    raise _too_large(limit_bytes)
                share.grow(len(piece))
                body += piece
    except TimeoutError:
        raise Problem("body_timeout", f"the body did not arrive within {timeout_ms} ms")
    return body


def _too_large(limit_bytes: int) -> Problem:
    return Problem("body_too_large", f"the body is larger than {limit_bytes} bytes")


# A body below this is checked faster than a thread could be told to.
LARGE_BODY_BYTES = 64 << 10


async def off_the_loop(body_bytes: int, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises; for a large body it runs in a thread.

    Checking one of 30 MiB takes seconds, in which health must still be answered.
    """
    if body_bytes < LARGE_BODY_BYTES:
        return work()
    return await asyncio.to_thread(work)
