"""Every stage of a sandbox's set-up fails in every way that a process can fail.

The stages are read from the source, so one that is added is tried without anybody thinking
of it: it must fail as `sandbox_setup_failed`, or be named below.
"""

from __future__ import annotations

import ast
import errno
from collections.abc import Iterator

import pytest

from gaoler.sandbox.job import TaskDone
from tests.alterations.faults import HANG, Fault
from tests.faults.breaking import (
    ABREAST,
    SHORT_BUDGET_MS,
    SOURCES,
    STAGES,
    await_stuck,
    breaking,
    failure_of,
    name_of,
    ordinary,
    stages,
)
from tests.hosting import LiveWarden, Watched, job

PARTS = ("jailer", "supervisor", "init", "task")

# Where the program may have run; a stage that is not named here comes before.
MAY_HAVE_RUN = {
    ("jailer", "finish"),
    ("supervisor", "start the task"),
    ("supervisor", "watch over the task"),
    ("supervisor", "make the result"),
    ("supervisor", "send the result"),
    ("task", "read the task"),
    ("task", "write inputs"),
    ("task", "enter working folder"),
    ("task", "set limits"),
    ("task", "load the profile"),
}
# Where a process that is killed can have been told what to run.
TOLD = {("jailer", stage) for part, stage in STAGES if part == "jailer"} | {
    ("supervisor", stage) for part, stage in STAGES if part == "supervisor"
}


def code_of(part: str, stage: str) -> str:
    return "internal_error" if (part, stage) in MAY_HAVE_RUN else "sandbox_setup_failed"


def side_by_side(live: LiveWarden, faults: list[Fault]) -> Iterator[tuple[Fault, Watched]]:
    """Run a request for each fault, some at a time."""
    for start in range(0, len(faults), ABREAST):
        batch = faults[start : start + ABREAST]
        yield from [(fault, live.submit(breaking(fault))) for fault in batch]


def test_the_source_names_its_stages_where_they_can_be_found() -> None:
    uses = [
        node
        for source in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "enter"
    ]
    assert len(uses) == len(list(stages())), "a stage whose name is not a plain text"
    assert {part for part, _ in STAGES} == set(PARTS)
    assert {part for part, stage in STAGES if stage == "join cgroup"} == {"jailer", "task"}
    assert set(STAGES) >= MAY_HAVE_RUN


@pytest.mark.parametrize("how", ["ENOMEM", "ENOSPC", "EIO", "MemoryError", "ValueError"])
def test_a_stage_that_fails_fails_the_request_by_name(breakable: LiveWarden, how: str) -> None:
    faults = [Fault(part, f"stage {stage}", how) for part, stage in STAGES]
    wrong = []
    for fault, watched in side_by_side(breakable, faults):
        stage = fault.point.removeprefix("stage ")
        failed = failure_of(watched)
        number = getattr(errno, how, 0)
        as_expected = (failed.code, failed.errno) == (code_of(fault.part, stage), number)
        if not as_expected or not failed.stage.startswith(f"{stage}: "):
            wrong.append((fault.part, stage, failed))
    assert wrong == []


def test_a_process_that_is_killed_at_a_stage_fails_the_request(breakable: LiveWarden) -> None:
    faults = [Fault(part, f"stage {stage}", "SIGKILL") for part, stage in STAGES]
    wrong = []
    for fault, watched in side_by_side(breakable, faults):
        place = (fault.part, fault.point.removeprefix("stage "))
        failed = failure_of(watched)
        # Whose last words nobody hears may have let the program go.
        code = "internal_error" if place in TOLD else code_of(*place)
        if failed.code != code or not failed.stage:
            wrong.append((place, failed))
    assert wrong == []


def test_a_process_that_hangs_at_a_stage_is_ended_at_the_hard_deadline(
    breakable: LiveWarden,
) -> None:
    wanted = job(ordinary(), budget_ms=SHORT_BUDGET_MS)
    faults = [Fault(part, f"stage {stage}", HANG) for part, stage in STAGES]
    watched = [breakable.submit(breaking(fault, wanted)) for fault in faults]
    for each in watched:
        await_stuck(name_of(each))
    for fault, each in zip(faults, watched, strict=True):
        failed = failure_of(each)
        assert (failed.code, failed.stage) == ("internal_error", "the sandbox died"), fault


@pytest.mark.parametrize("part", ["supervisor", "init", "task"])
@pytest.mark.parametrize("how", ["ENOMEM", "SIGKILL"])
def test_what_fails_in_a_later_step_does_not_pass_for_nothing_ran(
    breakable: LiveWarden, part: str, how: str
) -> None:
    faults = [
        Fault(part, f"stage {stage}", how, task=1) for of_part, stage in STAGES if of_part == part
    ]
    wanted = job(ordinary(), ordinary())
    for start in range(0, len(faults), ABREAST):
        batch = faults[start : start + ABREAST]
        watched = [(fault, breakable.submit(breaking(fault, wanted))) for fault in batch]
        for fault, each in watched:
            assert failure_of(each).code == "internal_error", fault
            done = [event for event in each.events if isinstance(event, TaskDone)]
            assert [(event.step, event.task) for event in done] == [(0, 0)], fault
            assert done[0].result.outcome == "completed", fault
