"""What a simulation came to, for programs (`summary`) and for people (`text`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from gaoler.actors.policy.slots import GRADING, INTERACTIVE
from gaoler.planning.scenario import OPTIONS, Scenario
from gaoler.planning.simulation import Outcome
from gaoler.planning.tally import CLASSES, NEVER_NS, Account
from gaoler.planning.times import NS_PER_MS

# Causes of a refusal, in the order in which they are looked at, in the words of the table.
CAUSES = {
    "attempt_in_flight": "attempt under way",
    "evaluation_cap": "evaluation's cap",
    "impossible": "could never fit",
    "no_slots": "would not wait",
    "queue_full": "queue full",
    "expired": "waited the allowance",
}


def percentile_ms(sorted_ns: Sequence[int], percent: float) -> int | None:
    """The nearest rank: the smallest value that `percent` of all are not above.

    None where there are no values, or where that one never came.
    """
    if not sorted_ns:
        return None
    rank = max(1, -(-len(sorted_ns) * percent // 100))
    value_ns = sorted_ns[int(rank) - 1]
    return None if value_ns >= NEVER_NS else -(-value_ns // NS_PER_MS)


def spread(values_ns: Iterable[int]) -> dict[str, int | None]:
    """Median, 95th percentile and worst, in whole milliseconds, rounded up."""
    ordered = sorted(values_ns)
    return {
        "median_ms": percentile_ms(ordered, 50),
        "p95_ms": percentile_ms(ordered, 95),
        "worst_ms": percentile_ms(ordered, 100),
    }


# --- for programs -------------------------------------------------------------------------


def plain(scenario: Scenario) -> dict[str, object]:
    """Every option as a scenario file has it."""
    return {
        each.name: OPTIONS[each.name].kind.plain(getattr(scenario, each.name))
        for each in fields(scenario)
    }


def summary(outcome: Outcome) -> dict[str, Any]:
    """All numbers.  `classes` by name; `null` for a time that never came."""
    scenario = outcome.scenario
    accounts = outcome.tally.accounts
    return {
        "scenario": plain(scenario),
        "simulated_ms": outcome.end_ns // NS_PER_MS,
        "classes": {name: _class_summary(outcome, accounts[name]) for name in CLASSES},
        "slot_use": sum(_slot_use(outcome, account) for account in accounts.values()),
        "memory_of_full_slots_bytes": scenario.slots * scenario.request_memory_bytes,
        "grading_pass": _pass_summary(outcome),
    }


def _class_summary(outcome: Outcome, account: Account) -> dict[str, Any]:
    minutes = outcome.end_ns / NS_PER_MS / 60_000
    return {
        "sent": account.sent,
        "started": account.granted,
        "answered": account.answered,
        "refused": {cause: account.refused[cause] for cause in CAUSES},
        "refused_at_once": account.refused_at_once,
        "refused_after_the_allowance": account.refused_after_the_allowance,
        "queued": spread(account.waits_ns),
        "to_start": spread(account.delays_ns),
        "wanted": account.wanted,
        "never_started": account.unserved,
        "would_not_wait": account.would_not_wait,
        "most_waiting": account.waiting.most,
        "most_slots": account.running.most,
        "slot_use": _slot_use(outcome, account),
        "answered_per_minute": account.answered_in_time / minutes,
    }


def _slot_use(outcome: Outcome, account: Account) -> float:
    slots = outcome.scenario.slots * outcome.scenario.nodes
    return account.running.area_ns() / (slots * outcome.end_ns)


def _pass_summary(outcome: Outcome) -> dict[str, int | None] | None:
    done = outcome.grading_pass
    if done is None:
        return None
    finished_ms = None if done.finished_ns is None else done.finished_ns // NS_PER_MS
    return {"requests": done.requests, "answered": done.answered, "finished_ms": finished_ms}


# --- for people ---------------------------------------------------------------------------


def text(numbers: dict[str, Any]) -> str:
    """`summary` as a page for a terminal."""
    interactive, grading = (numbers["classes"][name] for name in (INTERACTIVE, GRADING))
    rows = [("", INTERACTIVE, GRADING)]
    rows += [
        (label, write(interactive, key), write(grading, key)) for label, key, write in _lines()
    ]
    body = aligned(row for row in rows if row[0] == "" or not _is_quiet(row))
    return "\n".join([body, *_closing(numbers)])


def _lines() -> Iterable[tuple[str, Any, Any]]:
    yield "requests sent", "sent", _count
    yield "started", "started", _count
    for cause, words in CAUSES.items():
        yield f"refused: {words}", ("refused", cause), _count
    yield "refused at once", "refused_at_once", _count
    yield "refused after the allowance", "refused_after_the_allowance", _count
    yield "runs wanted", "wanted", _count
    yield "  never started", "never_started", _count
    for key, words in (("queued", "in the queue"), ("to_start", "from first try to start")):
        for part in ("median", "p95", "worst"):
            yield f"{words}, {part}", (key, f"{part}_ms"), _seconds
    yield "most waiting at one time", "most_waiting", _count
    yield "slot use", "slot_use", _percent
    yield "answered a minute", "answered_per_minute", _rate


# Rows that say nothing where they are 0 in both classes.
_MAY_BE_LEFT_OUT = tuple(f"refused: {words}" for words in CAUSES.values())


def _is_quiet(row: tuple[str, str, str]) -> bool:
    return row[0] in _MAY_BE_LEFT_OUT and row[1:] == ("0", "0")


def _found(numbers: dict[str, Any], key: Any) -> Any:
    return numbers[key] if isinstance(key, str) else numbers[key[0]][key[1]]


def _count(numbers: dict[str, Any], key: Any) -> str:
    return str(_found(numbers, key))


def _percent(numbers: dict[str, Any], key: Any) -> str:
    return f"{_found(numbers, key):.1%}"


def _rate(numbers: dict[str, Any], key: Any) -> str:
    return f"{_found(numbers, key):.1f}"


def _seconds(numbers: dict[str, Any], key: Any) -> str:
    waited = numbers["wanted"] - numbers["would_not_wait"]
    if not (waited if key[0] == "to_start" else numbers["started"]):
        return "-"
    return seconds(_found(numbers, key))


def seconds(milliseconds: int | None) -> str:
    """A time as people read it; None is one that never came."""
    return "never" if milliseconds is None else f"{milliseconds / 1000:.2f} s"


def _closing(numbers: dict[str, Any]) -> Iterable[str]:
    yield ""
    yield f"slots in use: {numbers['slot_use']:.1%} of the time"
    mebibytes = numbers["memory_of_full_slots_bytes"] / 2**20
    yield f"memory that full slots reserve on a node: {mebibytes:.0f} MiB"
    done = numbers["grading_pass"]
    if done is not None:
        finished_ms = done["finished_ms"]
        end = "not finished" if finished_ms is None else f"finished at {seconds(finished_ms)}"
        yield f"grading pass: {done['answered']} of {done['requests']} requests answered, {end}"


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Columns, the first to the left and the others to the right."""
    lines = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in lines
    )


