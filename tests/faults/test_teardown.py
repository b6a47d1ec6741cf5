"""Whoever is killed at whatever stage, and whatever resists: the jail goes, whole.

A process that hangs at a stage holds its jail there for as long as it takes to kill it, one
of those above it, or to hang up.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaoler.sandbox import wire
from gaoler.sandbox.job import Failed, Finished, TornDown
from tests.alterations.faults import HANG, Fault
from tests.faults.breaking import (
    STAGES,
    await_stuck,
    breaking,
    check_events,
    failure_of,
    name_of,
    ordinary,
)
from tests.hosting import (
    LIMIT_S,
    MIB,
    LiveWarden,
    eventually,
    jails_on_host,
    job,
    kill,
    task,
)

# The processes of a jail, each the parent of the next one; the collector has init's place.
CHAIN = ("jailer", "supervisor", "init", "task")
AT_A_STAGE = [Fault(part, f"stage {stage}", HANG) for part, stage in STAGES]
COLLECTING = Fault("collector", "call read_file", HANG)
ABREAST = 16


def above(pid: int, top: int) -> list[int]:
    """The pids from the child of `top` down to `pid`."""
    chain = [pid]
    while True:
        stat = Path(f"/proc/{chain[0]}/stat").read_text()
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == top:
            return chain
        assert parent > 1, f"{pid} is not below {top}"
        chain.insert(0, parent)


def depth_of(fault: Fault) -> int:
    return CHAIN.index("init" if fault.part == "collector" else fault.part)


@pytest.mark.parametrize("victim", CHAIN)
def test_who_is_killed_while_one_below_hangs_takes_the_request_along(
    breakable: LiveWarden, victim: str
) -> None:
    assert breakable.process is not None
    depth = CHAIN.index(victim)
    faults = [fault for fault in [*AT_A_STAGE, COLLECTING] if depth_of(fault) >= depth]
    for start in range(0, len(faults), ABREAST):
        batch = faults[start : start + ABREAST]
        # Nobody else ends these in time.
        wanted = job(ordinary(), budget_ms=100_000)
        watched = [breakable.submit(breaking(fault, wanted)) for fault in batch]
        for fault, each in zip(batch, watched, strict=True):
            chain = above(await_stuck(name_of(each)), breakable.process.pid)
            assert len(chain) == depth_of(fault) + 1, fault
            kill(chain[depth])
        for fault, each in zip(batch, watched, strict=True):
            failed = failure_of(each)
            assert failed.code in ("sandbox_setup_failed", "internal_error"), fault
            if fault == COLLECTING:
                assert failed.code == "internal_error"


@pytest.mark.parametrize("how", ["cancelled", "closed", "worker gone"])
def test_a_request_that_is_hung_up_on_goes_at_whatever_stage(
    breakable: LiveWarden, how: str
) -> None:
    faults = [*AT_A_STAGE, COLLECTING]
    for start in range(0, len(faults), ABREAST):
        batch = faults[start : start + ABREAST]
        if how == "cancelled":
            _cancel(breakable, batch)
        else:
            _leave(breakable, batch, how)
        eventually(lambda: not jails_on_host(breakable.instance), "every jail has gone")


def _cancel(live: LiveWarden, faults: list[Fault]) -> None:
    wanted = job(ordinary(), budget_ms=100_000)
    watched = [live.submit(breaking(fault, wanted)) for fault in faults]
    for each in watched:
        await_stuck(name_of(each))
        each.cancel()
    for each in watched:
        check_events(each.wait().events)
        assert each.failure == Failed("cancelled", "cancel")


def _leave(live: LiveWarden, faults: list[Fault], how: str) -> None:
    """Close the request's sockets, or the worker's own, without a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        worker.connect(live.spec.socket_path)
        ours = []
        for number, fault in enumerate(faults):
            mine, theirs = socket.socketpair()
            ours.append(mine)
            descriptor = wire.write_job(job(ordinary(), budget_ms=100_000))
            message = {
                "op": "run",
                "id": f"{fault.request_id}/{_raw(number)}",
                "memory_bytes": 512 * MIB,
                "pids": 100,
                "hard_ns": time.monotonic_ns() + int(100e9),
            }
            socket.send_fds(worker, [json.dumps(message).encode()], [theirs.fileno(), descriptor])
            os.close(descriptor)
            theirs.close()
        for number, _ in enumerate(faults):
            await_stuck(f"x/{_raw(number)}")
        if how == "worker gone":
            worker.close()
        for mine in ours:
            if how == "worker gone":
                mine.settimeout(LIMIT_S)
                while mine.recv(4096):
                    pass
            mine.close()
        eventually(lambda: not jails_on_host(live.instance), "every jail has gone")


def _raw(number: int) -> int:
    """A number that no request of the client has."""
    return 900_000 + number


# --- what resists -------------------------------------------------------------------------

RESISTING = [
    Fault("teardown", "call remove_jail", "EBUSY", times=5),
    Fault("teardown", "call remove_jail", "EMFILE"),
    *[Fault("teardown", "call rmdir", "EBUSY", after=after, times=3) for after in range(0, 12, 2)],
    Fault("teardown", "call kill", "EIO"),
    Fault("teardown", "call kill", "EIO", times=4),
    Fault("teardown", "write cgroup.kill", "EIO", times=2),
    Fault("teardown", "write cgroup.kill", "EMFILE", times=2),
    Fault("teardown", "call populated", "EIO", times=3),
    Fault("teardown", "call waitpid", "EINTR"),
]


def test_a_jail_that_cannot_be_removed_at_first_is_removed_later(breakable: LiveWarden) -> None:
    watched = [breakable.submit(breaking(fault)) for fault in RESISTING]
    for fault, each in zip(RESISTING, watched, strict=True):
        check_events(each.wait().events)
        assert isinstance(each.events[-2], Finished), fault
        assert each.results[0, 0].outcome == "completed", fault


def test_a_jail_that_is_not_killed_at_first_is_killed_later(breakable: LiveWarden) -> None:
    wanted = job(task("/bin/sleep", "60"), budget_ms=60_000)
    watched = [breakable.submit(breaking(fault, wanted)) for fault in RESISTING]
    eventually(lambda: _all_sleep(breakable, len(watched)), "all have begun")
    for each in watched:
        each.cancel()
    for each in watched:
        each.wait()
        assert each.events == [Failed("cancelled", "cancel"), TornDown()]


def _all_sleep(live: LiveWarden, count: int) -> bool:
    low, high = live.settings.uid_range
    return sum(1 for _ in _sleepers(low, high)) >= count


def _sleepers(low: int, high: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.joinpath("comm").read_text() == "sleep\n":
                uid = folder.stat().st_uid
                if low <= uid <= high:
                    yield int(folder.name)
        except OSError:
            continue
