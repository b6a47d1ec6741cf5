"""How long both clients wait, when they ask again, and what they leave behind."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
from collections.abc import Callable

import anyio
import httpx
import pytest

from gaoler.http.client import (
    AnswerGarbled,
    AsyncClient,
    Backoff,
    Client,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerUnavailable,
    Times,
)
from tests.hosting import LIMIT_S
from tests.http.asking import HELLO, OK, Ask, Serve, ask_sync, problem
from tests.http.scripted import Script, answering, http, sends, trickles, waits_for_the_end

pytest_plugins = ["tests.http.client_fixtures"]

BUSY = http("503 Busy", b'{"detail": "full", "reason": "busy"}', {"Retry-After": "4"})

# A service that is given up after a moment.
IMPATIENT = Times(
    wall_timeout_ms=250,
    budget_grace_ms=0,
    queue_allowance_interactive_ms=0,
    runner_ttl_slack_ms=0,
)


# --- waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        waits_for_the_end,
        trickles(b"HTTP/1.1 200 OK\r\nX: "),
        trickles(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"),
    ],
    ids=["silent", "slow head", "slow body"],
)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_wait_that_was_outlasted_is_busy_and_the_connection_is_closed(
    ask: Ask, serve: Serve, tls: ssl.SSLContext, script: Script, secure: bool
) -> None:
    server = serve(script, tls=tls if secure else None)
    with pytest.raises(RunnerBusy) as caught:
        ask(server.url, times=IMPATIENT)
    assert caught.value.detail == f"127.0.0.1:{server.port}: no answer within 0.25 s"
    assert (caught.value.status, caught.value.retry_after_s) == (None, None)
    assert server.served.acquire(timeout=LIMIT_S)
    assert len(server.requests) <= 1


def test_a_transport_that_is_not_httpxs_own_has_the_wait_for_each_read(ask: Ask) -> None:
    def slow(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["read"] == 0.25
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(RunnerBusy, match="no answer within"):
        ask("http://host", transport=httpx.MockTransport(slow), times=IMPATIENT)


def test_no_thread_is_left_of_a_request(serve: Serve) -> None:
    server = serve(sends(OK))
    before = threading.active_count()
    ask_sync(server.url)
    assert threading.active_count() == before


def test_a_cancelled_call_closes_its_connection(serve: Serve) -> None:
    asked = threading.Event()

    def begins(connection: socket.socket) -> None:
        asked.set()
        waits_for_the_end(connection)

    async def leave(url: str) -> None:
        async with AsyncClient(url) as client, anyio.create_task_group() as group:
            group.start_soon(client.execute, HELLO)
            assert await anyio.to_thread.run_sync(asked.wait, LIMIT_S)
            group.cancel_scope.cancel()

    server = serve(begins)
    anyio.run(leave, server.url)
    assert server.served.acquire(timeout=LIMIT_S)


def test_ctrl_c_closes_the_connection(serve: Serve) -> None:
    us = threading.get_ident()

    def interrupting(connection: socket.socket) -> None:
        signal.pthread_kill(us, signal.SIGINT)
        waits_for_the_end(connection)

    server = serve(interrupting)
    # Whoever started the tests in the background may have had SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask_sync(server.url)
    finally:
        signal.signal(signal.SIGINT, before)
    assert server.served.acquire(timeout=LIMIT_S)


# --- retries ------------------------------------------------------------------------------


def test_nothing_is_asked_twice_unasked(ask: Ask, serve: Serve) -> None:
    for answer in (BUSY, http("500 Oh", b""), http("503 Gone", b""), http("400 No", b""), b""):
        server = serve(sends(answer))
        with pytest.raises(RunnerError):
            ask(server.url)
        assert len(server.requests) == 1


def test_an_overrun_is_an_answer_and_is_not_asked_again(ask: Ask, serve: Serve) -> None:
    cut = {"results": [{"outcome": "not_started", "reason": "budget"}], "overrun": True}
    server = serve(sends(http("200 OK", json.dumps(cut).encode())))
    assert ask(server.url, retries=5).overrun
    assert len(server.requests) == 1


def test_a_busy_service_is_asked_again_where_that_is_wanted(ask: Ask, serve: Serve) -> None:
    server = serve(sends(BUSY), sends(BUSY), sends(OK))
    pauses: list[float] = []
    assert ask(server.url, retries=2, sleep=pauses.append, chance=lambda: 0.0).request_id == "r"
    assert pauses == [4.25, 4.5]  # Retry-After, and half of 500 and of 1 000 ms
    assert len(set(server.requests)) == 1
    assert len(server.requests) == 3


def test_who_stays_busy_is_left_after_the_last_retry(ask: Ask, serve: Serve) -> None:
    server = serve(sends(BUSY))
    with pytest.raises(RunnerBusy, match="full"):
        ask(server.url, retries=2, sleep=lambda _: None)
    assert len(server.requests) == 3


def test_no_retry_begins_after_the_total(ask: Ask, serve: Serve) -> None:
    server = serve(sends(BUSY))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    policy = Backoff(retries=100, first_ms=0, total_ms=10_000)
    with pytest.raises(RunnerBusy):
        ask(server.url, retries=policy, sleep=sleep, clock=lambda: now[0])
    assert now[0] == 8.0  # 12 would be too late
    assert len(server.requests) == 3


def test_only_a_busy_service_is_asked_again(ask: Ask, serve: Serve) -> None:
    for answer in (http("500 Oh", b""), http("503 Gone", b""), http("400 No", b""), b""):
        server = serve(sends(answer))
        with pytest.raises(RunnerError):
            ask(server.url, retries=3, sleep=lambda _: pytest.fail("it waits"))
        assert len(server.requests) == 1


# --- health -------------------------------------------------------------------------------


def health_sync(transport: httpx.MockTransport) -> None:
    with Client("http://host", transport=transport, retries=3) as client:
        client.health()


def health_async(transport: httpx.MockTransport) -> None:
    async def once() -> None:
        async with AsyncClient("http://host", transport=transport, retries=3) as client:
            await client.health()

    anyio.run(once)


@pytest.mark.parametrize("health", [health_sync, health_async])
def test_health_returns_where_the_service_is_ready_and_raises_where_not(
    health: Callable[[httpx.MockTransport], None],
) -> None:
    health(answering(200, {"status": "ok", "new": 1}))
    for status, body, kind in (
        (503, problem("not_ready"), RunnerUnavailable),
        (429, problem("rate_limited"), RunnerUnavailable),
        (200, {"status": "odd"}, RunnerUnavailable),
        (200, b"<html>", AnswerGarbled),
        (404, problem("not_found"), RequestRefused),
    ):
        with pytest.raises(kind):
            health(answering(status, body))
