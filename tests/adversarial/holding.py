"""A request that stays as it is while something else is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gaoler.sandbox.job import Task
from tests.adversarial.probing import attack
from tests.hosting import LiveWarden, eventually, job, processes, shell

_WAIT_FOR_IT = "until [ -e /box/ready ]; do sleep 0.01; done"
_HOLD = "\nopen('/box/ready', 'w').close()\nwhile True:\n    signal.pause()\n"


@contextmanager
def held(live: LiveWarden, source: str, *args: str, beside: Task | None = None) -> Iterator[int]:
    """Run a probe and keep it as it is at its end; gives its PID on the host.

    A sibling of it ends when the probe has come so far: that is how it is known out here.
    """
    before = {pid for pid, _ in _of_tasks(live)}
    watched = live.submit(job([attack(source + _HOLD, *args), shell(_WAIT_FOR_IT)]))
    try:
        eventually(lambda: (0, 1) in watched.results, "the probe has come to its end")
        assert (0, 0) not in watched.results, watched.results
        yield _probe_of(live, before)
    finally:
        watched.cancel()
        watched.wait()


def _probe_of(live: LiveWarden, before: set[int]) -> int:
    """A process that starts another one has no command line for a moment."""
    found: list[int] = []

    def seen() -> bool:
        found[:] = [
            pid for pid, command in _of_tasks(live) if pid not in before and "probe.py" in command
        ]
        return bool(found)

    eventually(seen, lambda: f"the probe is not among {_of_tasks(live)}")
    return found[0]


def _of_tasks(live: LiveWarden) -> list[tuple[int, str]]:
    low, high = live.settings.uid_range
    return [(pid, command) for pid, _, uid, command in processes() if low <= uid <= high]
