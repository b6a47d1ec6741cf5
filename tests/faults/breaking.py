"""What the tests of faults share: requests in which something fails, and what must hold then.

Whatever fails: the request is told so once, by name; the next one runs; nothing is left.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gaoler.sandbox import process
from gaoler.sandbox.job import Event, Failed, Finished, Job, Task, TornDown
from tests.alterations.faults import Fault, name_of_stuck
from tests.emulation import stretched
from tests.hosting import (
    LIMIT_S,
    LiveWarden,
    Watched,
    eventually,
    jails_on_host,
    job,
    left_on_host,
    shell,
)

SOURCES = Path(process.__file__).parent
ALTERATION = "faults:by_request"
# How long a request with a process that hangs may take: set-up, and no more.
SHORT_BUDGET_MS = int(stretched(3_000))
ABREAST = 8


def stages() -> Iterator[tuple[str, str]]:
    """(process, stage) of every stage that the sandbox's source names."""
    for source in sorted(SOURCES.glob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="enter"), args=[ast.Constant(value=str(name))]
                ):
                    yield source.stem, name


STAGES = tuple(dict.fromkeys(stages()))


def ordinary() -> Task:
    """A task that comes by every stage and by all that is called on the way."""
    return shell(
        "cat input; cat; echo out; echo err >&2; echo kept > kept",
        stdin=b"given\n",
        files={"input": b"laid\n"},
        collect=("kept",),
    )


def breaking(fault: Fault, wanted: Job | None = None) -> Job:
    """The job as a request in which this fails."""
    wanted = wanted or job(ordinary())
    return replace(wanted, request_id=fault.request_id)


def check_events(events: list[Event]) -> None:
    """Exactly one end, then exactly one teardown, and nothing behind it."""
    ends = [event for event in events if isinstance(event, Failed | Finished)]
    assert len(ends) == 1, events
    assert events[-2:] == [ends[0], TornDown()], events
    assert sum(1 for event in events if isinstance(event, TornDown)) == 1, events


def failure_of(watched: Watched) -> Failed:
    """How a request failed that is torn down."""
    watched.wait()
    check_events(watched.events)
    assert watched.failure is not None, watched.events
    return watched.failure


def runs_normally(live: LiveWarden) -> None:
    result = live.run_one(ordinary())
    assert result.outcome == "completed", result
    assert (result.stdout, result.stderr) == (b"laid\ngiven\nout\n", b"err\n"), result
    assert [(file.path, file.data) for file in result.files] == [("kept", b"kept\n")]


@dataclass(frozen=True)
class Holdings:
    """What a warden has in hand."""

    counts: Mapping[str, int]
    descriptors: int
    children: list[int]
    left: list[str]
    jails: list[str]

    @classmethod
    def of(cls, live: LiveWarden) -> Holdings:
        assert live.process is not None
        pid = live.process.pid
        left = left_on_host(live.instance, live.settings.uid_range)
        return cls(
            counts=counts_of(live),
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            children=children_of(pid),
            # The groups of the instance itself are there as long as the warden is.
            left=[line for line in left if not line.endswith(f"/{live.instance}")],
            jails=jails_on_host(live.instance),
        )


def counts_of(live: LiveWarden) -> Mapping[str, int]:
    """The warden's own counts."""
    got: list[Mapping[str, int]] = []
    came = threading.Event()

    def take(counts: Mapping[str, int]) -> None:
        got.append(counts)
        came.set()

    assert live.client.ping(take)
    assert came.wait(LIMIT_S), "the warden does not answer"
    return got[0]


def children_of(pid: int) -> list[int]:
    """Children of a process of one thread, those that were not reaped too."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def nothing_left(live: LiveWarden) -> Iterator[None]:
    """What is done inside leaves nothing behind, and the next request runs."""
    assert live.process is not None
    low, high = live.settings.uid_range
    idle = {"jails": 0, "uids_free": high - low + 1, "quarantined": 0}
    before = Holdings.of(live)
    pid = live.process.pid
    yield
    assert live.process.poll() is None, "the warden has died"
    runs_normally(live)
    eventually(lambda: Holdings.of(live) == before, lambda: f"{before} is now {Holdings.of(live)}")
    assert before == Holdings(idle, before.descriptors, [], [], []), before
    assert live.process.pid == pid
    assert live.client.ready() is None


def name_of(watched: Watched) -> str:
    """The request's name, as the warden knows it."""
    assert watched.running is not None
    assert watched.running.request is not None
    return watched.running.request.name


def await_stuck(request_name: str) -> int:
    """The pid of the process of a request that hangs where a fault has stopped it."""
    name = name_of_stuck(request_name)
    found: list[int] = []

    def look() -> bool:
        found[:] = [int(path.parent.name) for path in _named(name)]
        return bool(found)

    eventually(look, f"no process of {request_name} came to hang")
    return found[0]


def _named(name: str) -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                yield path
        except OSError:
            continue
