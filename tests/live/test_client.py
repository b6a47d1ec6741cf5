"""The client library against a real service: one slot, and one place in the queue."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import anyio
import pytest

from gaoler.http.client import (
    AsyncClient,
    Backoff,
    Client,
    File,
    Limits,
    NotConnected,
    Pipe,
    Request,
    RequestRefused,
    RunnerBusy,
    RunnerUnavailable,
    Task,
    Tasks,
    Times,
    budget_ms,
)
from tests.conftest import _need_sandbox
from tests.emulation import stretched
from tests.hosting import LIMIT_S, LiveService, eventually
from tests.http.asking import Ask

pytest_plugins = ["tests.http.client_fixtures"]

SLEEPER = Task("/bin/sleep", ["60"], limits=Limits(wall_ms=25_000))
ECHO = Request([Task("/bin/echo", ["hi"])])
OTHER = "somebody-elses"
SHORT_MS = int(stretched(700))


@pytest.fixture(scope="module")
def _service_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    _need_sandbox()
    folder = tmp_path_factory.mktemp("service")
    for each in (folder, *folder.parents[:2]):  # pytest's folders are root's alone
        each.chmod(0o755)
    live = LiveService(folder, MAX_CONCURRENCY="1", QUEUE_LIMIT_INTERACTIVE="1").start()
    yield live
    assert live.stop() == 0


@pytest.fixture
def service(_service_of_the_module: LiveService) -> Iterator[LiveService]:
    """A service that all tests of this module share; each leaves it idle."""
    yield _service_of_the_module
    eventually(_service_of_the_module.is_idle, "every slot is free")


def url(service: LiveService) -> str:
    return f"http://127.0.0.1:{service.port}"


def requests(service: LiveService) -> list[tuple[int, str | None]]:
    """(status, code) of every request of a client of ours, as the service's log has it."""
    text = service.log_path.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [
        (line["status"], line["code"])
        for line in lines
        if line["event"] == "request"
        and line["path"] == "/api/v1/execute"
        and line["request_id"] != OTHER
    ]


@contextmanager
def heard(service: LiveService, *expected: tuple[int, str | None]) -> Iterator[None]:
    """What happens in here is these requests to the service, and not one more."""
    before = len(requests(service))
    yield
    eventually(
        lambda: requests(service)[before:] == list(expected),
        lambda: f"{requests(service)[before:]} instead of {expected}",
    )


@contextmanager
def sleeping(service: LiveService, waiting: bool = False) -> Iterator[None]:
    """Somebody else's request that has the slot, or waits for it; given up at the end."""
    body = json.dumps({"steps": [{"cmd": "/bin/sleep", "args": ["60"]}]})
    head = [
        "POST /api/v1/execute HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {OTHER}",
    ]
    with socket.create_connection(("127.0.0.1", service.port), LIMIT_S) as connection:
        connection.sendall("\r\n".join([*head, "", body]).encode())
        where = "waiting" if waiting else "running"
        eventually(lambda: service.queue()[where], f"it is {where}")
        yield


def test_results_come_back_in_the_shape_of_the_steps_with_exact_bytes(
    ask: Ask, service: LiveService
) -> None:
    script = "cat; printf '\\377' >&2; cat data >out"
    request = Request(
        [
            Task("sh", ["-c", script], stdin=b"\0\xfe", files={"data": b"\xff"}, collect=["out"]),
            Task("./tool", files={"tool": File("#!/bin/sh\nexit 3", 0o755)}),
        ]
    )
    answer = ask(url(service), request)
    first, second = answer.each
    assert (first.stdout_bytes, first.stderr_bytes) == (b"\0\xfe", b"\xff")
    assert first.files["out"].data == b"\xff"
    assert (second.outcome, second.exit_code) == ("completed", 3)
    assert answer.ignored_fields == ()
    assert answer.timing.budget_ms == budget_ms(request)


def test_tasks_side_by_side_are_refused_where_there_is_one_slot(
    ask: Ask, service: LiveService
) -> None:
    true = Task("true")
    with heard(service, (422, "limits_exceeded")), pytest.raises(RequestRefused) as caught:
        ask(url(service), Request([Tasks([true, true], [Pipe(0, 1)])]), retries=3)
    assert caught.value.detail.startswith("steps[0]: ")
    assert caught.value.request_id is not None


