"""The fewest slots, and the lowest cap, with which a stated wait holds.

Every pair is simulated, slots upward, with the same people and the same chances, until one
holds.  Nothing is skipped on the belief that more slots are always better, so what is found
is the smallest that holds, and a longer wait never needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gaoler.actors.policy.slots import GRADING, INTERACTIVE
from gaoler.planning.recorded import Recorded
from gaoler.planning.report import aligned, percentile_ms, plural, seconds
from gaoler.planning.scenario import Scenario
from gaoler.planning.simulation import Outcome, simulate


@dataclass(frozen=True, slots=True)
class Want:
    """What must hold, at the 95th percentile; None: all the same."""

    interactive_ms: int | None
    grading_ms: int | None

    def holds(self, interactive_ms: int | None, grading_ms: int | None) -> bool:
        """Whether these are short enough.  None: never started, or that nobody came."""
        return _within(self.interactive_ms, interactive_ms) and _within(self.grading_ms, grading_ms)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one pair of slots and cap came to."""

    slots: int
    cap: int
    interactive_ms: int | None  # from the first try to the start, 95th percentile
    grading_ms: int | None
    refused: int  # requests, of both classes
    slot_use: float
    holds: bool

    def plain(self) -> dict[str, object]:
        return {
            "slots": self.slots,
            "cap": self.cap,
            "interactive_p95_ms": self.interactive_ms,
            "grading_p95_ms": self.grading_ms,
            "refused": self.refused,
            "slot_use": self.slot_use,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True)
class Search:
    """All that was tried, and the best of it."""

    want: Want
    trials: tuple[Trial, ...]

    @property
    def found(self) -> Trial | None:
        """The one with the fewest slots that holds, and of those the lowest cap."""
        return next((trial for trial in self.trials if trial.holds), None)

    @property
    def largest(self) -> Trial:
        """The one with the most slots, and of those the highest cap."""
        return self.trials[-1]

    def plain(self) -> dict[str, object]:
        return {
            "found": self.found.plain() if self.found is not None else None,
            "largest": self.largest.plain(),
            "tried": [trial.plain() for trial in self.trials],
        }


def search(
    scenario: Scenario,
    want: Want,
    most_slots: int,
    log: Sequence[Recorded] | None = None,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> Search:
    """Try every pair, slots upward, until one holds or `most_slots` has been tried."""
    trials: list[Trial] = []
    for slots in range(1, most_slots + 1):
        for cap in caps(scenario):
            trials.append(_try(replace(scenario, slots=slots, cap=cap), want, log))
            tried(trials[-1])
        if any(trial.holds for trial in trials):
            break
    return Search(want, tuple(trials))


def caps(scenario: Scenario) -> list[int]:
    """The caps that are worth a try, rising: powers of two, the given one, and no cap at all.

    With more than one evaluation has students, a cap refuses nobody.
    """
    largest = max(scenario.cap, -(-scenario.students // scenario.evaluations))
    tries = {scenario.cap, largest}
    cap = 1
    while cap < largest:
        tries.add(cap)
        cap *= 2
    return sorted(tries)


def _try(scenario: Scenario, want: Want, log: Sequence[Recorded] | None) -> Trial:
    outcome = simulate(scenario, log)
    accounts = outcome.tally.accounts
    interactive_ms, grading_ms = (_p95_ms(outcome, name) for name in (INTERACTIVE, GRADING))
    return Trial(
        slots=scenario.slots,
        cap=scenario.cap,
        interactive_ms=interactive_ms,
        grading_ms=grading_ms,
        refused=sum(account.refused_in_all for account in accounts.values()),
        slot_use=sum(account.running.area_ns() for account in accounts.values())
        / (scenario.slots * scenario.nodes * outcome.end_ns),
        holds=want.holds(interactive_ms, grading_ms),
    )


def _p95_ms(outcome: Outcome, name: str) -> int | None:
    """Where nobody came nobody waited: 0."""
    delays_ns = sorted(outcome.tally.accounts[name].delays_ns)
    return percentile_ms(delays_ns, 95) if delays_ns else 0


def _within(wanted_ms: int | None, found_ms: int | None) -> bool:
    return wanted_ms is None or (found_ms is not None and found_ms <= wanted_ms)


def text(result: Search, most_slots: int) -> str:
    """What was found in a sentence, and what every pair gives."""
    return "\n".join([_sentence(result, most_slots), "", aligned(_rows(result))])


def _rows(result: Search) -> Iterator[tuple[str, ...]]:
    yield ("", "slots", "cap", "interactive p95", "grading p95", "refused", "slot use")
    for trial in result.trials:
        mark = "->" if trial is result.found else ""
        yield (
            mark,
            str(trial.slots),
            str(trial.cap),
            seconds(trial.interactive_ms),
            seconds(trial.grading_ms),
            str(trial.refused),
            f"{trial.slot_use:.0%}",
        )


def _sentence(result: Search, most_slots: int) -> str:
    found = result.found
    if found is None:
        last = result.largest
        return (
            f"no cap holds that with up to {plural(most_slots, 'slot')} on a node (--most-slots);\n"
            f"the largest tried, {plural(last.slots, 'slot')} and cap {last.cap}, gave a p95 of "
            f"{seconds(last.interactive_ms)} interactive, {seconds(last.grading_ms)} grading"
        )
    return f"the least that holds it: {plural(found.slots, 'slot')} on a node, cap {found.cap}"
