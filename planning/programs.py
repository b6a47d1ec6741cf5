"""What a request runs: a row of cases under a budget, as the sandbox would run them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gaoler.actors.policy.budget import BudgetRules, StepTime, TaskTime, request_budget_ms
from gaoler.planning.scenario import Scenario
from gaoler.planning.times import NS_PER_MS, Times

# A run takes this long at the least, so that time goes on whatever the options say.
LEAST_RUN_NS = NS_PER_MS


@dataclass(frozen=True, slots=True)
class Program:
    """A request of `cases` cases, each a step of one task."""

    cases: int
    wall_ms: int  # 0: none is named
    usual_wall_ms: int  # what a case has that names none
    budget_ms: int
    setup_ns: int
    step_ns: int
    case_time: Times

    def run_ns(self, chance: random.Random, *, looping: bool) -> int:
        """From the slots to the answer.

        A case that named its time starts only if all of it fits before the deadline; one
        that named none gets the usual time, or what is left.
        """
        budget_ns = self.budget_ms * NS_PER_MS
        named_ns, usual_ns = self.wall_ms * NS_PER_MS, self.usual_wall_ms * NS_PER_MS
        at_ns = self.setup_ns
        for _ in range(self.cases):
            wall_ns = named_ns or min(usual_ns, budget_ns - at_ns)
            if wall_ns <= 0 or at_ns + wall_ns > budget_ns:
                break
            case_ns = wall_ns if looping else min(self.case_time.draw_ns(chance), wall_ns)
            at_ns += case_ns + self.step_ns
        return max(min(at_ns, self.setup_ns + budget_ns), LEAST_RUN_NS)


def students_program(scenario: Scenario) -> Program:
    return _program(
        scenario, scenario.cases, scenario.case_wall_ms, scenario.ceiling_interactive_ms
    )


def graders_program(scenario: Scenario) -> Program:
    cases = scenario.grading_cases if scenario.grading_request == "copy" else 1
    return _program(scenario, cases, scenario.grading_wall_ms, scenario.ceiling_grading_ms)


def _program(scenario: Scenario, cases: int, wall_ms: int, ceiling_ms: int) -> Program:
    # None of the other two times of the formula applies: no build, and no files.
    rules = BudgetRules(
        scenario.wall_timeout_ms, build_ms=0, grace_ms=scenario.grace_ms, upload_ms=0
    )
    steps = [StepTime([TaskTime(wall_ms or None)])] * cases
    return Program(
        cases=cases,
        wall_ms=wall_ms,
        usual_wall_ms=scenario.wall_timeout_ms,
        budget_ms=request_budget_ms(steps, rules, ceiling_ms),
        setup_ns=scenario.setup_ms * NS_PER_MS,
        step_ns=scenario.step_ms * NS_PER_MS,
        case_time=scenario.case_time,
    )


def is_looping(number: int, share: float) -> bool:
    """Whether that one, counted from 0, is among the share of them that loop.

    They are spread evenly, so that of the first N always N x share loop, rounded down.
    """
    return int((number + 1) * share + 1e-9) > int(number * share + 1e-9)
