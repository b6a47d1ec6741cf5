"""The task's user: one that is nobody on the host and can become nobody else."""

from __future__ import annotations

import signal

from tests.adversarial.probing import see
from tests.hosting import LiveWarden


def test_no_call_makes_it_another_user(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
        tell(user=attempt(os.setuid, 0), group=attempt(os.setgid, 0), ids=os.getresuid())
        """.strip(),
    )
    assert seen == {"user": "EPERM", "group": "EPERM", "ids": [1000, 1000, 1000]}


def test_a_user_namespace_cannot_be_made_again(warden: LiveWarden) -> None:
    seen = see(warden, "tell(end=fate(lambda: syscall(272, 0x10000000)))")  # unshare
    assert seen == {"end": ["signal", signal.SIGSYS]}
