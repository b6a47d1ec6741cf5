"""Programs that mean harm, as requests, with the outcomes that are right for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.emulation import stretched


@dataclass(frozen=True)
class Hostile:
    name: str
    task: dict[str, Any]
    outcomes: frozenset[str]
    wall_ms: int


def _python(source: str) -> dict[str, Any]:
    return {"cmd": "/usr/bin/python3", "args": ["-c", source]}


def _made(name: str, task: dict[str, Any], *outcomes: str, wall_ms: int = 1500) -> Hostile:
    if "timed_out" not in outcomes:
        wall_ms = round(stretched(wall_ms))
    limits = {"wall_ms": wall_ms, "memory_bytes": 96 << 20, "pids": 32, "output_bytes": 65_536}
    return Hostile(name, {**task, "limits": limits}, frozenset(outcomes), wall_ms)


DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for s in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        time.sleep(3600)
    os._exit(0)
print('started')
"""
BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
FLOOD = """
import os, threading
def pour(fd):
    while True:
        os.write(fd, b'x' * 65536)
threading.Thread(target=pour, args=(1,)).start()
pour(2)
"""

HOSTILE = (
    _made("fork bomb", _python(BOMB), "timed_out"),
    _made(
        "memory hog", _python("b = []\nwhile True: b.append(bytearray(1 << 20))"), "memory_limit"
    ),
    _made("endless loop", _python("while True: pass"), "timed_out"),
    _made("endless output on both streams", _python(FLOOD), "output_limit"),
    _made("daemon that forks twice", _python(DAEMON), "completed"),
    _made("stopped for ever", {"cmd": "/bin/sh", "args": ["-c", "kill -STOP 0"]}, "timed_out"),
    _made(
        "forbidden call",
        _python("import ctypes; ctypes.CDLL(None).mount(0,0,0,0,0)"),
        "policy_violation",
    ),
    _made(
        "full workspace",
        {"cmd": "/bin/sh", "args": ["-c", "cat /dev/zero > /box/fill"]},
        "completed",
        "signaled",
        "memory_limit",
        "timed_out",
    ),
)
UNREAD = {
    "cmd": "/bin/true",
    "stdin": "x" * 10_000_000,
    "limits": {"wall_ms": round(stretched(1500))},
}
