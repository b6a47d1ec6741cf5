"""Reading a request's body: at most so large, at most so slow, at most so much of all together.

The raw ASGI `receive` is read here and nowhere else.  `Intake` wraps it to remember whether
the body has come to its end, which decides how the connection can be left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from gaoler.http.errors import ClientGone, Problem

_T = TypeVar("_T")
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

# After an answer that came before the body's end, the connection is kept for this long, and
# so much of what the client is still sending is taken from the socket and thrown away.
# Closing at once would make the kernel send a reset, and a reset can destroy the answer
# before the client has read it.
LINGER_S = 2.0
LINGER_BYTES = 1 << 20
# Without a key nobody makes us work.
STRANGER_LINGER_S = 0.5
STRANGER_LINGER_BYTES = 64 << 10


class Intake:
    """One request's incoming messages.

    Invariant: `complete` is true once the last piece of the body was received or the client
    has gone, and from then on `next_piece` is not called.

    No time limit here is kept by cancelling `receive`: gunicorn's awaits `asyncio.wait_for`,
    which up to Python 3.11 swallows a cancellation that meets a piece, and whoever relied on
    it would read for ever.  So `receive` runs in a task of its own that can be left alone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._coming: asyncio.Task[Mapping[str, Any]] | None = None  # at most one at a time
        self.complete = False

    async def next_piece(self, until: float = math.inf) -> bytes:
        """The next piece of the body.

        Raises ClientGone; TimeoutError where the loop's time is `until` and nothing has come.
        What comes after that is the next call's.
        """
        message = await self._next_message(until)
        if message["type"] == "http.disconnect":
            self.complete = True
            raise ClientGone
        self.complete = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def _next_message(self, until: float) -> Mapping[str, Any]:
        left_s = until - asyncio.get_running_loop().time()
        if left_s <= 0:  # else a client with a piece for every turn of the loop is never late
            raise TimeoutError
        if self._coming is None:
            self._coming = asyncio.create_task(_awaited(self._receive))
        await asyncio.wait({self._coming}, timeout=None if left_s == math.inf else left_s)
        if not self._coming.done():
            raise TimeoutError
        message = self._coming.result()
        self._coming = None
        return message

    def drop(self) -> None:
        """Read nothing more."""
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None

    async def gone(self) -> None:
        """Return when the client goes away; for use after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def linger(self, *, stranger: bool = False) -> None:
        """Throw away what is still coming, within the bounds above.

        A client that sends more finds the connection full, but has the rest of the time to
        read its answer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (STRANGER_LINGER_S if stranger else LINGER_S)
        left_bytes = STRANGER_LINGER_BYTES if stranger else LINGER_BYTES
        try:
            while not self.complete and left_bytes > 0:
                left_bytes -= len(await self.next_piece(until))
        except (TimeoutError, ClientGone):
            return
        if not self.complete:
            await asyncio.sleep(until - loop.time())


async def _awaited(receive: Receive) -> Mapping[str, Any]:
    """A coroutine, which `receive` may not be one of: ASGI promises an awaitable alone."""
    return await receive()


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
    until = asyncio.get_running_loop().time() + timeout_ms / 1000
    try:
        while not intake.complete:
            piece = await intake.next_piece(until)
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


class Checking:
    """Where bodies are checked: small ones at once, large ones in a thread, one at a time.

    Checking one of 30 MiB takes seconds, in which health must still be answered.  Side by
    side they would be no faster, and each takes many times its size in memory.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def check(self, body_bytes: int, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises."""
        if body_bytes < LARGE_BODY_BYTES:
            return work()
        async with self._turn:
            return await _in_a_thread(work)


async def _in_a_thread(work: Callable[[], _T]) -> _T:
    """What `work` returns or raises.

    A thread cannot be stopped.  So a cancellation waits for its end: until then the turn is
    not the next one's, and the memory of the body is not given back.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.wait({running})
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # looked at, so that nobody complains that it was not
        raise
    return running.result()
