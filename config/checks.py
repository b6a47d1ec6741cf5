"""Where settings must fit each other and the host.  Every refusal is one SettingsError."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gaoler.config.kinds import host_and_port, refusal

if TYPE_CHECKING:
    from gaoler.config.settings import Settings

NOBODY_UID = 65_534
LEAST_CPUS = 0.01  # the kernel takes no quota below 1 ms in its period of 100 ms


def check(settings: Settings) -> None:
    """Refuse settings that are each allowed but contradict one another."""
    _check_addresses(settings)
    _check_times(settings)
    _check_limits(settings)
    _check_sizes(settings)
    _check_sandbox(settings)


def is_loopback(host: str) -> bool:
    """True where only this host can reach the address.  A name other than localhost is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_addresses(settings: Settings) -> None:
    for name, value in (("BIND", settings.bind), ("INTERNAL_BIND", settings.internal_bind)):
        if not settings.api_keys and not is_loopback(value[0]):
            allowed = "a loopback address as long as neither API_KEYS nor API_KEYS_FILE is set"
            raise refusal(name, host_and_port(value), allowed)
        if settings.runner_mode == "stub" and not is_loopback(value[0]):
            # To whoever does not look for "stub" in them, its answers are all a success.
            allowed = "a loopback address with RUNNER_MODE=stub, which runs nothing"
            raise refusal(name, host_and_port(value), allowed)
    # The port tells public from internal requests, whatever the host names resolve to.
    if settings.internal_bind[1] == settings.bind[1] != 0:
        allowed = f"a port other than that of BIND={host_and_port(settings.bind)}"
        raise refusal("INTERNAL_BIND", host_and_port(settings.internal_bind), allowed)


def _check_times(settings: Settings) -> None:
    least = settings.aging_ms + settings.runner_timeout_ms + settings.runner_ttl_slack_ms
    if settings.queue_allowance_grading_ms < least:
        # Else a grading request could expire before aging brought it to a slot.
        allowed = (
            f"at least {least}, the sum of AGING_MS ({settings.aging_ms}), RUNNER_TIMEOUT_MS "
            f"({settings.runner_timeout_ms}) and RUNNER_TTL_SLACK_MS "
            f"({settings.runner_ttl_slack_ms})"
        )
        raise refusal("QUEUE_ALLOWANCE_GRADING_MS", settings.queue_allowance_grading_ms, allowed)
    if settings.budget_grace_ms + 1 > settings.runner_timeout_ms:
        # Else the shortest interactive request that there can be is refused.
        allowed = f"less than RUNNER_TIMEOUT_MS ({settings.runner_timeout_ms})"
        raise refusal("BUDGET_GRACE_MS", settings.budget_grace_ms, allowed)


def _check_limits(settings: Settings) -> None:
    for name, value, most_name, most in (
        (
            "MEMORY_LIMIT_BYTES",
            settings.memory_limit_bytes,
            "MEMORY_LIMIT_MAX_BYTES",
            settings.memory_limit_max_bytes,
        ),
        ("PIDS_LIMIT", settings.pids_limit, "PIDS_LIMIT_MAX", settings.pids_limit_max),
        (
            "OUTPUT_LIMIT_BYTES",
            settings.output_limit_bytes,
            "REQUEST_OUTPUT_LIMIT_BYTES",
            settings.request_output_limit_bytes,
        ),
    ):
        if value > most:
            raise refusal(name, value, f"at most {most_name} ({most})")


def _check_sizes(settings: Settings) -> None:
    if settings.admitted_bytes < settings.execute_body_limit_bytes:
        # Else a body of an allowed size never fits, however long its client waits.
        allowed = f"at least EXECUTE_BODY_LIMIT_BYTES ({settings.execute_body_limit_bytes})"
        raise refusal("ADMITTED_BYTES", settings.admitted_bytes, allowed)
    if 0 < settings.cpus_per_slot < LEAST_CPUS:
        raise refusal("CPUS_PER_SLOT", settings.cpus_per_slot, f"0 or at least {LEAST_CPUS}")


def _check_sandbox(settings: Settings) -> None:
    if settings.default_sandbox_profile not in settings.allowed_sandbox_profiles:
        allowed = f"one of ALLOWED_SANDBOX_PROFILES ({','.join(settings.allowed_sandbox_profiles)})"
        raise refusal("DEFAULT_SANDBOX_PROFILE", settings.default_sandbox_profile, allowed)
    low, high = settings.uid_range
    # For each slot one that runs, one made beforehand, and room for those in quarantine.
    least = 4 * settings.max_concurrency
    if high - low + 1 < least:
        allowed = f"at least {least} users, four for each of MAX_CONCURRENCY's slots"
        raise refusal("UID_RANGE", f"{low}-{high}", allowed)
    if low <= NOBODY_UID <= high:
        raise refusal("UID_RANGE", f"{low}-{high}", f"a range without {NOBODY_UID}, nobody's")


def check_placement(settings: Settings, checkout: Path) -> None:
    """Refuse where a task could read what is ours through SANDBOX_READONLY_PATHS.

    Links are resolved on both sides.  `checkout` is the folder that the code runs from.
    """
    shown = {folder: folder.resolve() for folder in settings.sandbox_readonly_paths}
    for name, ours in _own_paths(settings, checkout):
        for folder, target in shown.items():
            if ours.resolve().is_relative_to(target):
                allowed = f"a place outside {folder}, which SANDBOX_READONLY_PATHS shows to tasks"
                raise refusal(name, ours, allowed)


def _own_paths(settings: Settings, checkout: Path) -> Iterator[tuple[str, Path]]:
    yield "the checkout", checkout
    yield "STATE_DIR", settings.state_dir
    yield "RUNTIME_DIR", settings.runtime_dir  # a socket can be used through a read-only mount
    if settings.api_keys_file is not None:
        yield "API_KEYS_FILE", settings.api_keys_file
    if settings.gaoler_config is not None:
        yield "GAOLER_CONFIG", settings.gaoler_config


def check_uid_range(uid_range: tuple[int, int], passwd: str, subuid: str) -> None:
    """Refuse where somebody else has a user of the range.

    `passwd` and `subuid` are the texts of /etc/passwd and /etc/subuid.
    """
    low, high = uid_range
    for owner, where, first, last in (*_passwd_users(passwd), *_subuid_ranges(subuid)):
        if first <= high and low <= last:
            users = f"{first}" if first == last else f"{first}-{last}"
            allowed = f"a range that nobody else has; {owner} has {users} in {where}"
            raise refusal("UID_RANGE", f"{low}-{high}", allowed)


def _passwd_users(passwd: str) -> Iterator[tuple[str, str, int, int]]:
    for line in passwd.splitlines():
        parts = line.split(":")
        if len(parts) >= 4 and parts[2].isdecimal():
            yield parts[0], "/etc/passwd", int(parts[2]), int(parts[2])


def _subuid_ranges(subuid: str) -> Iterator[tuple[str, str, int, int]]:
    for line in subuid.splitlines():
        parts = line.split(":")
        if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
            first = int(parts[1])
            yield parts[0], "/etc/subuid", first, first + int(parts[2]) - 1
