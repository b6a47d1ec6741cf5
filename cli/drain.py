"""`gaoler drain`: let the service on this host end once what it has taken is done.

It finds the service by the settings that this one was started with: STATE_DIR, RUNTIME_DIR.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import signal
import sys

from gaoler.cli import drain_others, exit_codes, instances, specs
from gaoler.config.settings import Settings, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--no-wait", action="store_true", help="ask for it and do not wait for the end"
    )
    how.add_argument(
        "--timeout-s",
        type=_seconds,
        metavar="N",
        help="wait at most N seconds; the service goes on with it all the same (exit code 1)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1_000_000:
        raise argparse.ArgumentTypeError(f"allowed is 0 to 1000000, not {text!a}")
    return seconds


def main(args: argparse.Namespace) -> int:
    """0 it has ended (or was asked to, with --no-wait), 1 still running, 4 nothing runs."""
    settings = load(os.environ)
    service = instances.find(specs.runtime_dir_of(settings, specs.instance_of(settings)))
    if service is None:
        return _unavailable(_nothing_runs(settings))
    try:
        signal.pidfd_send_signal(service, signal.SIGUSR2)
        return _asked() if args.no_wait else _await_end(service, args.timeout_s)
    except ProcessLookupError:
        return _unavailable(_nothing_runs(settings))
    except PermissionError:
        return _unavailable("the service is another user's; run: sudo gaoler drain")
    finally:
        os.close(service)


def _asked() -> int:
    print("asked to drain: it ends once what it has taken is done")
    return exit_codes.DONE


def _await_end(service: int, timeout_s: float | None) -> int:
    if select.select([service], [], [], timeout_s)[0]:
        print("drained: what it had taken is done, and it has ended")
        return exit_codes.DONE
    print(f"gaoler drain: still running after {timeout_s:g} s; it goes on", file=sys.stderr)
    return exit_codes.FAILED


def _nothing_runs(settings: Settings) -> str:
    where = f"STATE_DIR={settings.state_dir} and RUNTIME_DIR={settings.runtime_dir}"
    return f"no gaoler with {where} runs on this host{drain_others.text(settings)}"


def _unavailable(why: str) -> int:
    print(f"gaoler drain: {why}", file=sys.stderr)
    return exit_codes.UNAVAILABLE
