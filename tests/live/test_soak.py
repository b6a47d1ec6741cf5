"""Many requests at once, hostile ones among them, while parts of the chain are killed.

GAOLER_SOAK_REQUESTS says how many; bin/soak asks for two thousand.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.hosting import LIMIT_S, LiveService, kill
from tests.live.hostile import HOSTILE
from tests.live.quiet import anonymous_kib, expect_quiet, quiet

SEED = 20_261
REQUESTS = int(os.environ.get("GAOLER_SOAK_REQUESTS", "200"))
CLIENTS = 8
# By how much warden and worker may grow, however many requests there were: what the
# allocator keeps, and the estimates of kinds of request, which are bounded.
MOST_GROWTH_KIB = 16 * 1024
KILL_EVERY_S = 0.7

_RIGHT = "right"
_BROKEN = "broken by a kill"
_LEFT = "client left"


def test_a_soak_of_hostile_and_normal_requests_with_random_kills_leaves_nothing(
    start_service: Callable[..., LiveService],
) -> None:
    print(f"seed {SEED}, {REQUESTS} requests")
    chance = random.Random(SEED)
    service = start_service(QUEUE_ALLOWANCE_INTERACTIVE_MS="60000")
    plans = [(number, chance.randrange(1 << 30)) for number in range(REQUESTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        # Until every buffer and cache has the size that it keeps.
        _count(pool.map(lambda plan: _one(service, *plan), plans[:40]))
        before, memory = quiet(service), anonymous_kib(service)
        with _killing(service, chance) as killed:
            counts = _count(pool.map(lambda plan: _one(service, *plan), plans))
    print(f"{dict(counts)}, {len(killed)} kills")
    assert set(counts) <= {_RIGHT, _BROKEN, _LEFT}, counts
    assert killed
    assert counts[_BROKEN] <= len(killed)
    expect_quiet(service, before)
    grown = {part: kib - memory[part] for part, kib in anonymous_kib(service).items()}
    print(f"grown by KiB: {grown}, of at most {MOST_GROWTH_KIB}")
    print("no process, group, mount, UID, descriptor or file is left")
    assert max(grown.values()) <= MOST_GROWTH_KIB


def _count(verdicts: Iterator[str]) -> Counter[str]:
    return Counter(verdicts)


@contextmanager
def _killing(service: LiveService, chance: random.Random) -> Iterator[list[str]]:
    """Now and then a jailer or a supervisor is killed; yields what was killed so far."""
    killed: list[str] = []
    stop = threading.Event()

    def hunt() -> None:
        while not stop.wait(KILL_EVERY_S):
            parts = service.pids()
            part = chance.choice(("jailer", "supervisor"))
            if parts.get(part):
                kill(chance.choice(parts[part]))
                killed.append(part)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        stop.set()
        hunter.join()


def _one(service: LiveService, number: int, salt: int) -> str:
    """Send one request; what its answer was like."""
    if number % 10 == 3:
        _hang_up(service, salt)
        return _LEFT
    if number % 10 == 7:
        return _hostile(service, number, salt)
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
        return _broken(answer.body) or f"{number}: {answer.body}"
    first, second = answer.body["results"]
    right = first["stdout"] == second["stdout"] == first["files"]["out"]["content"] == word
    return _RIGHT if right else f"{number}: {answer.body}"


def _hostile(service: LiveService, number: int, salt: int) -> str:
    hostile = HOSTILE[salt % len(HOSTILE)]
    answer = service.execute(hostile.task)
    if answer.status != 200:
        return _broken(answer.body) or f"{number} {hostile.name}: {answer.body}"
    got = answer.body["results"][0]["outcome"]
    return _RIGHT if got in hostile.outcomes else f"{number} {hostile.name}: {got}"


def _broken(body: dict[str, object]) -> str | None:
    """A killed process of ours costs its own request, under one of two names."""
    known = body.get("code") in ("internal_error", "sandbox_setup_failed")
    return _BROKEN if known else None


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
