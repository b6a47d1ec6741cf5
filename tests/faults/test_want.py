"""What comes of a want: of UIDs, jails, descriptors, processes, memory and space.

Each is an answer with a name and with the right code, and costs that one request alone.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from gaoler.sandbox.cgroup import Group
from gaoler.sandbox.cgroup_v2 import UnifiedLayout
from gaoler.sandbox.job import Job
from tests.alterations.faults import Fault
from tests.faults.breaking import (
    ABREAST,
    ALTERATION,
    breaking,
    counts_of,
    failure_of,
    nothing_left,
)
from tests.hosting import MIB, LiveWarden, Watched, eventually, jails_on_host, job, shell, task

Start = Callable[..., LiveWarden]
SETUP, INTERNAL = "sandbox_setup_failed", "internal_error"


def run_all(live: LiveWarden, faults: list[Fault]) -> list[tuple[Fault, Watched]]:
    """A request for each fault, some at a time, to their ends."""
    done = []
    for start in range(0, len(faults), ABREAST):
        batch = [(fault, live.submit(breaking(fault))) for fault in faults[start : start + ABREAST]]
        done += [(fault, watched.wait()) for fault, watched in batch]
    return done


# Before the request's jailer runs: nothing has, and nothing is kept.
IN_THE_WARDEN = [
    Fault("warden", "call make_jail", "EAGAIN"),
    *[Fault("warden", "call mkdir", how) for how in ("EAGAIN", "ENOSPC", "EPERM", "EMFILE")],
    *[Fault("warden", "call mkdir", "ENOSPC", after=n) for n in range(1, 8)],
    Fault("warden", "call limit_jail", "EBUSY"),
    Fault("warden", "write pids.max", "EINVAL"),
    Fault("warden", "call events", "ENOENT"),
    Fault("warden", "call events", "EMFILE"),
    Fault("warden", "call socketpair", "EMFILE"),
    Fault("warden", "call fork", "EAGAIN"),
    Fault("warden", "call fork", "ENOMEM"),
    Fault("warden", "call pidfd_open", "EMFILE"),
    Fault("warden", "call pidfd_open", "ENOMEM"),
    # Nor can the group be removed, at first.
    Fault("warden", "call events,call remove_jail", "EMFILE", times=2),
    Fault("warden", "call pidfd_open,call remove_jail", "EBUSY", times=2),
]


def test_what_the_warden_cannot_get_fails_the_one_request(breakable: LiveWarden) -> None:
    struck = 0
    for fault, watched in run_all(breakable, IN_THE_WARDEN):
        if watched.failure is None and fault.after:
            continue  # not so many folders make a jail on this host
        struck += 1
        failed = failure_of(watched)
        assert (failed.code, failed.errno) == (SETUP, getattr(errno, fault.how)), fault
        assert failed.stage, fault
    assert struck >= len(IN_THE_WARDEN) - 7


# Where, and whether the program may have run.
IN_THE_JAIL = [
    (Fault("jailer", "call make_task", "ENOSPC"), SETUP),
    (Fault("jailer", "call mkdir", "EAGAIN"), SETUP),
    (Fault("jailer", "call socketpair", "EMFILE"), SETUP),
    (Fault("jailer", "call fork", "EAGAIN"), SETUP),
    (Fault("jailer", "write cgroup.procs", "ENODEV"), SETUP),
    (Fault("jailer", "call read_job", "EIO"), SETUP),
    (Fault("jailer", "call read_job", "MemoryError"), SETUP),
    (Fault("jailer", "call unpack_result", "MemoryError"), INTERNAL),
    (Fault("jailer", "call pack_result", "MemoryError"), INTERNAL),
    (Fault("jailer", "call sendall", "EPIPE"), INTERNAL),
    (Fault("jailer", "call sendall", "ENOBUFS", after=1), INTERNAL),
    (Fault("jailer", "call sendall", "EPIPE", times=9), INTERNAL),
    (Fault("supervisor", "call socketpair", "EMFILE"), SETUP),
    (Fault("supervisor", "call pipe", "EMFILE"), SETUP),
    (Fault("supervisor", "call pidfd_open", "EMFILE"), SETUP),
    (Fault("supervisor", "call pidfd_open", "EMFILE", after=1), SETUP),
    (Fault("supervisor", "call fork", "EAGAIN"), SETUP),
    (Fault("supervisor", "call descriptors", "ValueError"), SETUP),
    (Fault("supervisor", "call limit_task", "EBUSY"), SETUP),
    (Fault("supervisor", "write pids.max", "ENODEV"), SETUP),
    (Fault("supervisor", "call watch_oom", "EMFILE"), SETUP),
    (Fault("supervisor", "call pipe", "EMFILE", after=1), INTERNAL),
    (Fault("supervisor", "call pread", "EIO"), INTERNAL),
    (Fault("supervisor", "call read", "EIO"), INTERNAL),
    (Fault("supervisor", "call usage", "ENODEV"), INTERNAL),
    (Fault("supervisor", "call fork", "EAGAIN", after=1), INTERNAL),  # the collector
    (Fault("supervisor", "call pack_result", "MemoryError"), INTERNAL),
    (Fault("supervisor", "call sendall", "EPIPE"), INTERNAL),
    (Fault("supervisor", "call sendall", "EPIPE", times=9), INTERNAL),
    (Fault("init", "call fork", "EAGAIN"), SETUP),
    (Fault("init", "call fork", "ENOMEM"), SETUP),
    (Fault("init", "init.write", "EPIPE"), INTERNAL),
    (Fault("task", "write cgroup.procs", "ENODEV"), SETUP),
    (Fault("task", "call read_range", "EIO"), INTERNAL),
    (Fault("task", "call read_range", "MemoryError"), INTERNAL),
    *[(Fault("task", "call open_box", how), INTERNAL) for how in ("EMFILE", "EIO", "MemoryError")],
    (Fault("collector", "call read_range", "EIO"), INTERNAL),
    (Fault("collector", "call open_box", "ENOMEM"), INTERNAL),
    (Fault("collector", "call read_file", "MemoryError"), INTERNAL),
    (Fault("collector", "call read_file", "SIGKILL"), INTERNAL),
    (Fault("collector", "call fdopen", "ENOMEM"), INTERNAL),
    *[(Fault("collector", "call read", how), INTERNAL) for how in ("EIO", "ENOMEM")],
]


def test_what_a_process_of_a_jail_cannot_get_fails_the_request(breakable: LiveWarden) -> None:
    expected = dict(IN_THE_JAIL)
    wrong = []
    for fault, watched in run_all(breakable, list(expected)):
        failed = watched.failure
        if failed is None or failed.code != expected[fault] or not failed.stage:
            wrong.append((fault, watched.events))
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.parametrize("how", ["EIO", "ENFILE", "EMFILE"])
def test_a_fault_while_inputs_are_written_is_not_the_programs_doing(
    breakable: LiveWarden, how: str
) -> None:
    failed = failure_of(breakable.submit(breaking(Fault("task", "inputs.write", how))))
    assert (failed.code, failed.errno) == (INTERNAL, getattr(errno, how))
    assert failed.stage.startswith("write inputs")


def test_a_full_workspace_is_the_requests_own_doing(breakable: LiveWarden) -> None:
    """A real one, of few bytes; and what an earlier task has left of the inodes."""
    result = breakable.run_one(
        task("/bin/true", files={"large": bytes(2 * MIB)}), workspace_bytes=MIB
    )
    assert (result.outcome, result.reason) == ("setup_failed", "workspace_full")
    assert result.exit_code is None


def test_inputs_of_a_workspace_without_inodes_are_refused_by_name(start_warden: Start) -> None:
    live = start_warden(workspace_inodes=40)
    fill = shell("i=0; while : > f$i; do i=$((i+1)); done 2>/dev/null; true")
    filled, refused = live.run(fill, task("/bin/true", files={"one more": b"x"}))
    assert filled[0].outcome == "completed"
    assert (refused[0].outcome, refused[0].reason) == ("setup_failed", "workspace_full")


def test_a_program_without_memory_for_its_inputs_met_its_limit(breakable: LiveWarden) -> None:
    result = breakable.run_one(
        task("/bin/true", files={"large": bytes(64 * MIB)}, memory_bytes=16 * MIB)
    )
    assert result.outcome == "memory_limit"


# --- of what the warden has so many of ----------------------------------------------------


def sleeping() -> Job:
    return job(task("/bin/sleep", "60"), budget_ms=60_000)


@pytest.mark.parametrize("what", ["uid", "jails"])
def test_when_all_are_taken_the_next_fails_and_the_one_after_a_teardown_runs(
    start_warden: Start, what: str
) -> None:
    if what == "uid":
        live = start_warden(ALTERATION, uid_range=(910_000, 910_002))
        most, stage = 3, "[Errno 0] no UID is free"
    else:
        live = start_warden(ALTERATION, max_concurrency=1)
        most, stage = live.spec.jails_max, "[Errno 0] as many jails as there may be"
    with nothing_left(live):
        running = [live.submit(sleeping()) for _ in range(most)]
        eventually(lambda: len(jails_on_host(live.instance)) >= most, "all are there")
        refused = [live.submit(job(task("/bin/true"))) for _ in range(3)]
        for each in refused:
            failed = failure_of(each)
            assert (failed.code, failed.stage) == (SETUP, stage)
        assert counts_of(live)["jails"] == most
        running[0].cancel()
        running[0].wait()
        assert live.run_one(task("/bin/true")).outcome == "completed"
        for each in running[1:]:
            each.cancel()
        for each in running:
            each.wait()


def test_a_warden_without_room_for_a_duplicate_lets_the_others_run(breakable: LiveWarden) -> None:
    running = breakable.submit(sleeping())
    watched = breakable.submit(breaking(Fault("warden", "call dup", "EMFILE"))).wait()
    assert watched.failure is None or watched.failure.code == SETUP, watched.failure
    assert running.events == []
    running.cancel()
    running.wait()


# So many that each remainder is met, with v1's seven for a jail and with v2's four.
@pytest.mark.parametrize("descriptors", range(58, 65))
def test_a_warden_with_few_descriptors_answers_each_request_and_loses_none(
    start_warden: Start, descriptors: int
) -> None:
    """A jail holds about a dozen.  Some requests run, the others fail by name, at once."""
    live = start_warden(f"faults:few_descriptors:{descriptors}")
    with nothing_left(live):
        watched = [live.submit(job(shell("sleep 0.2; echo ran"))) for _ in range(12)]
        for each in watched:
            each.wait()
        for each in watched:
            if each.failure is None:
                assert each.results[0, 0].stdout == b"ran\n"
            else:
                assert each.failure.code == SETUP, each.failure
                assert each.failure.errno in (0, errno.EMFILE), each.failure
        assert any(each.failure is None for each in watched)
        assert any(each.failure is not None for each in watched)


# --- of v2, whatever this host has --------------------------------------------------------


def test_a_v2_group_that_is_not_given_its_controllers_is_closed(tmp_path: Any) -> None:
    """Folders stand for groups: they have no cgroup.subtree_control to write to."""
    base = Group.at({"v2": str(tmp_path)})
    made: list[Group] = []
    child = base.child

    def remember(name: str, make: bool = False) -> Group:
        made.append(child(name, make))
        return made[-1]

    base.child = remember  # type: ignore[method-assign]
    with pytest.raises(FileNotFoundError):
        UnifiedLayout(str(tmp_path)).make_jail(base, "jail-1")
    base.close()
    assert [group.folders for group in made] == [{}]
