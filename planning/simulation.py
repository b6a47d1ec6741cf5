"""One simulation from its first click until the last request has ended."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import simpy

from gaoler.planning.fleet import Call, LeastOutstanding, Node, Proxy, RoundRobin
from gaoler.planning.people import GradingPass, Process, World, replay, students
from gaoler.planning.recorded import Recorded
from gaoler.planning.scenario import USUAL_DURATION_MS, Scenario
from gaoler.planning.tally import Tally
from gaoler.planning.times import NS_PER_MS

Record = Callable[[Recorded], None]


@dataclass(frozen=True, slots=True)
class Pass:
    """What became of the grading pass."""

    requests: int
    answered: int
    finished_ns: int | None  # None: not within the time


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation came to."""

    scenario: Scenario
    tally: Tally
    grading_pass: Pass | None  # None: there was none
    nodes: tuple[Node, ...]

    @property
    def end_ns(self) -> int:
        return self.tally.end_ns


def simulate(
    scenario: Scenario,
    log: Sequence[Recorded] | None = None,
    record: Record | None = None,
) -> Outcome:
    """Simulate the scenario's people, or the requests of `log` in their place.

    The same arguments give the same outcome.  `record` is told of every request.
    """
    env = simpy.Environment(0)
    tally = Tally(_end_ns(scenario, log))
    nodes = _nodes(env, scenario, tally)
    proxy = Proxy(nodes, _balance(scenario), _recording(scenario, record))
    world = World(env, proxy, tally, scenario, itertools.count(1))
    graders = GradingPass(world) if log is None and scenario.copies else None
    for process in _processes(world, graders, log):
        simpy.Process(env, process)
    with _no_collector():
        env.run()  # until nothing can happen any more, so that every request ends
    tally.close()
    return Outcome(scenario, tally, _what_became_of(graders), tuple(nodes))


def _processes(
    world: World, graders: GradingPass | None, log: Sequence[Recorded] | None
) -> Iterator[Process]:
    if log is not None:
        yield replay(world, log)
        return
    yield from students(world)
    if graders is not None:
        yield from graders.processes()


def _what_became_of(graders: GradingPass | None) -> Pass | None:
    if graders is None:
        return None
    return Pass(graders.requests, graders.answered, graders.finished_ns)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Nothing that a simulation drops is circular; looking for it costs a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _end_ns(scenario: Scenario, log: Sequence[Recorded] | None) -> int:
    if scenario.duration_ms:
        return scenario.duration_ms * NS_PER_MS
    if log is None:
        return USUAL_DURATION_MS * NS_PER_MS
    return log[-1].arrival_ns + NS_PER_MS


def _nodes(env: simpy.Environment, scenario: Scenario, tally: Tally) -> list[Node]:
    rules, teardown_ns = scenario.rules(), scenario.teardown_ms * NS_PER_MS
    return [Node(env, rules, scenario.cap, teardown_ns, tally) for _ in range(scenario.nodes)]


def _balance(scenario: Scenario) -> RoundRobin | LeastOutstanding:
    if scenario.balance == "round-robin":
        return RoundRobin(scenario.nodes)
    return LeastOutstanding(scenario.nodes)


def _recording(scenario: Scenario, record: Record | None) -> Callable[[Call], None] | None:
    if record is None:
        return None

    def tell(call: Call) -> None:
        setup_ns = min(scenario.setup_ms * NS_PER_MS, call.run_ns)
        record(
            Recorded(
                arrival_ns=call.sent_ns,
                priority=call.priority,
                slots=call.slots,
                memory_bytes=call.memory_bytes,
                budget_ms=call.budget_ms,
                run_ns=call.run_ns - setup_ns,
                setup_ns=setup_ns,
                evaluation_id=call.evaluation_id,
                wait=call.wait,
            )
        )

    return tell
