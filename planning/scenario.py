"""What is simulated: the service, those who use it, and for how long.

`Scenario` is the table of options.  A value comes from the command line, else from the
scenario file, else from the service's settings where there is one, else from the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaoler.actors.policy.memory import request_memory_bytes
from gaoler.actors.policy.slots import ClassRules, QueueRules
from gaoler.config.kinds import DAY_MS, MOST_BYTES, choice, integer, number, refusal
from gaoler.config.settings import Settings
from gaoler.planning.options import option, options, parsed
from gaoler.planning.times import NEVER, RETRY_AFTER, Times, times

SERVICE, STUDENTS, GRADING, RUN = "the service", "students", "a grading pass", "the simulation"
UNBOUNDED_BYTES = 2**62
USUAL_DURATION_MS = 600_000
_BALANCES, _CARRIED = ("round-robin", "least-outstanding"), ("copy", "case")
_DISTRIBUTION = "DISTRIBUTION"
_AGAIN = "|".join((_DISTRIBUTION, RETRY_AFTER, NEVER))

Again = Times | str  # a distribution, "retry-after" or "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Every option, typed and checked; made by `scenario`."""

    # --- the service ----------------------------------------------------------------------
    slots: int = option(
        SERVICE, integer(1, 4_096), None, "slots of one node", setting="max_concurrency"
    )
    grading_slots: int = option(
        SERVICE,
        integer(1, 4_096),
        None,
        "slots of one node that grading may hold",
        setting="grading_runner_concurrency",
    )
    cap: int = option(
        SERVICE,
        integer(1, 100_000),
        None,
        "interactive requests of one evaluation, waiting or running, on one node",
        setting="runner_runs_per_evaluation",
    )
    aging_ms: int = option(
        SERVICE,
        integer(0, DAY_MS),
        None,
        "after this wait a grading request goes first",
        setting="aging_ms",
    )
    queue_limit_interactive: int = option(
        SERVICE,
        integer(0, 100_000),
        None,
        "interactive requests that may wait",
        setting="queue_limit_interactive",
    )
    queue_limit_grading: int = option(
        SERVICE,
        integer(0, 100_000),
        None,
        "grading requests that may wait",
        setting="queue_limit_grading",
    )
    allowance_interactive_ms: int = option(
        SERVICE,
        integer(0, DAY_MS),
        None,
        "how long an interactive request may wait",
        setting="queue_allowance_interactive_ms",
    )
    allowance_grading_ms: int = option(
        SERVICE,
        integer(0, DAY_MS),
        None,
        "how long a grading request may wait",
        setting="queue_allowance_grading_ms",
    )
    ceiling_interactive_ms: int = option(
        SERVICE,
        integer(1, DAY_MS),
        None,
        "the longest that an interactive request may run",
        setting="runner_timeout_ms",
    )
    ceiling_grading_ms: int = option(
        SERVICE,
        integer(1, DAY_MS),
        None,
        "the longest that a grading request may run",
        setting="overall_timeout_ms",
    )
    wall_timeout_ms: int = option(
        SERVICE,
        integer(1, DAY_MS),
        None,
        "the time of a case that names none",
        setting="wall_timeout_ms",
    )
    grace_ms: int = option(
        SERVICE,
        integer(0, DAY_MS),
        None,
        "what the budget adds for each case",
        setting="budget_grace_ms",
    )
    setup_ms: int = option(
        SERVICE, integer(0, DAY_MS), 30, "from the slots to the first program, once a request"
    )
    step_ms: int = option(
        SERVICE, integer(0, DAY_MS), 20, "between one program and the next, once a case"
    )
    teardown_ms: int = option(
        SERVICE, integer(0, DAY_MS), 20, "from the answer until the slots are free, once a request"
    )
    node_memory_bytes: int = option(
        SERVICE,
        integer(0, MOST_BYTES),
        0,
        "memory that the requests of one node share, as TASKS_MEMORY_BYTES; 0: it never runs out",
    )
    request_memory_bytes: int = option(
        SERVICE,
        integer(0, MOST_BYTES),
        None,
        "memory that one request reserves; by default what one task of the defaults needs",
    )
    nodes: int = option(SERVICE, integer(1, 10_000), 1, "equal nodes behind one proxy")
    balance: str = option(
        SERVICE,
        choice(*_BALANCES),
        "round-robin",
        "which node the proxy takes",
        written="|".join(_BALANCES),
    )

    # --- students -------------------------------------------------------------------------
    students: int = option(STUDENTS, integer(0, 1_000_000), 30, "how many there are")
    evaluations: int = option(
        STUDENTS, integer(1, 1_000_000), 1, "evaluations that they are spread over"
    )
    looping_share: float = option(
        STUDENTS, number(0, 1), 0.2, "the share of them whose programs never end"
    )
    cases: int = option(STUDENTS, integer(1, 1_000), 15, "cases that one run has, in a row")
    case_wall_ms: int = option(
        STUDENTS,
        integer(0, DAY_MS),
        2_000,
        "wall_ms of a case; 0: none is named, so it has WALL_TIMEOUT_MS or what is left",
    )
    case_time: Times = option(
        STUDENTS,
        times(),
        "lognormal:150,0.8",
        "how long a case of a sound program runs",
        written=_DISTRIBUTION,
    )
    first_click: Times = option(
        STUDENTS,
        times(),
        "uniform:0-60000",
        "from the start to the first run",
        written=_DISTRIBUTION,
    )
    think_time: Times = option(
        STUDENTS,
        times(),
        "exponential:60000",
        "from an answer to the next run",
        written=_DISTRIBUTION,
    )
    click_again: Again = option(
        STUDENTS,
        times(RETRY_AFTER, NEVER),
        "uniform:1000-5000",
        "from a busy answer to the next try; never: that run is given up",
        written=_AGAIN,
    )

    # --- a grading pass -------------------------------------------------------------------
    copies: int = option(GRADING, integer(0, 1_000_000), 30, "copies to grade; 0: there is none")
    grading_cases: int = option(GRADING, integer(1, 1_000), 15, "cases of each copy")
    grading_request: str = option(
        GRADING,
        choice(*_CARRIED),
        "copy",
        "what one request carries",
        written="|".join(_CARRIED),
    )
    grading_wall_ms: int = option(
        GRADING, integer(0, DAY_MS), 2_000, "wall_ms of a case; 0: none is named"
    )
    grading_looping_share: float = option(
        GRADING, number(0, 1), 0.2, "the share of copies that never end"
    )
    grading_at_once: int = option(
        GRADING,
        integer(0, 1_000_000),
        1,
        "requests under way; 1: one after another, 0: all at once",
    )
    grading_again: Again = option(
        GRADING,
        times(RETRY_AFTER, NEVER),
        RETRY_AFTER,
        "from a busy answer until it is sent again; never: it is given up",
        written=_AGAIN,
    )
    grading_start_ms: int = option(GRADING, integer(0, DAY_MS), 0, "when the pass begins")

    # --- the simulation -------------------------------------------------------------------
    duration_ms: int = option(
        RUN,
        integer(0, 100 * DAY_MS),
        0,
        f"how long people come; 0: {USUAL_DURATION_MS}, or to the end of the log",
    )
    seed: int = option(RUN, integer(0, 2**63 - 1), 1, "what chance begins with")

    def rules(self) -> QueueRules:
        """The queue's rules of one node."""
        return QueueRules(
            slots=self.slots,
            memory_bytes=self.node_memory_bytes or UNBOUNDED_BYTES,
            grading_slots=self.grading_slots,
            aging_ms=self.aging_ms,
            interactive=ClassRules(self.queue_limit_interactive, self.allowance_interactive_ms),
            grading=ClassRules(self.queue_limit_grading, self.allowance_grading_ms),
        )


