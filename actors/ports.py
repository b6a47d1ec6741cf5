"""What the actors need of the rooms below them.  The lower room implements it.

`sandbox.client.SandboxClient` and `actors.fake_sandbox.FakeSandbox` both fit `Sandbox`, and
the same contract tests (tests/contract) hold them to it.  The fake ships with the package:
test modules of several rooms need it, and under pytest's importlib mode they cannot import
from one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gaoler.sandbox.job import Event, Job


class Running(Protocol):
    """One sandbox that was asked for."""

    def cancel(self) -> None:
        """End it now.  Idempotent, never blocks, from any thread.

        Failed("cancelled") follows unless the sandbox had finished, then TornDown.
        """


class Sandbox(Protocol):
    """Runs jobs."""

    def start(self, job: Job, listener: Callable[[Event], None]) -> Running:
        """Start a job; never blocks, never raises for what happens in the sandbox.

        `listener` is called from the sandbox's own thread, in the order that
        `gaoler.sandbox.job` states; it must not block.
        """

    def ready(self) -> str | None:
        """None where jobs can be started, else what is missing.

        Cheap, never blocks, from any thread: it is asked before every request.
        """
