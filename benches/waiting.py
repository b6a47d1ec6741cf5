"""What thousands of waiting clients cost a service, and whether it still answers.

A real service with one slot, which a program holds that does not end.  Clients come until so
many wait, each with a connection of its own.  Measured are the worker's memory for each of
them, and how long health and the queue's picture take, as a ratio to the same service before
they came.  Then all of them leave, as many come again, and they must find the memory that the
first ones have left.

    bin/bench waiting [CLIENTS]     10000 where no number is given
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hosting import LiveService

LOOKS = 40
AT_ONCE = 200  # connections that are being made
LONG_MS = 3_600_000
HOLD_MS = 599_000
LEAVE_S = 60

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def main() -> int:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gaoler-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        service = LiveService(folder, (), **_settings(clients)).start()
        try:
            asyncio.run(_measure(service, clients))
        finally:
            service.stop()
    return 0


def _settings(clients: int) -> dict[str, str]:
    return {
        "MAX_CONCURRENCY": "1",
        "QUEUE_LIMIT_INTERACTIVE": str(clients),
        "QUEUE_ALLOWANCE_INTERACTIVE_MS": str(LONG_MS),
        "RUNNER_PROJECT_TIMEOUT_MS": "600000",
        "LOG_LEVEL": "warning",
    }


async def _measure(service: LiveService, clients: int) -> None:
    holder = await _send(service, _body(wall_ms=HOLD_MS, action="project"))
    while _queue(service)["slots"]["free"]:
        await asyncio.sleep(0.01)
    looks = {"/api/v1/health": service.port, "/internal/queue": service.internal_port}
    idle = {path: await _look_ms(port, path) for path, port in looks.items()}
    before = _worker_bytes(service)
    waiting = await _come(service, clients)
    after = _worker_bytes(service)
    each_kib = (after - before) / clients / 1024
    print(f"{clients} waiting: {each_kib:.1f} KiB of the worker's memory for each")
    for path, port in looks.items():
        full = await _look_ms(port, path)
        print(
            f"{path}: median {full[0]:.1f} ms, worst {full[1]:.1f} ms; "
            f"{full[0] / idle[path][0]:.1f} times that of nobody waiting"
        )
    await _leave(service, waiting)
    # What was freed stays with the process, for the next ones.
    again = await _come(service, clients)
    more_kib = (_worker_bytes(service) - after) / clients / 1024
    print(f"all have left, and as many have come again: {more_kib:+.1f} KiB for each")
    await _leave(service, again)
    holder[1].close()


async def _leave(service: LiveService, clients: list[Connection]) -> None:
    """All of them at once; nobody may wait any more."""
    for _, writer in clients:
        writer.close()
    async with asyncio.timeout(LEAVE_S):
        while any((await asyncio.to_thread(_queue, service))["waiting_total"].values()):
            await asyncio.sleep(0.1)


async def _come(service: LiveService, clients: int) -> list[Connection]:
    """So many clients, until the queue says that all of them wait."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def come() -> Connection:
        async with gate:
            return await _send(service, _body(wall_ms=1_000))

    waiting = await asyncio.gather(*(come() for _ in range(clients)))
    while (found := _queue(service)["waiting_total"]["interactive"]) < clients:
        refused = [r for r, _ in waiting if r.at_eof()]
        assert not refused, f"{len(refused)} clients were refused, {found} wait"
        await asyncio.sleep(0.1)
    return waiting


def _body(wall_ms: int, action: str = "run") -> bytes:
    task = {"cmd": "/bin/sleep", "args": ["300"], "limits": {"wall_ms": wall_ms}}
    return json.dumps({"steps": [task], "action": action}).encode()


async def _send(service: LiveService, body: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = (
        "POST /api/v1/execute HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def _look_ms(port: int, path: str) -> tuple[float, float]:
    """Median and worst of some looks, each over a connection of its own."""
    times = []
    for _ in range(LOOKS):
        started = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        times.append((time.perf_counter() - started) * 1_000)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return statistics.median(times), max(times)


def _queue(service: LiveService) -> Any:
    return service.request("GET", "/internal/queue", internal=True).body


def _worker_bytes(service: LiveService) -> int:
    (worker,) = service.pids()["worker"]
    pages = int(Path(f"/proc/{worker}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
