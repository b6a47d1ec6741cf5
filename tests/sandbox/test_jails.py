"""The warden's list of jails, without a jail."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gaoler.sandbox.jails import Jail, Jails, Wanted
from gaoler.sandbox.loop import Loop


class Owner:
    def jail_quarantined(self, jail: Jail) -> None:
        pass

    def jail_gone(self, jail: Jail) -> None:
        pass


def test_an_orphan_that_has_the_number_of_a_reaped_jailer_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A jail may die for much longer than its jailer, whose pid is free by then."""
    spec: Any = SimpleNamespace(uid_first=1, uid_last=9, jails_max=9)
    group: Any = SimpleNamespace(close=lambda: None, folders={})
    never_empty: Any = SimpleNamespace(
        make_jail=lambda base, name: group,
        limit_jail=lambda *_: None,
        events=lambda _: None,
        kill=lambda _: None,
        populated=lambda _: True,
    )
    nothing: Any = None
    jails = Jails(spec, never_empty, group, nothing, Loop(), frozenset())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    pidfd = os.pidfd_open(pid)
    monkeypatch.setattr(jails, "_fork_jailer", lambda *_: (pid, pidfd, nothing))
    jails._make(Wanted("x", 1, 1, 1 << 62), Owner())
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    jails.reap()
    ours = os.open("/dev/null", os.O_RDONLY)
    assert ours == pidfd  # the number is somebody else's by now
    reaped = iter([(pid, 0), (0, 0)])
    monkeypatch.setattr(os, "waitpid", lambda *_: next(reaped))
    jails.reap()
    os.close(ours)  # fails where it was closed for the jailer once more
    assert len(jails) == 1