def test_an_overrun_is_returned_and_not_asked_again(ask: Ask, service: LiveService) -> None:
    late = Task("true", limits=Limits(wall_ms=5_000))
    with heard(service, (200, None)):
        answer = ask(
            url(service), Request([Task("sleep", ["60"]), late], budget_ms=SHORT_MS), retries=3
        )
    assert answer.overrun
    assert [each.outcome for each in answer.each] == ["timed_out", "not_started"]
    assert answer.timing.budget_ms == SHORT_MS


def test_a_full_queue_is_busy_and_not_asked_again_unasked(ask: Ask, service: LiveService) -> None:
    with sleeping(service), sleeping(service, waiting=True):
        with heard(service, (503, "capacity_exhausted")), pytest.raises(RunnerBusy) as caught:
            ask(url(service), ECHO)
        assert caught.value.reason == "busy"
        assert caught.value.queue is not None
        assert caught.value.queue.waiting == 1
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s >= 1


def test_a_wait_that_was_outlasted_is_busy_and_leaves_the_queue(
    ask: Ask, service: LiveService
) -> None:
    impatient = Times(
        wall_timeout_ms=SHORT_MS, queue_allowance_interactive_ms=0, runner_ttl_slack_ms=0
    )
    with sleeping(service):
        with heard(service, (503, "cancelled")), pytest.raises(RunnerBusy, match="no answer"):
            ask(url(service), ECHO, times=impatient)
        eventually(lambda: not service.queue()["waiting"], "it left the queue")


def test_a_busy_service_is_asked_again_where_that_is_wanted(ask: Ask, service: LiveService) -> None:
    with ExitStack() as others:
        others.enter_context(sleeping(service))
        others.enter_context(sleeping(service, waiting=True))

        def rest(seconds: float) -> None:
            assert seconds >= 1
            others.close()
            eventually(service.is_idle, "the others have left")

        answer = ask(url(service), ECHO, retries=Backoff(retries=1), sleep=rest)
    assert answer.each[0].stdout == "hi\n"


def test_a_cancelled_call_ends_its_program(service: LiveService) -> None:
    async def leave() -> None:
        async with AsyncClient(url(service)) as client, anyio.create_task_group() as group:
            group.start_soon(client.execute, Request([SLEEPER]))
            await anyio.to_thread.run_sync(_until_running, service)
            group.cancel_scope.cancel()

    with heard(service, (503, "cancelled")):
        anyio.run(leave)
    # Long before its 25 s are over.
    eventually(service.is_idle, "the program is ended", limit_s=stretched(10))


def test_an_interrupted_call_ends_its_program(service: LiveService) -> None:
    us = threading.get_ident()

    def interrupt() -> None:
        _until_running(service)
        signal.pthread_kill(us, signal.SIGINT)

    # Whoever started the tests in the background may have had SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        with heard(service, (503, "cancelled")), Client(url(service)) as client:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.execute(Request([SLEEPER]))
            thread.join(LIMIT_S)
    finally:
        signal.signal(signal.SIGINT, before)
    eventually(service.is_idle, "the program is ended", limit_s=stretched(10))


def _until_running(service: LiveService) -> None:
    eventually(lambda: service.queue()["running"], "the program runs")


def test_a_service_that_stops_is_unavailable_and_so_is_one_that_has(
    start_service: Callable[..., LiveService],
) -> None:
    service = start_service()

    def stop() -> None:
        _until_running(service)
        service.stop()

    stopping = threading.Thread(target=stop)
    with Client(url(service), retries=3) as client:
        client.health()
        stopping.start()
        with pytest.raises(RunnerUnavailable) as caught:
            client.execute(Request([SLEEPER]))
        assert caught.value.code == "shutting_down"
        stopping.join(LIMIT_S)
        for call in (client.health, lambda: client.execute(ECHO)):
            with pytest.raises(NotConnected, match="Connection refused"):
                call()
    assert [status for status, _ in requests(service)] == [503]
