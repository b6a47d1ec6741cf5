"""Whatever dies, and whenever: the right error, nothing left, and the next request runs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hosting import (
    LIMIT_S,
    HttpAnswer,
    LiveService,
    eventually,
    jails_on_host,
    kill,
    left_on_host,
)

SLEEPER = {"cmd": "/bin/sleep", "args": ["60"]}
ECHO = {"cmd": "/bin/echo", "args": ["next"]}
Start = Callable[..., LiveService]


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def _send(pool: ThreadPoolExecutor, service: LiveService, *steps: Any) -> Future[HttpAnswer]:
    """A request under way: it is returned once its task runs."""
    future = pool.submit(service.execute, *(steps or (SLEEPER,)))
    eventually(lambda: service.pids().get("task"), "the task runs")
    return future


def _next_one_runs(service: LiveService) -> None:
    eventually(lambda: _health(service) == 200, "the service is ready again")
    answer = service.execute(ECHO)
    assert answer.status == 200, answer
    assert answer.body["results"][0]["stdout"] == "next\n"
    _nothing_is_held(service)


def _health(service: LiveService) -> int:
    try:
        return service.request("GET", "/api/v1/health").status
    except OSError:
        return 0


def _nothing_is_held(service: LiveService) -> None:
    eventually(service.is_idle, "every slot is free")
    eventually(lambda: not jails_on_host(service.instance), "every jail is gone")
    parts = service.pids()
    assert not {"jailer", "supervisor", "init", "task"} & set(parts), parts


@pytest.mark.parametrize(
    ("part", "status", "outcome"),
    [
        ("task", 200, "signaled"),
        ("init", 500, "internal_error"),
        ("supervisor", 500, "internal_error"),
        ("jailer", 500, "internal_error"),
        ("warden", 500, "internal_error"),
    ],
)
def test_killing_a_part_of_the_chain_fails_that_request_alone(
    start_service: Start, pool: ThreadPoolExecutor, part: str, status: int, outcome: str
) -> None:
    service = start_service()
    future = _send(pool, service)
    kill(service.pids()[part][0])
    answer = future.result(LIMIT_S)
    assert answer.status == status
    if status == 200:
        assert answer.body["results"][0]["outcome"] == outcome
    else:
        assert answer.body["code"] == outcome
    _next_one_runs(service)


def test_killing_the_worker_breaks_the_connection_and_ends_what_it_ran(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    future = _send(pool, service)
    kill(service.pids()["worker"][0])
    with pytest.raises((OSError, http.client.HTTPException)):
        future.result(LIMIT_S)
    _next_one_runs(service)


def test_killing_gunicorns_arbiter_answers_503_and_starts_another(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    future = _send(pool, service)
    before = service.pids()["arbiter"]
    kill(before[0])
    answer = future.result(LIMIT_S)
    assert (answer.status, answer.body["code"]) == (503, "shutting_down")
    eventually(lambda: service.pids().get("arbiter", before) != before, "another one started")
    _next_one_runs(service)


def test_killing_gaoler_serve_itself_leaves_nothing(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    future = _send(pool, service)
    assert service.process is not None
    kill(service.process.pid)
    try:
        answer = future.result(LIMIT_S)
        # The web process hears of it by a signal, the warden by its lifeline.
        assert (answer.status, answer.body["code"]) in (
            (503, "shutting_down"),
            (500, "internal_error"),
        )
    except (OSError, http.client.HTTPException):
        pass  # the web process ended first
    eventually(
        lambda: left_on_host(service.instance, service.settings.uid_range) == [],
        "nothing is left",
    )
    service.stop()
    service.start()
    _next_one_runs(service)


def test_a_jail_whose_warden_was_killed_is_swept_by_the_next_one(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    future = _send(pool, service)
    parts = service.pids()
    kill(parts["warden"][0])
    assert future.result(LIMIT_S).status == 500
    for part in ("jailer", "supervisor", "init", "task"):
        for pid in parts[part]:
            eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{part} has gone")
    _next_one_runs(service)


def test_a_jailer_that_hangs_is_killed_past_the_deadline_and_answered_504(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(RUNNER_TTL_SLACK_MS="300")
    future = pool.submit(lambda: service.execute(SLEEPER, budget_ms=1500))
    eventually(lambda: service.pids().get("task"), "the task runs")
    for part in ("jailer", "supervisor"):
        os.kill(service.pids()[part][0], signal.SIGSTOP)
    answer = future.result(LIMIT_S)
    assert (answer.status, answer.body["code"]) == (504, "deadline_exceeded")
    _next_one_runs(service)


def test_a_client_that_hangs_up_ends_its_program(start_service: Start) -> None:
    service = start_service()
    body = json.dumps({"steps": [SLEEPER]}).encode()
    head = (
        f"POST /api/v1/execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port)) as sock:
        sock.sendall(head.encode() + body)
        eventually(lambda: service.pids().get("task"), "the task runs")
    _nothing_is_held(service)
    _next_one_runs(service)


def test_a_client_that_hangs_up_while_it_waits_leaves_the_queue(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(MAX_CONCURRENCY="1")
    running = _send(pool, service)
    with socket.create_connection(("127.0.0.1", service.port)) as sock:
        body = json.dumps({"steps": [SLEEPER]}).encode()
        head = (
            f"POST /api/v1/execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall(head.encode() + body)
        eventually(lambda: len(service.queue()["waiting"]) == 1, "it waits")
    eventually(lambda: service.queue()["waiting"] == [], "it has left the queue")
    kill(service.pids()["task"][0])
    assert running.result(LIMIT_S).status == 200
    _next_one_runs(service)


def test_sigterm_answers_what_runs_and_what_waits_and_ends_in_time(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(MAX_CONCURRENCY="1", SHUTDOWN_TIMEOUT_MS="5000")
    running = _send(pool, service)
    waiting = pool.submit(service.execute, SLEEPER)
    eventually(lambda: len(service.queue()["waiting"]) == 1, "one waits")
    stopped = threading.Thread(target=service.stop)
    stopped.start()
    for future in (running, waiting):
        answer = future.result(LIMIT_S)
        assert (answer.status, answer.body["code"]) == (503, "shutting_down")
    stopped.join(LIMIT_S)
    assert service.process is not None
    assert service.process.returncode == 0


def test_wait_false_is_refused_while_the_slots_are_taken(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(MAX_CONCURRENCY="1")
    running = _send(pool, service)
    answer = service.execute(ECHO, wait=False)
    assert (answer.status, answer.body["code"], answer.body["reason"]) == (
        503,
        "capacity_exhausted",
        "busy",
    )
    assert int(answer.headers["retry-after"]) >= 1
    kill(service.pids()["task"][0])
    running.result(LIMIT_S)
    _next_one_runs(service)


def test_a_second_service_with_the_same_state_does_not_start(start_service: Start) -> None:
    service = start_service()
    other = LiveService(service.log_path.parent)
    with pytest.raises(AssertionError, match="runs already"):
        other.start()
    assert other.process is not None
    assert other.process.returncode == 4
    _next_one_runs(service)


def test_the_web_process_holds_no_capability_and_can_gain_none(start_service: Start) -> None:
    service = start_service()
    parts = service.pids()
    for pid in (*parts["arbiter"], *parts["worker"]):
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert set(status["Uid"].split()) == {str(_uid("gaoler"))}
        assert status["Groups"].split() == []


def _uid(name: str) -> int:
    line = next(x for x in Path("/etc/passwd").read_text().splitlines() if x.startswith(name + ":"))
    return int(line.split(":")[2])
