"""Hostile programs through the whole service: the right outcome in time, and a clean host."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.emulation import stretched
from tests.hosting import LIMIT_S, LiveService, eventually, jails_on_host, left_on_host
from tests.live.hostile import HOSTILE, UNREAD

SEED = 20_261
REQUESTS = 200
CLIENTS = 8
MOST_EXTRA_MS = 1000


def test_each_hostile_program_ends_in_time_and_leaves_nothing(
    start_service: Callable[..., LiveService],
) -> None:
    service = start_service()
    before = _things_of_idle(service)
    for hostile in HOSTILE:
        result = service.execute(hostile.task).body["results"][0]
        assert result["outcome"] in hostile.outcomes, (hostile.name, result)
        assert result["stats"]["wall_ms"] <= hostile.wall_ms + stretched(MOST_EXTRA_MS), (
            hostile.name
        )
        eventually(lambda: not jails_on_host(service.instance), "its jail is gone")
    assert service.execute(UNREAD).body["results"][0]["outcome"] == "completed"
    _expect_clean(service, before)


def test_two_hundred_requests_with_hostile_ones_and_clients_that_hang_up(
    start_service: Callable[..., LiveService],
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    service = start_service(QUEUE_ALLOWANCE_INTERACTIVE_MS="60000")
    before = _things_of_idle(service)
    plans = [(number, chance.randrange(1 << 30)) for number in range(REQUESTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        wrong = [each for each in pool.map(lambda plan: _one(service, *plan), plans) if each]
    assert wrong == []
    _expect_clean(service, before)


def _one(service: LiveService, number: int, salt: int) -> str | None:
    """Send one request; what was wrong with its answer, or None."""
    if number % 10 == 3:
        _hang_up(service, salt)
        return None
    if number % 10 == 7:
        hostile = HOSTILE[salt % len(HOSTILE)]
        answer = service.execute(hostile.task)
        got = answer.body["results"][0]["outcome"] if answer.status == 200 else answer.body
        return None if got in hostile.outcomes else f"{number} {hostile.name}: {got}"
    word = f"{number}-{salt}"
    answer = service.execute(
        {
            "cmd": "/bin/sh",
            "args": ["-c", "cat in > out; cat out"],
            "files": {"in": word},
            "collect": ["out"],
        },
        {"cmd": "/bin/cat", "stdin": word},
    )
    if answer.status != 200:
        return f"{number}: {answer.body}"
    first, second = answer.body["results"]
    right = first["stdout"] == second["stdout"] == first["files"]["out"]["content"] == word
    return None if right else f"{number}: {answer.body}"


def _hang_up(service: LiveService, salt: int) -> None:
    """Leave while the request waits, is set up, runs or has just ended: by chance."""
    body = json.dumps({"steps": [{"cmd": "/bin/sleep", "args": ["0.2"]}]}).encode()
    link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=LIMIT_S)
    link.request("POST", "/api/v1/execute", body, {"Content-Type": "application/json"})
    assert link.sock is not None
    link.sock.settimeout((salt % 400) / 1000 + 0.001)
    try:
        link.sock.recv(1)
    except (TimeoutError, socket.timeout):  # noqa: UP041 - the moment to leave has come
        pass
    link.close()


def _things_of_idle(service: LiveService) -> dict[str, Any]:
    """As `_things_of`, once everything that is made on first use is there and all is quiet."""
    service.execute({"cmd": "/bin/true"})
    eventually(service.is_idle, "every slot is free")
    eventually(lambda: not jails_on_host(service.instance), "every jail is gone")
    return _things_of(service)


def _things_of(service: LiveService) -> dict[str, Any]:
    """What must be the same afterwards: descriptors of warden and worker, and children."""
    parts = service.pids()
    return {
        part: len(list(Path(f"/proc/{pid}/fd").iterdir()))
        for part in ("serve", "warden", "worker")
        for pid in parts[part]
    }


def _expect_clean(service: LiveService, before: dict[str, Any]) -> None:
    eventually(service.is_idle, lambda: f"slots are held: {service.queue()}")
    eventually(lambda: not jails_on_host(service.instance), "every jail is gone")
    uids = service.settings.uid_range
    here = ("cgroup", "/sys/fs")
    left = [x for x in left_on_host(service.instance, uids) if not x.startswith(here)]
    assert left == []
    end = time.monotonic() + stretched(10)
    while (now := _things_of(service)) != before and time.monotonic() < end:
        time.sleep(0.05)  # connections that clients dropped are closed soon
    assert now == before
    health = service.request("GET", "/internal/health", internal=True)
    assert health.status == 200, health
