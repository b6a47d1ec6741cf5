"""The pure rules of the sandbox: outcomes, paths, leases, profiles."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaoler.sandbox import paths, profiles, seccomp
from gaoler.sandbox.leases import UidLeases
from gaoler.sandbox.outcome import Decision, Ending, decide

EXIT_3 = 3 << 8


def _ended(**seen: object) -> Ending:
    return Ending(**{"started": True, "ended_ns": 1, **seen})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ending", "decision"),
    [
        (_ended(status=EXIT_3), Decision("completed", exit_code=3)),
        (_ended(status=signal.SIGSEGV), Decision("signaled", signal=11)),
        (_ended(status=signal.SIGSEGV | 0x80), Decision("signaled", signal=11)),
        (_ended(status=signal.SIGSYS), Decision("policy_violation")),
        (_ended(status=signal.SIGXFSZ), Decision("signaled", "file_size", signal=25)),
        (_ended(status=signal.SIGKILL), Decision("signaled", signal=9)),
        (_ended(killed_for="wall"), Decision("timed_out", "wall")),
        (_ended(killed_for="wall", status=0), Decision("completed", exit_code=0)),
        (_ended(killed_for="wall", status=0, wall_over=True), Decision("timed_out", "wall")),
        (_ended(killed_for="cpu", status=0), Decision("timed_out", "cpu")),
        (_ended(killed_for="output"), Decision("output_limit")),
        (_ended(status=0, overflowed=True), Decision("output_limit")),
        (_ended(killed_for="wall", overflowed=True), Decision("timed_out", "wall")),
        (_ended(status=0, cpu_over=True), Decision("timed_out", "cpu")),
        (_ended(status=0, oom_kills=1, oom_by_own_limit=True), Decision("memory_limit")),
        (_ended(killed_for="memory", oom_kills=1, oom_by_own_limit=True), Decision("memory_limit")),
        (
            _ended(killed_for="wall", oom_kills=1, oom_by_own_limit=True),
            Decision("timed_out", "wall"),
        ),
        (_ended(status=0, oom_kills=1), None),
        (_ended(), None),
        (_ended(started=False, status=EXIT_3), None),
        (_ended(started=False, status=0, refused="bad_path"), Decision("setup_failed", "bad_path")),
        (
            _ended(status=0, exec_failed="command_not_found"),
            Decision("completed", "command_not_found", exit_code=127),
        ),
        (
            _ended(status=0, exec_failed="not_executable"),
            Decision("completed", "not_executable", exit_code=126),
        ),
    ],
)
def test_the_evidence_decides_the_outcome(ending: Ending, decision: Decision | None) -> None:
    assert decide(ending) == decision


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "..", "a/..", "../a", "a/../b", "a\0b", "x" * 256, "a/" * 2048 + "b"],
)
def test_a_path_that_could_leave_the_workspace_or_be_no_path_has_a_fault(path: str) -> None:
    assert paths.fault(path) is not None


@pytest.mark.parametrize(
    ("path", "same"), [("a", "a"), ("./a", "a"), ("a//b/", "a/b"), (".", "."), ("...", "...")]
)
def test_paths_have_one_spelling(path: str, same: str) -> None:
    assert paths.fault(path) is None
    assert paths.normalise(path) == same


@given(st.lists(st.booleans(), max_size=60))
def test_a_uid_is_never_leased_twice_at_once(takes: list[bool]) -> None:
    leases = UidLeases(100, 107)
    held: list[int] = []
    for take in takes:
        if take:
            uid = leases.take()
            assert (uid is None) == (len(held) == 8)
            if uid is not None:
                assert uid not in held
                held.append(uid)
        elif held:
            leases.give_back(held.pop(0))
        leases.check()
        assert leases.free == 8 - len(held)


def test_a_uid_that_was_given_back_comes_last_again() -> None:
    leases = UidLeases(100, 102)
    first = leases.take()
    assert first is not None
    leases.give_back(first)
    assert [leases.take() for _ in range(4)] == [101, 102, 100, None]
    with pytest.raises(ValueError, match="not leased"):
        leases.give_back(50)


def test_a_uid_that_is_withheld_is_never_leased() -> None:
    leases = UidLeases(100, 104)
    for uid in (100, 103, 7):
        leases.withhold(uid)
    assert leases.free == 3
    assert [leases.take() for _ in range(4)] == [101, 102, 104, None]
    leases.check()
    leases.give_back(102)
    assert leases.take() == 102
    leases.check()


def test_no_system_call_is_in_two_lists_of_a_profile() -> None:
    special = ["socket", "socketpair", "clone", "mknod", "mknodat", "personality"]
    lists = [profiles.ALLOWED, profiles.REFUSED, profiles.KILLED, profiles.PRETENDED, special]
    names = [name for each in lists for name in each]
    assert len(names) == len(set(names))


def test_every_profile_ends_with_the_filter_that_lets_no_other_in() -> None:
    programs = seccomp.compile_all()
    assert tuple(programs.final) == profiles.PROFILES
    assert len({final[-1] for final in programs.final.values()}) == 1
    assert len(programs.final["native_v1"]) == len(programs.final["standard_v1"]) + 1