def heading(scenario: Scenario, simulated_ms: int) -> str:
    """The service that was simulated, in one line."""
    return (
        f"{plural(scenario.nodes, 'node')} of {plural(scenario.slots, 'slot')} "
        f"(grading at most {scenario.grading_slots}), cap {scenario.cap}, "
        f"{simulated_ms / 60_000:.4g} minutes, seed {scenario.seed}"
    )


def people(scenario: Scenario) -> str:
    """Who comes."""
    looping = int(scenario.students * scenario.looping_share + 1e-9)
    words = (
        f"{plural(scenario.students, 'student')}, {looping} with endless loops, "
        f"{plural(scenario.cases, 'case')} of {_at_most(scenario.case_wall_ms)}"
    )
    if scenario.copies:
        words += (
            f";\na grading pass: copies {scenario.copies}, each of "
            f"{plural(scenario.grading_cases, 'case')} of {_at_most(scenario.grading_wall_ms)}, "
            f"{_pace(scenario.grading_at_once)}"
        )
    return words


def _pace(at_once: int) -> str:
    if at_once == 0:
        return "all at once"
    return "one after another" if at_once == 1 else f"{at_once} at a time"


def _at_most(wall_ms: int) -> str:
    return f"{wall_ms} ms at most" if wall_ms else "no time of its own"


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'s'[: count != 1]}"
