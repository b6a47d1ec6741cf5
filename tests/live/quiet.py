"""What a service must look like again once it has nothing to do."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.emulation import stretched
from tests.hosting import LiveService, eventually, jails_on_host, left_on_host

_PARTS = ("serve", "warden", "worker")
_WORLD_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True)
class Quiet:
    """Of a service without any request: what must be the same later."""

    descriptors: dict[str, int]
    uids_free: int
    planted: tuple[str, ...]


def quiet(service: LiveService) -> Quiet:
    """Once everything that is made on first use is there and all has ended."""
    service.execute({"cmd": "/bin/true"})
    _await_idle(service)
    return _look(service)


def expect_quiet(service: LiveService, before: Quiet) -> None:
    """Fails unless nothing is left of what ran since `before`."""
    _await_idle(service)
    left = left_on_host(service.instance, service.settings.uid_range)
    assert [x for x in left if not x.startswith("/sys/fs/cgroup")] == []
    end = time.monotonic() + stretched(10)
    while (now := _look(service)) != before and time.monotonic() < end:
        time.sleep(0.05)  # connections that clients dropped are closed soon
    assert now == before
    health = service.request("GET", "/internal/health", internal=True)
    assert health.status == 200, health


def anonymous_kib(service: LiveService) -> dict[str, int]:
    """Memory of warden and worker that is theirs alone."""
    parts = service.pids()
    return {part: _rss_anon_kib(parts[part][0]) for part in ("warden", "worker")}


def _rss_anon_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def _await_idle(service: LiveService) -> None:
    eventually(service.is_idle, lambda: f"slots are held: {service.queue()}")
    eventually(lambda: not jails_on_host(service.instance), "every jail is gone")


def _look(service: LiveService) -> Quiet:
    parts = service.pids()
    low, high = service.settings.uid_range
    health = service.request("GET", "/internal/health", internal=True).body
    return Quiet(
        {part: _descriptors(pid) for part in _PARTS for pid in parts[part]},
        health["warden"]["uids_free"],
        tuple(p for folder in _WORLD_WRITABLE for p in _owned(folder, range(low, high + 1))),
    )


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _owned(folder: str, uids: range) -> list[str]:
    with os.scandir(folder) as entries:
        return [e.path for e in entries if e.stat(follow_symlinks=False).st_uid in uids]
