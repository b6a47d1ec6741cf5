"""What holds of every simulation."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gaoler.actors.policy.caps import Caps
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import Grant, SlotRequest
from gaoler.config.settings import Settings
from gaoler.planning.recorded import Recorded
from gaoler.planning.report import summary
from gaoler.planning.scenario import Scenario, read_file, scenario
from gaoler.planning.simulation import simulate
from gaoler.planning.tally import CLASSES
from gaoler.planning.times import parse_times
from tests.planning.conftest import MS, Come, Plan

SHIPPED = sorted((Path(__file__).parents[2] / "planning/scenarios").glob("*.toml"))


def busy(plan: Plan, **more: object) -> Scenario:
    """A crowd on few slots, in which everything happens that can."""
    usual: dict[str, object] = {
        "slots": 2,
        "cap": 3,
        "students": 24,
        "evaluations": 4,
        "looping_share": 0.25,
        "queue_limit_interactive": 5,
        "allowance_interactive_ms": 6_000,
        "setup_ms": 30,
        "teardown_ms": 20,
        "copies": 40,
        "grading_at_once": 6,
        "queue_limit_grading": 3,
        "think_time": parse_times("exponential:8000"),
        "duration_ms": 120_000,
    }
    return plan(**usual | more)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("balance", ["round-robin", "least-outstanding"])
def test_every_request_ends_exactly_once(plan: Plan, seed: int, balance: str) -> None:
    sent: list[Recorded] = []
    planned = busy(plan, seed=seed, nodes=1 + seed % 3, balance=balance)
    outcome = simulate(planned, record=sent.append)
    outcome.tally.check()
    for node in outcome.nodes:
        node.check()
    assert Counter(request.priority for request in sent) == {
        name: outcome.tally.accounts[name].sent for name in CLASSES
    }


def test_the_crowd_meets_every_kind_of_refusal(plan: Plan) -> None:
    """Else the test above says little."""
    causes: Counter[str] = Counter()
    for seed in range(1, 6):
        for account in simulate(busy(plan, seed=seed)).tally.accounts.values():
            causes.update(account.refused)
    assert {"evaluation_cap", "queue_full", "expired"} <= causes.keys()


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(plan: Plan) -> None:
    first, again, other = (summary(simulate(busy(plan, seed=seed))) for seed in (7, 7, 8))
    assert first == again
    assert first["classes"] != other["classes"]


def test_whether_others_come_changes_no_ones_own_chances(plan: Plan) -> None:
    """So that what two searches try differs by what was changed alone."""

    def run_times(**more: object) -> set[int | None]:
        sent: list[Recorded] = []
        simulate(busy(plan, **more), record=sent.append)
        return {request.run_ns for request in sent if request.priority == "grading"}

    some, all_of_them = run_times(slots=3, students=0), run_times(slots=9)
    assert len(all_of_them) > 20
    assert some == all_of_them


def test_a_student_has_one_request_at_a_time(plan: Plan) -> None:
    """The service would refuse a second one of the same attempt; it never has to."""
    outcome = simulate(busy(plan, queue_limit_interactive=64))
    assert outcome.tally.accounts["interactive"].refused["attempt_in_flight"] == 0
    assert outcome.tally.accounts["interactive"].running.most <= 2


def test_each_node_has_caps_and_a_queue_of_its_own(plan: Plan, come: Come) -> None:
    log = [come(number, 100, evaluation_id="a") for number in range(4)]
    planned = plan(cap=1)
    assert simulate(planned, log).tally.accounts["interactive"].refused_in_all == 3
    two = simulate(replace(planned, nodes=2), log).tally.accounts["interactive"]
    assert two.refused_in_all == 2
    four = simulate(replace(planned, nodes=4), log).tally.accounts["interactive"]
    assert (four.refused_in_all, four.running.most) == (0, 4)


def test_the_proxy_that_counts_avoids_a_busy_node(plan: Plan, come: Come) -> None:
    """Of every two requests one is long: by turns one node would get all of the long ones."""
    log = [come(10 * number, 1 + 500 * (number % 2 == 0)) for number in range(6)]
    by_turns = simulate(plan(nodes=2, balance="round-robin"), log)
    counted = simulate(plan(nodes=2, balance="least-outstanding"), log)
    longest = [
        max(outcome.tally.accounts["interactive"].waits_ns) / MS for outcome in (by_turns, counted)
    ]
    assert longest[0] > 900
    assert longest[1] < 900


# --- the same policy under another driver -------------------------------------------------


def naive(planned: Scenario, log: list[Recorded]) -> tuple[list[int], Counter[str]]:
    """Waits in the order of the grants, and causes of refusals: one node, no library.

    All that is going to happen lies in one list; the earliest of it happens next, and the
    policy is woken on the instant that it names.
    """
    policy, caps = SlotPolicy(planned.rules()), Caps(planned.cap)
    coming = [(request.arrival_ns, "comes", str(n)) for n, request in enumerate(log)]
    waits: list[int] = []
    causes: Counter[str] = Counter()
    while coming or policy.next_wake_ns(0) is not None:
        now_ns, what, ticket = min(coming) if coming else (2**62, "", "")
        wake_ns = policy.next_wake_ns(now_ns)
        if wake_ns is not None and wake_ns < now_ns:
            now_ns, what = wake_ns, "wakes"
        else:
            coming.remove((now_ns, what, ticket))
        request = log[int(ticket or 0)]
        if what == "comes":
            interactive = request.priority == "interactive"
            cause = caps.reserve(ticket, "", request.evaluation_id, None, interactive)
            causes.update([cause] if cause else [])
            wanted = SlotRequest(ticket, request.priority, 1, 0, request.budget_ms)
            decisions = [] if cause else policy.enqueue(wanted, now_ns)
        elif what == "wakes":
            decisions = policy.tick(now_ns)
        elif what == "answers":
            caps.release(ticket)
            coming.append((now_ns + planned.teardown_ms * MS, "frees", ticket))
            decisions = []
        else:
            decisions = policy.release(ticket, now_ns)
        policy.check()
        caps.check()
        for decision in decisions:
            decided = log[int(decision.ticket)]
            if isinstance(decision, Grant):
                waits.append(now_ns - decided.arrival_ns)
                run_ns = (decided.run_ns or 0) + planned.setup_ms * MS
                coming.append((now_ns + run_ns, "answers", decision.ticket))
            else:
                caps.release(decision.ticket)
                causes[decision.cause] += 1
    return waits, causes


@pytest.mark.parametrize("seed", range(8))
def test_another_driver_of_the_same_policy_comes_to_the_same(plan: Plan, seed: int) -> None:
    chance = random.Random(seed)
    log = sorted(
        (
            Recorded(
                arrival_ns=chance.randrange(60_000 * MS),
                priority=chance.choice(["interactive", "interactive", "grading"]),
                slots=1,
                memory_bytes=0,
                budget_ms=30_000,
                run_ns=int(chance.expovariate(1 / 800) * MS),
                evaluation_id=chance.choice([None, "a", "b"]),
            )
            for _ in range(300)
        ),
        key=lambda request: request.arrival_ns,
    )
    planned = busy(
        plan,
        aging_ms=1_500,
        queue_limit_interactive=9,
        allowance_interactive_ms=2_500,
        allowance_grading_ms=9_000,
        duration_ms=0,
    )
    outcome = simulate(planned, log)
    accounts = outcome.tally.accounts.values()
    waits, causes = naive(planned, log)
    assert sum((account.refused for account in accounts), Counter[str]()) == causes
    assert causes.keys() == {"evaluation_cap", "queue_full", "expired"}  # else it says little
    assert sorted(wait for account in accounts for wait in account.waits_ns) == sorted(waits)


# --- what is shipped ----------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario_can_be_simulated(path: Path) -> None:
    outcome = simulate(scenario(Settings(), read_file(path)))
    outcome.tally.check()
    assert all(account.answered for account in outcome.tally.accounts.values())


def test_there_are_shipped_scenarios() -> None:
    assert [path.stem for path in SHIPPED] == ["class-of-endless-loops", "class-of-thirty"]
