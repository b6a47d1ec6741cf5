"""The exit codes of every `gaoler` command.  `gaoler run` adds its own, see there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gaoler.http.client_errors import RunnerError

DONE = 0
FAILED = 1
BAD_USAGE = 2
BUSY = 3
UNAVAILABLE = 4
INTERRUPTED = 130  # as shells say it: 128 + SIGINT


def of_error(error: RunnerError) -> int:
    """The code of a command whose request to a service came to this."""
    # Here, so that commands that ask no service do not wait for it.
    from gaoler.http.client_errors import RunnerBusy, RunnerUnavailable

    if isinstance(error, RunnerBusy):
        return BUSY
    return UNAVAILABLE if isinstance(error, RunnerUnavailable) else FAILED
