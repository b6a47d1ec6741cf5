"""`gaoler plan`: what a class will see of a service, and what it needs, by simulation.

The queue's own rules run under a virtual clock (gaoler.planning).  Options come from the
command line, else from `--scenario`, else from the service's settings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gaoler.cli import exit_codes
from gaoler.config.kinds import DAY_MS, NotAllowedError, SettingsError, integer, refusal
from gaoler.config.settings import Reading, load, read, table
from gaoler.planning.options import parsed
from gaoler.planning.recorded import Log, Recorded, line_of, read_log
from gaoler.planning.scenario import (
    NOT_WITH_A_LOG,
    OPTIONS,
    Scenario,
    read_file,
    scenario,
    settings_used,
)

if TYPE_CHECKING:
    from gaoler.planning.search import Search
    from gaoler.planning.simulation import Record

ABOUT = """\
Says what a class, a grading pass or a recorded log would see of a service: waits, refusals,
use of the slots. The same seed gives the same numbers. docs/capacity.md says how to read them.

Times are milliseconds. A DISTRIBUTION is constant:MS, uniform:LOW-HIGH, exponential:MEAN or
lognormal:MEDIAN,SIGMA.
"""
MOST_WAIT_MS = 100 * DAY_MS
# Of our own; those of a scenario are in its table.
_OF_THE_SEARCH = {
    "want_wait_ms": integer(0, MOST_WAIT_MS),
    "want_grading_wait_ms": integer(0, MOST_WAIT_MS),
    "most_slots": integer(1, 4_096),
}
_WANTED = ("want_wait_ms", "want_grading_wait_ms")  # either makes it a search
_TRIED = ("slots", "cap")  # what a search finds
USUAL_MOST_SLOTS = 32
_SOURCES = {"environment": "environment", "file": "settings file"}


@dataclass(frozen=True, slots=True)
class Taken:
    """A setting that is not at its default and counts here.

    It may be left over from something else, so it is shown.
    """

    name: str
    value: object
    source: str  # "environment" or "file"


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for, checked."""

    scenario: Scenario
    log: Log | None
    want_wait_ms: int | None
    want_grading_wait_ms: int | None
    most_slots: int
    taken: tuple[Taken, ...]

    @property
    def requests(self) -> tuple[Recorded, ...] | None:
        return None if self.log is None else self.log.requests

    @property
    def is_search(self) -> bool:
        return self.want_wait_ms is not None or self.want_grading_wait_ms is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n\n{ABOUT}"
    parser.usage = "%(prog)s [OPTIONS]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    _add_sources_and_output(parser)
    _add_search(parser)
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, Any] = {}
    usual = _usual()
    for name, each in OPTIONS.items():
        if each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        told = f"{each.meaning} ({_default(name, usual)})"
        groups[each.group].add_argument(_written(name), metavar=each.written, help=told)


def _usual() -> Scenario | None:
    """What holds here and now where no option is given; None where the settings are wrong.

    Those are refused when they are used: the help is shown all the same.
    """
    try:
        return scenario(load(os.environ), {})
    except SettingsError:
        return None


def _default(name: str, usual: Scenario | None) -> str:
    option = OPTIONS[name]
    if option.default is not None:
        return str(option.default)
    source = "by the settings" if option.setting is None else f"setting {option.setting.upper()}"
    return source if usual is None else f"{source}, now {getattr(usual, name)}"


def _add_sources_and_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenario", type=Path, metavar="FILE", help="a TOML file of the options below"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="replay recorded requests, one JSON object a line"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="draw what ran and waited over time"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the simulated requests as a log"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a search for the fewest slots and the lowest cap")
    group.add_argument(
        "--want-wait-ms",
        metavar="X",
        help="19 of 20 interactive runs start within this, all tries counted",
    )
    group.add_argument("--want-grading-wait-ms", metavar="X", help="the same for grading")
    group.add_argument(
        "--most-slots", metavar="X", help=f"where the search ends ({USUAL_MOST_SLOTS})"
    )


