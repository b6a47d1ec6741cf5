"""Those who use the service: students, a grading pass, or what a log has recorded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import simpy

from gaoler.actors.policy.slots import GRADING, INTERACTIVE
from gaoler.planning.fleet import Call, Proxy
from gaoler.planning.programs import Program, graders_program, is_looping, students_program
from gaoler.planning.recorded import Recorded
from gaoler.planning.scenario import Again, Scenario
from gaoler.planning.tally import NEVER_NS, Tally
from gaoler.planning.times import NEVER, NS_PER_MS, Times

NS_PER_S = 1_000_000_000
# Somebody who is told to try again does so at the earliest after this, so that time goes on.
LEAST_PAUSE_NS = NS_PER_MS

Process = Generator[simpy.Event, object, None]
Ended = Generator[simpy.Event, object, bool]


@dataclass(slots=True)
class World:
    """What everybody shares: the clock, the service, the books."""

    env: simpy.Environment
    proxy: Proxy
    tally: Tally
    scenario: Scenario
    tickets: Iterator[int]

    @property
    def end_ns(self) -> int:
        return self.tally.end_ns

    def now_ns(self) -> int:
        return int(self.env.now)

    def chance(self, who: str) -> random.Random:
        """Each has chances of their own: that one comes does not change another's."""
        return random.Random(f"{self.scenario.seed} {who}")

    def pause(self, delay_ns: int) -> simpy.Event:
        return simpy.Timeout(self.env, delay_ns)


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to be run, and how they take a "busy"."""

    priority: str
    budget_ms: int
    run_ns: int
    again: Again
    evaluation_id: str | None = None
    attempt_id: str | None = None


def serve(world: World, wish: Wish, chance: random.Random) -> Ended:
    """Send a wish until it is answered.  False where it was given up, or the end came."""
    account = world.tally.accounts[wish.priority]
    first_ns = world.now_ns()
    while True:
        call = _call(world, wish)
        world.proxy.submit(call)
        yield call.done
        if call.refused is None:
            account.delays_ns.append(call.granted_ns - first_ns)
            return True
        pause_ns = _pause_ns(wish.again, call, chance)
        if pause_ns is None or world.now_ns() + pause_ns >= world.end_ns:
            so_far_ns = max(world.now_ns(), world.end_ns) - first_ns
            account.delays_ns.append(NEVER_NS if pause_ns is None else so_far_ns)
            account.unserved += 1
            return False
        yield world.pause(pause_ns)


def _call(world: World, wish: Wish) -> Call:
    return Call(
        ticket=str(next(world.tickets)),
        priority=wish.priority,
        slots=1,
        memory_bytes=world.scenario.request_memory_bytes,
        budget_ms=wish.budget_ms,
        run_ns=wish.run_ns,
        done=simpy.Event(world.env),
        evaluation_id=wish.evaluation_id,
        attempt_id=wish.attempt_id,
    )


def _pause_ns(again: Again, call: Call, chance: random.Random) -> int | None:
    """How long until the next try; None: there is none."""
    if again == NEVER:
        return None
    if isinstance(again, Times):
        return max(again.draw_ns(chance), LEAST_PAUSE_NS)
    return call.retry_after_s * NS_PER_S


# --- students -----------------------------------------------------------------------------


def students(world: World) -> Iterator[Process]:
    """Each a process of their own, with one request at a time."""
    program = students_program(world.scenario)
    return (_student(world, program, number) for number in range(world.scenario.students))


def _student(world: World, program: Program, number: int) -> Process:
    scenario = world.scenario
    chance = world.chance(f"student {number}")
    looping = is_looping(number, scenario.looping_share)
    pause_ns = scenario.first_click.draw_ns(chance)
    while world.now_ns() + pause_ns < world.end_ns:
        yield world.pause(pause_ns)
        wish = Wish(
            INTERACTIVE,
            program.budget_ms,
            program.run_ns(chance, looping=looping),
            scenario.click_again,
            evaluation_id=str(number % scenario.evaluations),
            attempt_id=str(number),
        )
        yield from serve(world, wish, chance)
        # One who gives up at once and does not think must not stop the clock.
        pause_ns = max(scenario.think_time.draw_ns(chance), LEAST_PAUSE_NS)


# --- a grading pass -----------------------------------------------------------------------


class GradingPass:
    """So many requests, so many of them at once, until all are answered or the end comes."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        self._world = world
        self._program = graders_program(scenario)
        self._each = 1 if scenario.grading_request == "copy" else scenario.grading_cases
        self.requests = scenario.copies * self._each
        self.answered = 0
        self.finished_ns: int | None = None  # when the last of them was answered
        self._left = iter(range(self.requests))

    def processes(self) -> Iterator[Process]:
        at_once = self._world.scenario.grading_at_once or self.requests
        return (self._sender(number) for number in range(min(at_once, self.requests)))

    def _sender(self, sender: int) -> Process:
        """Takes the next request that no other sender has, one after another."""
        world, scenario = self._world, self._world.scenario
        chance = world.chance(f"sender {sender}")
        yield world.pause(scenario.grading_start_ms * NS_PER_MS)
        while world.now_ns() < world.end_ns:
            number = next(self._left, None)
            if number is None:
                return
            yield from self._grade(number, chance)

    def _grade(self, number: int, chance: random.Random) -> Process:
        share = self._world.scenario.grading_looping_share
        # A request has the same run time whoever sends it, and whenever.
        own = self._world.chance(f"grading {number}")
        looping = is_looping(number // self._each, share)
        run_ns = self._program.run_ns(own, looping=looping)
        again = self._world.scenario.grading_again
        wish = Wish(GRADING, self._program.budget_ms, run_ns, again)
        if (yield from serve(self._world, wish, chance)):
            self.answered += 1
            if self.answered == self.requests:
                self.finished_ns = self._world.now_ns()


# --- a recorded log -----------------------------------------------------------------------


def replay(world: World, requests: Sequence[Recorded]) -> Process:
    """Every recorded request at its time, once; nobody tries again but as recorded."""
    drawn = _run_times(world, requests)
    for request in requests:
        if request.arrival_ns >= world.end_ns:
            return
        if (wait_ns := request.arrival_ns - world.now_ns()) > 0:
            yield world.pause(wait_ns)
        call = _recorded_call(world, request, next(drawn[request.priority]))
        assert call.done.callbacks is not None  # it has not happened yet
        call.done.callbacks.append(partial(_replayed, world, call))
        world.proxy.submit(call)


def _recorded_call(world: World, request: Recorded, drawn_ns: int) -> Call:
    run_ns = drawn_ns if request.run_ns is None else request.run_ns
    setup_ns = request.setup_ns
    if setup_ns is None:
        setup_ns = world.scenario.setup_ms * NS_PER_MS
    return Call(
        ticket=str(next(world.tickets)),
        priority=request.priority,
        slots=request.slots,
        memory_bytes=request.memory_bytes,
        budget_ms=request.budget_ms,
        run_ns=max(setup_ns + min(run_ns, request.budget_ms * NS_PER_MS), LEAST_PAUSE_NS),
        done=simpy.Event(world.env),
        evaluation_id=request.evaluation_id,
        wait=request.wait,
    )


def _replayed(world: World, call: Call, _: simpy.Event) -> None:
    account = world.tally.accounts[call.priority]
    if call.refused is None:
        account.delays_ns.append(call.granted_ns - call.sent_ns)
        return
    account.unserved += 1
    if call.wait:
        account.delays_ns.append(NEVER_NS)
    else:
        account.would_not_wait += 1


def _run_times(world: World, requests: Sequence[Recorded]) -> dict[str, Iterator[int]]:
    """For each class run times for those that were refused: drawn from those that ran.

    Where none ran, what is drawn is longer than any budget.
    """
    known: dict[str, list[int]] = {INTERACTIVE: [], GRADING: []}
    for request in requests:
        if request.run_ns is not None:
            known[request.priority].append(request.run_ns)
    return {
        priority: _drawing(world.chance(f"refused {priority}"), found)
        for priority, found in known.items()
    }


def _drawing(chance: random.Random, found: list[int]) -> Iterator[int]:
    if not found:
        return itertools.repeat(NEVER_NS)
    return iter(lambda: chance.choice(found), -1)
