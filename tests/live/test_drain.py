"""A drain of a whole service: what was taken is answered, nothing new is taken, nothing is left."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.hosting import LIMIT_S, HttpAnswer, LiveService, eventually, kill

SLEEPER = {"cmd": "/bin/sleep", "args": ["60"]}
ECHO = {"cmd": "/bin/echo", "args": ["done"]}
# Ends when the test says so: the service shows its files to nobody, but its processes are the
# host's, so the test looks for this one and ends it by a signal that it answers to.
WAITS = {
    "cmd": "/usr/bin/python3",
    "args": [
        "-c",
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('done')); signal.pause()",
    ],
}
LARGE_BYTES = 8 << 20
LARGE = {
    "cmd": "/usr/bin/python3",
    "args": ["-c", f"print('x' * {LARGE_BYTES}, end='')"],
    "limits": {"output_bytes": LARGE_BYTES},
}
Start = Callable[..., LiveService]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def _send(pool: ThreadPoolExecutor, service: LiveService, task: Any) -> Future[HttpAnswer]:
    return pool.submit(service.execute, task)


def _runs_and_waits(service: LiveService, running: int, waiting: int) -> None:
    def as_told() -> bool:
        picture = service.queue()
        return (len(picture["running"]), len(picture["waiting"])) == (running, waiting)

    eventually(as_told, f"{running} run and {waiting} wait")


def _drain(service: LiveService) -> None:
    """Ask for it, and see that it has been heard."""
    assert service.process is not None
    service.process.send_signal(signal.SIGUSR2)
    eventually(lambda: _health(service) == (503, "draining"), "health says draining")


def _health(service: LiveService) -> tuple[int, str | None]:
    answer = service.request("GET", "/api/v1/health")
    return answer.status, answer.body.get("code")


def _end(service: LiveService) -> int:
    """Its own end, not by us; nothing may be left."""
    assert service.process is not None
    service.process.wait(LIMIT_S)
    return service.stop()


def _wake(service: LiveService, ended: Callable[[], bool]) -> None:
    """Let every task that waits go on, also those that only start, until all has ended."""

    def go_on() -> bool:
        for pid in service.pids().get("task", []):
            if _awaits_signal(pid):
                os.kill(pid, signal.SIGUSR1)
        return ended()

    eventually(go_on, "all has ended")


def _awaits_signal(pid: int) -> bool:
    """True once its handler is there; without one it would die of the signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def _lines_of_requests(service: LiveService, request_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in service.log_path.read_text().splitlines() if "{" in line]
    return [line for line in lines if line.get("request_id") == request_id]


def _draining(start: Start, pool: ThreadPoolExecutor) -> tuple[LiveService, Future[HttpAnswer]]:
    """A service that was asked to drain, and what it still runs."""
    service = start()
    running = _send(pool, service, SLEEPER)
    _runs_and_waits(service, 1, 0)
    _drain(service)
    return service, running


def test_what_runs_and_what_waits_is_answered_and_what_comes_is_refused(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    taken = [_send(pool, service, WAITS) for _ in range(5)]
    _runs_and_waits(service, 2, 3)
    _drain(service)
    refused = service.request(body={"steps": [ECHO]}, headers={"X-Request-Id": "late"})
    assert (refused.status, refused.body["code"]) == (503, "draining")
    assert refused.headers["content-type"] == "application/problem+json"
    assert service.request("GET", "/internal/health", internal=True).body["code"] == "draining"
    _runs_and_waits(service, 2, 3)
    _wake(service, lambda: all(future.done() for future in taken))
    for future in taken:
        answer = future.result()
        assert answer.status == 200, answer
        assert answer.body["results"][0]["stdout"] == "done\n"
    assert _end(service) == 0
    (line,) = _lines_of_requests(service, "late")
    assert (line["event"], line["status"], line["code"]) == ("request", 503, "draining")


def test_a_request_whose_body_is_still_coming_is_refused(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    """It was not taken yet, and whoever sent it learns that."""
    service = start_service()
    running = _send(pool, service, WAITS)
    _runs_and_waits(service, 1, 0)
    body = json.dumps({"steps": [ECHO]}).encode()
    with socket.create_connection(("127.0.0.1", service.port), LIMIT_S) as client:
        head = "POST /api/v1/execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        _drain(service)
        client.sendall(body[5:])
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, json.load(answer)["code"]) == (503, "draining")
    _wake(service, running.done)
    assert running.result().status == 200
    assert _end(service) == 0


def test_an_answer_that_is_read_late_comes_whole(start_service: Start) -> None:
    """Pins: a drain was done with the results, and the stop cut the answer off."""
    service = start_service(SHUTDOWN_TIMEOUT_MS="0")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(LIMIT_S)
        client.connect(("127.0.0.1", service.port))
        body = json.dumps({"steps": [LARGE]}).encode()
        head = "POST /api/v1/execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = http.client.HTTPResponse(client)
        answer.begin()  # it has begun, and the rest has no room on its way
        eventually(service.is_idle, "nothing is in flight")
        _drain(service)
        assert answer.status == 200
        assert len(json.load(answer)["results"][0]["stdout"]) == LARGE_BYTES
    assert _end(service) == 0


def test_a_worker_that_dies_while_it_drains_does_not_keep_the_service(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service, running = _draining(start_service, pool)
    kill(service.pids()["worker"][0])
    assert isinstance(running.exception(LIMIT_S), (OSError, http.client.HTTPException))
    assert _end(service) == 0


def test_a_web_process_that_dies_while_it_drains_does_not_keep_the_service(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service, running = _draining(start_service, pool)
    kill(service.pids()["arbiter"][0])
    answer = running.result(LIMIT_S)
    assert (answer.status, answer.body["code"]) == (503, "shutting_down")
    assert _end(service) == 0


def test_sigterm_ends_a_drain_as_it_ends_a_service(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service, running = _draining(start_service, pool)
    assert service.stop() == 0
    answer = running.result(LIMIT_S)
    assert (answer.status, answer.body["code"]) == (503, "shutting_down")


def test_the_signal_does_no_harm_to_the_parts_of_a_service(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    """Pins: gunicorn started itself anew, and all others died of it."""
    service = start_service()
    running = _send(pool, service, WAITS)
    _runs_and_waits(service, 1, 0)
    ours = ("warden", "arbiter", "worker", "jailer", "supervisor")
    eventually(lambda: {*ours, "task"} <= set(service.pids()), "the task runs")
    parts = service.pids()
    for name in ours:
        for pid in parts[name]:
            os.kill(pid, signal.SIGUSR2)
    _wake(service, running.done)
    assert running.result().status == 200
    assert service.execute(ECHO).status == 200
    now = service.pids()
    for name in ("warden", "arbiter", "worker"):
        assert now[name] == parts[name]


def test_a_program_finds_no_signal_blocked(start_service: Start) -> None:
    service = start_service()
    masks = {"cmd": "/bin/grep", "args": ["-E", "Sig(Blk|Ign)", "/proc/self/status"]}
    answer = service.execute(masks)
    assert {line.split()[1] for line in answer.body["results"][0]["stdout"].splitlines()} == {
        "0" * 16
    }