def main(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Simulate, and print what it came to.  1 where no number of slots holds what is wanted."""
    order = _order(args, environ)
    if find_spec("simpy") is None:
        told = "run: pip install '/path/to/gaoler[plan]', with the checkout's path, or bin/serve"
        print(f"gaoler plan: simpy is missing; {told}", file=sys.stderr)
        return exit_codes.UNAVAILABLE
    found = _search(order) if order.is_search else None
    if found is None:
        _simulate(args, order, None)
        return exit_codes.DONE
    best = found.found
    if best is None:
        _say_nothing_holds(args, order, found)
        return exit_codes.FAILED
    scenario = replace(order.scenario, slots=best.slots, cap=best.cap)
    _simulate(args, replace(order, scenario=scenario), found)
    return exit_codes.DONE


# --- what is asked for --------------------------------------------------------------------


def _order(args: argparse.Namespace, environ: Mapping[str, str]) -> Order:
    """Everything that was given, or SettingsError with one line about what is wrong."""
    raw = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    given = read_file(args.scenario) if args.scenario is not None else {}
    given |= parsed(OPTIONS, raw, "--")
    if args.log is not None:
        _need_nobody_else(given)
    search = {name: _number_of_search(name, getattr(args, name)) for name in _OF_THE_SEARCH}
    _need_one_sense(search, raw)
    if args.picture is not None and args.picture.suffix.lower() != ".svg":
        raise refusal("--picture", args.picture, "a name that ends in .svg")
    reading = read(environ)
    is_search = any(search[name] is not None for name in _WANTED)
    return Order(
        scenario=scenario(reading.settings, given),
        log=None if args.log is None else read_log(args.log),
        want_wait_ms=search["want_wait_ms"],
        want_grading_wait_ms=search["want_grading_wait_ms"],
        most_slots=search["most_slots"] or USUAL_MOST_SLOTS,
        taken=_taken(reading, given | dict.fromkeys(_TRIED) if is_search else given),
    )


def _taken(reading: Reading, given: Mapping[str, object]) -> tuple[Taken, ...]:
    found = []
    for name in settings_used(given):
        row, source = table()[name.upper()], reading.sources[name.upper()]
        if source != "default":
            value = row.kind.plain(getattr(reading.settings, name))
            found.append(Taken(name.upper(), value, source))
    return tuple(found)


def _need_nobody_else(given: Mapping[str, object]) -> None:
    """A log has its own people: to say who comes as well is a slip."""
    for name in NOT_WITH_A_LOG:
        if name in given:
            raise SettingsError(f"{_written(name)} has no meaning together with --log")


def _need_one_sense(search: Mapping[str, int | None], raw: Mapping[str, str]) -> None:
    """What a search tries itself cannot be given beside it, nor its end without a search.

    What a scenario file says of slots and cap is of the simulation alone.
    """
    wanted = next((name for name in _WANTED if search[name] is not None), None)
    if wanted is None:
        if search["most_slots"] is not None:
            raise SettingsError(f"--most-slots has no meaning without {_written(_WANTED[0])}")
        return
    for name in _TRIED:
        if name in raw:
            raise SettingsError(
                f"{_written(name)} has no meaning together with {_written(wanted)}: "
                "the search tries its own; --most-slots says where it ends"
            )


def _written(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _number_of_search(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    kind = _OF_THE_SEARCH[name]
    try:
        return int(kind.parse(raw))
    except NotAllowedError:
        raise refusal(_written(name), raw, kind.allowed) from None


# --- what comes of it ---------------------------------------------------------------------


def _search(order: Order) -> Search:
    from gaoler.planning.search import Want, search

    want = Want(order.want_wait_ms, order.want_grading_wait_ms)
    return search(order.scenario, want, order.most_slots, order.requests)


def _say_nothing_holds(args: argparse.Namespace, order: Order, found: Search) -> None:
    """What was tried, and no more: there is no service to show."""
    from gaoler.planning import search

    for option, path in (("--picture", args.picture), ("--record", args.record)):
        if path is not None:
            told = f"gaoler plan: {option}: {path} is not written, nothing was found to show"
            print(told, file=sys.stderr)
    if args.json:
        print(json.dumps({"search": found.plain()}, indent=2))
    else:
        print(search.text(found, order.most_slots))


def _simulate(args: argparse.Namespace, order: Order, found: Search | None) -> None:
    from gaoler.planning import picture, report
    from gaoler.planning.simulation import simulate

    with _recording(args.record) as record:
        outcome = simulate(order.scenario, order.requests, record)
    numbers = report.summary(outcome)
    heading = report.heading(order.scenario, numbers["simulated_ms"])
    if args.picture is not None:
        _write(args.picture, "--picture", picture.draw(outcome, heading))
    if args.json:
        print(json.dumps(_as_json(numbers, order, found), indent=2))
    else:
        print("\n".join(_as_text(numbers, order, found, heading)))


def _as_json(numbers: dict[str, Any], order: Order, found: Search | None) -> dict[str, Any]:
    numbers["settings"] = {
        each.name: {"value": each.value, "source": each.source} for each in order.taken
    }
    if order.log is not None:
        numbers["log"] = {
            "requests": len(order.log.requests),
            "passed_over": order.log.passed_over,
            "without_run_time": order.log.without_run_time,
        }
    if found is not None:
        numbers["search"] = found.plain()
    return numbers


def _as_text(
    numbers: dict[str, Any], order: Order, found: Search | None, heading: str
) -> Iterator[str]:
    from gaoler.planning import report, search

    if found is not None:
        yield search.text(found, order.most_slots)
        yield ""
    yield heading + "".join(
        f", {each.name}={each.value} of the {_SOURCES[each.source]}" for each in order.taken
    )
    if order.log is None:
        yield report.people(order.scenario)
    else:
        yield (
            f"{len(order.log.requests)} recorded requests, {order.log.passed_over} lines about "
            f"something else, {order.log.without_run_time} run times drawn from the others"
        )
    yield ""
    yield report.text(numbers)


@contextmanager
def _recording(path: Path | None) -> Iterator[Record | None]:
    """What writes each simulated request as a line of a log; None where none is wanted."""
    if path is None:
        yield None
        return
    with _opened(path, "--record") as opened:
        yield lambda request: print(line_of(request), file=opened)


def _write(path: Path, option: str, text: str) -> None:
    with _opened(path, option) as opened:
        opened.write(text)


def _opened(path: Path, option: str) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as problem:
        raise refusal(option, path, f"a file that can be written; {problem.strerror}") from None
