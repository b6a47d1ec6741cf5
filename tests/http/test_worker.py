"""The worker's protocol by itself: how long a connection may keep us waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]

from gaoler.http import worker
from gaoler.http.worker import ProblemProtocol

LIMIT_S = 20.0
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BEGUN = b"GET / HTTP/1.1\r\nHo"
LARGE_BYTES = 64 << 20  # more than the kernel takes

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Log(logging.Logger):
    access_log_enabled = False


class Watched(ProblemProtocol):
    """One that says when its connection has ended."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()


class Connection:
    """A client's end, and the protocol at the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: Watched
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = protocol

    async def hear(self) -> bytes:
        """One answer's body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await self.reader.readexactly(int(length))

    async def ended(self) -> bool:
        return await self.reader.read() == b""


def serve(
    talk: Callable[[Connection], Awaitable[None]],
    body: bytes = b"ok",
    meanwhile: Callable[[], None] = lambda: None,
    connections: int = 1_000,
) -> None:
    """Let a client talk to a server that gives everybody this body."""

    async def application(scope: object, receive: object, send: Send) -> None:
        meanwhile()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> None:
        config = Config()
        config.set("keepalive", 600)  # so that no other time limit can be the one that is met
        owner = SimpleNamespace(
            cfg=config,
            log=Log("gunicorn"),
            asgi=application,
            loop=asyncio.get_running_loop(),
            nr_conns=0,
            worker_connections=connections,
            nr=0,
            max_requests=sys.maxsize,
            alive=True,
            open_connections=set(),
        )
        made: list[Watched] = []

        def make() -> Watched:
            made.append(Watched(owner))
            return made[-1]

        server = await owner.loop.create_server(make, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            while not made or made[0].transport is None:
                await asyncio.sleep(0)
            await talk(Connection(reader, writer, made[0]))
        finally:
            writer.transport.abort()
            await made[0].lost.wait()
            server.close()
            await server.wait_closed()
        assert owner.nr_conns == 0

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


@pytest.mark.parametrize("begun", [b"", b"GE", BEGUN])
def test_a_connection_on_which_no_head_is_completed_is_closed(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HEAD_S", 0.01)

    async def talk(connection: Connection) -> None:
        connection.writer.write(begun)
        assert await connection.ended()

    serve(talk)


def test_a_later_request_that_begins_and_stalls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST)
        assert await connection.hear() == b"ok"
        monkeypatch.setattr(worker, "HEAD_S", 0.01)
        connection.writer.write(BEGUN)
        assert await connection.ended()

    serve(talk)


def test_a_request_that_began_behind_another_and_stalls_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST + BEGUN)
        assert await connection.hear() == b"ok"
        assert await connection.ended()

    serve(talk, meanwhile=lambda: monkeypatch.setattr(worker, "HEAD_S", 0.01))


def test_between_two_requests_the_limit_is_gunicorns_own() -> None:
    async def talk(connection: Connection) -> None:
        for _ in range(3):
            connection.writer.write(REQUEST)
            assert await connection.hear() == b"ok"
            while connection.protocol._keepalive_handle is None:
                await asyncio.sleep(0)
            assert connection.protocol._head_timer is None

    serve(talk)


def test_a_request_that_has_begun_is_not_ended_by_the_limit_for_idle_connections() -> None:
    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST)
        assert await connection.hear() == b"ok"
        connection.writer.write(BEGUN)
        while connection.protocol._head_timer is None:
            await asyncio.sleep(0)
        assert connection.protocol._keepalive_handle is None
        connection.writer.write(REQUEST.removeprefix(BEGUN))
        assert await connection.hear() == b"ok"

    serve(talk)


def test_an_answer_that_nobody_reads_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "UNREAD_ANSWER_S", 0.01)

    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST)
        await connection.protocol.lost.wait()

    serve(talk, bytes(LARGE_BYTES))


def test_a_closed_connection_does_not_wait_for_its_reader_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "UNREAD_ANSWER_S", 0.01)

    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST)
        while connection.protocol._unread_timer is None:
            await asyncio.sleep(0)
        connection.protocol._close_transport()
        await connection.protocol.lost.wait()

    serve(talk, bytes(LARGE_BYTES))


def test_the_least_byte_that_the_kernel_does_not_take_counts_as_unread() -> None:
    async def talk(connection: Connection) -> None:
        assert connection.protocol.transport.get_write_buffer_limits() == (0, 0)

    serve(talk)


def test_a_large_answer_that_is_read_leaves_the_connection_usable() -> None:
    async def talk(connection: Connection) -> None:
        for _ in range(2):
            connection.writer.write(REQUEST)
            assert len(await connection.hear()) == LARGE_BYTES
            while connection.protocol._unread_timer is not None:
                await asyncio.sleep(0)

    serve(talk, bytes(LARGE_BYTES))


def test_a_connection_beyond_the_most_there_may_be_is_ended_at_once() -> None:
    async def talk(connection: Connection) -> None:
        address = connection.writer.get_extra_info("peername")
        with contextlib.suppress(ConnectionResetError):
            reader, writer = await asyncio.open_connection(*address)
            try:
                assert await reader.read() == b""
            finally:
                writer.transport.abort()
        connection.writer.write(REQUEST)
        assert await connection.hear() == b"ok"

    serve(talk, connections=1)


def test_an_idle_connection_is_closed_where_the_worker_ends() -> None:
    async def talk(connection: Connection) -> None:
        connection.writer.write(REQUEST)
        assert await connection.hear() == b"ok"
        while connection.protocol._keepalive_handle is None:
            await asyncio.sleep(0)
        connection.protocol.close_if_idle()
        assert await connection.ended()

    serve(talk)


def test_a_connection_on_which_nothing_was_said_is_closed_where_the_worker_ends() -> None:
    async def talk(connection: Connection) -> None:
        while not connection.protocol._awaiting_request:
            await asyncio.sleep(0)
        connection.protocol.close_if_idle()
        assert await connection.ended()

    serve(talk)


def test_a_request_that_has_begun_is_not_idle() -> None:
    async def talk(connection: Connection) -> None:
        for begun in (BEGUN, REQUEST):
            connection.writer.write(begun)
            while not (connection.protocol._in_a_head or connection.protocol._current_request):
                await asyncio.sleep(0)
            connection.protocol.close_if_idle()
            connection.writer.write(REQUEST.removeprefix(begun))
            assert await connection.hear() == b"ok"

    serve(talk)