OPTIONS = options(Scenario)
# What a recorded log says by itself.
NOT_WITH_A_LOG = tuple(name for name, each in OPTIONS.items() if each.group in (STUDENTS, GRADING))

# What one task reserves: its limit, then what its request has beside it.
_OF_ONE_TASK = (
    "memory_limit_bytes",
    "workspace_bytes",
    "tmp_bytes",
    "shm_bytes",
    "request_output_limit_bytes",
)


def scenario(settings: Settings, given: Mapping[str, Any]) -> Scenario:
    """The scenario; `given` has typed values.  SettingsError where they contradict."""
    values: dict[str, Any] = {}
    for name, each in OPTIONS.items():
        if name in given:
            values[name] = given[name]
        elif each.setting is not None:
            values[name] = getattr(settings, each.setting)
        elif each.default is not None:
            values[name] = each.kind.parse(each.default)
    values.setdefault("request_memory_bytes", _one_task_bytes(settings))
    made = Scenario(**values)
    _check(made)
    return made


def settings_used(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings, in lower case, that a scenario with these values is made from."""
    named = [each.setting for name, each in OPTIONS.items() if name not in given and each.setting]
    return (*named, *(() if "request_memory_bytes" in given else _OF_ONE_TASK))


def read_file(path: Path) -> dict[str, Any]:
    """The typed values of a scenario file.  SettingsError names the file and the option."""
    try:
        with path.open("rb") as opened:
            raw = tomllib.load(opened)
    except OSError as problem:
        raise refusal("--scenario", path, f"a file that can be read; {problem.strerror}") from None
    except ValueError as problem:
        raise refusal("--scenario", path, f"a TOML file; {problem}") from None
    return parsed(OPTIONS, raw, f"{path}: ")


def _one_task_bytes(settings: Settings) -> int:
    limit_bytes, *shared = (getattr(settings, name) for name in _OF_ONE_TASK)
    return request_memory_bytes([[limit_bytes]], *shared)


def _check(made: Scenario) -> None:
    if 0 < made.node_memory_bytes < made.request_memory_bytes:
        # Else every request is refused for good, and people would try for ever.
        allowed = f"0, or at least what one request reserves ({made.request_memory_bytes})"
        raise refusal("--node-memory-bytes", made.node_memory_bytes, allowed)
    for name, wall_ms, ceiling_ms in (
        ("--case-wall-ms", made.case_wall_ms, made.ceiling_interactive_ms),
        ("--grading-wall-ms", made.grading_wall_ms, made.ceiling_grading_ms),
    ):
        if wall_ms + made.grace_ms > ceiling_ms:
            allowed = f"at most {ceiling_ms - made.grace_ms}, the ceiling less the grace"
            raise refusal(name, wall_ms, allowed)
