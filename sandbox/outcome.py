"""From what was seen of a task's end to its outcome.  Pure: no process, no clock.

The table of docs/api.md, in code.  Evidence alone decides; an exit code never means more
than that the program exited with it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """What was seen.  `killed_for` is set only by who sent the kill, before it was sent."""

    status: int | None = None  # wait status of the first process, as init reported it
    ended_ns: int = 0
    killed_for: str | None = None  # wall, cpu, output, memory
    refused: str | None = None  # why the inputs could not be laid out
    exec_failed: str | None = None  # command_not_found, not_executable
    started: bool = False
    oom_kills: int = 0
    oom_by_own_limit: bool = False
    overflowed: bool = False
    cpu_over: bool = False
    wall_over: bool = False

    def fault(self) -> str:
        """What is wrong where `decide` found no outcome."""
        if self.oom_kills and not self.oom_by_own_limit:
            return "the OOM killer struck for want of the jail's memory, not the task's"
        return "the task ended without a report"


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None


def decide(ending: Ending) -> Decision | None:
    """The outcome, or None where the evidence does not explain the end: our fault."""
    if ending.oom_kills and not ending.oom_by_own_limit:
        return None
    killed = ending.killed_for
    if killed == "cpu" or (killed == "wall" and (ending.wall_over or ending.status is None)):
        return Decision("timed_out", killed)
    if killed == "output":
        return Decision("output_limit")
    if killed == "memory" or ending.oom_kills:
        return Decision("memory_limit")
    if ending.refused is not None:
        return Decision("setup_failed", ending.refused)
    if ending.status is None:
        return None
    if ending.exec_failed is not None:
        code = 127 if ending.exec_failed == "command_not_found" else 126
        return Decision("completed", ending.exec_failed, exit_code=code)
    if not ending.started:
        return None
    return _by_itself(ending, ending.status)


def _by_itself(ending: Ending, status: int) -> Decision:
    """It ended before we killed it; a limit that it had passed by then still counts."""
    if ending.overflowed:
        return Decision("output_limit")
    if ending.cpu_over:
        return Decision("timed_out", "cpu")
    if ending.wall_over:
        return Decision("timed_out", "wall")
    if os.WIFEXITED(status):
        return Decision("completed", exit_code=os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number == signal.SIGSYS:
        return Decision("policy_violation")
    reason = "file_size" if number == signal.SIGXFSZ else None
    return Decision("signaled", reason, signal=number)
