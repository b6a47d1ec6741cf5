"""`gaoler doctor`: what this host can isolate, and what to do about what it cannot."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from gaoler.actors.policy.memory import usual_request_bytes
from gaoler.cli import exit_codes, specs
from gaoler.config.settings import Settings, SettingsError, check_placement, check_uid_range, load
from gaoler.sandbox import layers
from gaoler.sandbox.layers import Layer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Print every layer; 0 where the service can start, else 1."""
    if os.geteuid() != 0:
        print("gaoler doctor: needs root to try what it reports; run: sudo gaoler doctor")
        return exit_codes.UNAVAILABLE
    found = layers.survey() + check_host(load(os.environ))
    if args.json:
        print(json.dumps([{n: getattr(layer, n) for n in Layer.__slots__} for layer in found]))
    else:
        print_table(found)
    return exit_codes.FAILED if layers.stops_start(found) else exit_codes.DONE


def check_host(settings: Settings) -> list[Layer]:
    """What the settings need of this host beside the kernel."""
    return [
        _placement(settings),
        _uid_range(settings),
        _memory(settings),
        *_warnings(settings),
    ]


def checkout() -> Path:
    """The folder that this code runs from."""
    return Path(__file__).resolve().parent.parent


def _placement(settings: Settings) -> Layer:
    try:
        check_placement(settings, checkout())
    except SettingsError as error:
        return Layer("placement", layers.MISSING, str(error), "move what it names")
    return Layer("placement", layers.ACTIVE)


def check_users(settings: Settings) -> None:
    """Raises SettingsError where somebody on this host has a user of UID_RANGE."""
    check_uid_range(settings.uid_range, _text("/etc/passwd"), _text("/etc/subuid"))


def _uid_range(settings: Settings) -> Layer:
    try:
        check_users(settings)
    except SettingsError as error:
        return Layer("task users", layers.MISSING, str(error), "set UID_RANGE to a free range")
    return Layer("task users", layers.ACTIVE)


def _memory(settings: Settings) -> Layer:
    try:
        specs.check_memory(settings)
    except SettingsError as error:
        repair = "a host with more memory, or a lower MEMORY_LIMIT_BYTES"
        return Layer("memory", layers.MISSING, str(error), repair)
    return Layer("memory", layers.ACTIVE)


def _warnings(settings: Settings) -> list[Layer]:
    """What works, but not as one may think."""
    if settings.max_concurrency == 1:
        why = "with one slot a grading request can make an interactive one wait for all of it"
        return [Layer("fairness", layers.DEGRADED, why, "set MAX_CONCURRENCY to 2 or more")]
    if settings.grading_runner_concurrency >= settings.max_concurrency:
        why = "grading may hold every slot, so interactive requests can be shut out for a while"
        repair = "set GRADING_RUNNER_CONCURRENCY below MAX_CONCURRENCY"
        return [Layer("fairness", layers.DEGRADED, why, repair)]
    if settings.tasks_memory_bytes < 2 * usual_request_bytes(settings):
        why = "the memory holds one usual request, so grading can keep interactive ones from it"
        repair = "a host with more memory, or a lower MEMORY_LIMIT_BYTES"
        return [Layer("fairness", layers.DEGRADED, why, repair)]
    return [Layer("fairness", layers.ACTIVE)]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def print_table(found: list[Layer], stream: TextIO | None = None) -> None:
    """One line a layer, and below it the command that repairs it."""
    out = stream or sys.stdout
    for layer in found:
        print(f"{layer.state:9} {layer.name}{': ' + layer.why if layer.why else ''}", file=out)
        if layer.repair:
            print(f"{'':9} repair: {layer.repair}", file=out)
