"""The table of settings, and how they are read.

`Settings` is the table: each field is one setting, spelled as in the environment but in
lower case, with its kind and range, its default and its meaning.  `load` takes the
environment first, then the TOML file named by GAOLER_CONFIG, then the default.  It is
called once, by the program that starts; nothing is read when this module is imported.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gaoler.config import checks, defaults, host
from gaoler.config.checks import check_placement, check_uid_range
from gaoler.config.kinds import (
    DAY_MS,
    MOST_BYTES,
    NotAllowedError,
    Row,
    SettingsError,
    address,
    choice,
    choices,
    integer,
    keys,
    number,
    path,
    readonly_paths,
    refusal,
    setting,
    uid_range,
    user_name,
)

__all__ = ["Reading", "Settings", "SettingsError", "check_placement", "check_uid_range", "load"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
PAGE_BYTES = 4 * KIB  # a tmpfs of size 0 would have no limit at all
YEAR_S = 31_536_000
PROFILES = ("standard_v1", "native_v1")
USUAL_READONLY_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, typed and checked.  `Settings()` has the defaults."""

    # --- addresses and keys ---------------------------------------------------------------
    gaoler_config: Path | None = setting(
        path(), None, "the TOML file that settings are read from", environment_only=True
    )
    bind: tuple[str, int] = setting(
        address(), "127.0.0.1:8300", "where the public API listens; beyond loopback it needs keys"
    )
    internal_bind: tuple[str, int] = setting(
        address(), "127.0.0.1:8301", "where the operators' API listens"
    )
    api_keys: tuple[str, ...] = setting(
        keys(), None, "the keys that clients may use; none: anybody on this host may"
    )
    api_keys_file: Path | None = setting(
        path(), None, "a file with one more key a line, not readable by everybody"
    )

    # --- what a request may be ------------------------------------------------------------
    request_body_timeout_ms: int = setting(
        integer(1, DAY_MS), 10_000, "how long a request's body may take to arrive"
    )
    execute_body_limit_bytes: int = setting(
        integer(1, MOST_BYTES), 32 * MIB, "the largest body of a request"
    )
    admitted_bytes: int = setting(
        integer(1, MOST_BYTES),
        512 * MIB,
        "all bodies in memory at one time, and as much again of answers under way",
    )
    max_steps_per_request: int = setting(integer(1, 10_000), 64, "steps in one request")
    max_parallel_tasks: int = setting(integer(1, 1_024), 8, "tasks in one step")

    # --- time -----------------------------------------------------------------------------
    runner_timeout_ms: int = setting(
        integer(26_000, DAY_MS),
        defaults.RUNNER_TIMEOUT_MS,
        "the longest that an interactive request may run",
    )
    overall_timeout_ms: int = setting(
        integer(1, DAY_MS),
        defaults.OVERALL_TIMEOUT_MS,
        "the longest that a grading request may run",
    )
    runner_project_timeout_ms: int = setting(
        integer(1, 600_000),
        defaults.RUNNER_PROJECT_TIMEOUT_MS,
        "the longest that a project may run",
    )
    runner_ttl_slack_ms: int = setting(
        integer(0, DAY_MS),
        defaults.RUNNER_TTL_SLACK_MS,
        "how long past its deadline a sandbox is left alone",
    )
    wall_timeout_ms: int = setting(
        integer(1, DAY_MS), defaults.WALL_TIMEOUT_MS, "the time of a case that names none"
    )
    budget_build_ms: int = setting(
        integer(1, DAY_MS), defaults.BUDGET_BUILD_MS, "the time of a build that names none"
    )
    budget_grace_ms: int = setting(
        integer(0, DAY_MS),
        defaults.BUDGET_GRACE_MS,
        "added for each step, for set-up and kill",
    )
    budget_upload_ms: int = setting(
        integer(0, DAY_MS), defaults.BUDGET_UPLOAD_MS, "added for each step that carries files"
    )
    shutdown_timeout_ms: int = setting(
        integer(0, DAY_MS), 10_000, "how long answering and ending what runs may take at a stop"
    )

    # --- capacity -------------------------------------------------------------------------
    max_concurrency: int = setting(
        integer(1, 4_096),
        host.processors,
        "slots: tasks that run at one time; RUNNER_CONCURRENCY is the same",
        aliases=("RUNNER_CONCURRENCY",),
    )
    grading_runner_concurrency: int = setting(
        integer(1, 4_096), 1, "slots that grading requests may hold together"
    )
    aging_ms: int = setting(
        integer(0, DAY_MS), 10_000, "after this wait a grading request goes before interactive ones"
    )
    queue_allowance_interactive_ms: int = setting(
        integer(0, DAY_MS),
        defaults.QUEUE_ALLOWANCE_INTERACTIVE_MS,
        "how long an interactive request may wait for slots",
    )
    queue_allowance_grading_ms: int = setting(
        integer(0, DAY_MS),
        defaults.QUEUE_ALLOWANCE_GRADING_MS,
        "how long a grading request may wait for slots",
    )
    queue_limit_interactive: int = setting(
        integer(0, 100_000), 64, "interactive requests that may wait"
    )
    queue_limit_grading: int = setting(integer(0, 100_000), 64, "grading requests that may wait")
    runner_runs_per_evaluation: int = setting(
        integer(1, 100_000),
        4,
        "interactive requests of one evaluation, waiting or running",
    )
    rate_limit_per_minute: int = setting(
        integer(0, 1_000_000), 0, "requests of one API key in a minute; 0: no limit"
    )
    subject_runs_per_minute: int = setting(
        integer(0, 1_000_000), 0, "runs of one subject in a minute; 0: no limit"
    )
    subject_tries_per_minute: int = setting(
        integer(0, 1_000_000), 10, "tries of one subject in a minute; 0: no limit"
    )
    tasks_memory_bytes: int = setting(
        integer(16 * MIB, MOST_BYTES),
        host.memory_for_tasks_bytes,
        "memory that all requests share; 80 % of what this host or this service's cgroup has",
    )
    cpus_per_slot: float = setting(
        number(0, 1_024), 1.0, "processors' worth of time that a task gets; 0: no limit"
    )

    # --- what a task may use --------------------------------------------------------------
    memory_limit_bytes: int = setting(
        integer(16 * MIB, MOST_BYTES), 512 * MIB, "memory of a task that names none"
    )
    memory_limit_max_bytes: int = setting(
        integer(16 * MIB, MOST_BYTES), 2 * GIB, "the most memory that a task may name"
    )
    pids_limit: int = setting(
        integer(1, 1_000_000), 128, "processes and threads of a task that names none"
    )
    pids_limit_max: int = setting(
        integer(1, 1_000_000), 1_024, "the most processes and threads that a task may name"
    )
    output_limit_bytes: int = setting(
        integer(1, MOST_BYTES), MIB, "kept of each of stdout and stderr, where the task names none"
    )
    request_output_limit_bytes: int = setting(
        integer(1, MOST_BYTES), 16 * MIB, "output and collected files of a whole request"
    )
    workspace_bytes: int = setting(
        integer(PAGE_BYTES, MOST_BYTES), 128 * MIB, "size of a request's /box"
    )
    runner_project_workdir_mb: int = setting(
        integer(1, MOST_BYTES // MIB), 512, "size of a project's /box, in MiB"
    )
    workspace_inodes: int = setting(
        integer(16, 2**31 - 1), 65_536, "files and folders in a request's /box"
    )
    tmp_bytes: int = setting(integer(PAGE_BYTES, MOST_BYTES), 64 * MIB, "size of a task's /tmp")
    shm_bytes: int = setting(integer(PAGE_BYTES, MOST_BYTES), 64 * MIB, "size of a task's /dev/shm")

    # --- the sandbox ----------------------------------------------------------------------
    runner_mode: str = setting(
        choice("sandbox", "stub"),
        "sandbox",
        "stub: answer without running anything, on loopback alone",
    )
    default_sandbox_profile: str = setting(
        choice(*PROFILES), "standard_v1", "the profile of a task that names none"
    )
    allowed_sandbox_profiles: tuple[str, ...] = setting(
        choices(*PROFILES), PROFILES, "the profiles that a task may name"
    )
    sandbox_readonly_paths: tuple[Path, ...] = setting(
        readonly_paths(USUAL_READONLY_PATHS), (), "folders of this host that every task can read"
    )
    uid_range: tuple[int, int] = setting(
        uid_range(1_000, 2**31 - 1), "200000-265535", "users that tasks run as, nobody else's"
    )
    service_user: str = setting(
        user_name("nobody", "root"), "gaoler", "the user that the API runs as; owns STATE_DIR alone"
    )

    # --- storage and the rest -------------------------------------------------------------
    state_dir: Path = setting(path(), "/var/lib/gaoler", "layers, files and the ledger")
    # A socket's path ends after 107 bytes.
    runtime_dir: Path = setting(path(longest=90), "/run/gaoler", "sockets and locks")
    step_cache_bytes: int = setting(
        integer(0, MOST_BYTES), GIB, "disk for cached steps; 0: none is kept; no effect yet"
    )
    file_store_bytes: int = setting(
        integer(0, MOST_BYTES), GIB, "disk for uploaded files; no effect yet"
    )
    file_ttl_s: int = setting(
        integer(1, YEAR_S), 86_400, "how long an uploaded file is kept; no effect yet"
    )
    log_level: str = setting(
        choice("debug", "info", "warning", "error"), "info", "the least that is logged"
    )

    @property
    def project_workspace_bytes(self) -> int:
        """Size of a project's /box."""
        return self.runner_project_workdir_mb * MIB


def table() -> dict[str, Row]:
    """Every setting's row by its name in the environment, in the order of the table."""
    return {field.name.upper(): field.metadata["row"] for field in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings, and for each name in the environment whence its value came.

    A source is "environment", "file" or "default".
    """

    settings: Settings
    sources: dict[str, str]


def load(environ: Mapping[str, str]) -> Settings:
    """The settings, or SettingsError with one line that says what is wrong."""
    return read(environ).settings


def read(environ: Mapping[str, str]) -> Reading:
    """As `load`, with the source of every value."""
    in_file = _file_values(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, row in table().items():
        found = _found(name, row, environ, in_file)
        sources[name] = "default" if found is None else found[0]
        if found is not None:
            values[name.lower()] = _parsed(row, *found)
    _add_keys_of_file(values, sources)
    settings = Settings(**values)
    checks.check(settings)
    return Reading(settings, sources)


def _found(
    name: str, row: Row, environ: Mapping[str, str], in_file: Mapping[str, object]
) -> tuple[str, str, object] | None:
    """(source, name as the operator wrote it, raw value), or None where nothing is set."""
    names = (name, *row.aliases)
    for source, values in (
        ("environment", {each: environ[each] for each in names if each in environ}),
        ("file", {each: in_file[each.lower()] for each in names if each.lower() in in_file}),
    ):
        if len({str(value) for value in values.values()}) > 1:
            written = " and ".join(f"{each}={value}" for each, value in values.items())
            raise SettingsError(f"{written}: allowed is one value, they name the same setting")
        for written, raw in values.items():
            return source, written, raw
    return None


def _parsed(row: Row, source: str, written: str, raw: object) -> Any:
    """The typed value; `written` is the variable that the operator used, for the error."""
    try:
        return row.kind.parse(raw)
    except NotAllowedError as problem:
        where = " (in the settings file)" if source == "file" else ""
        shown = "(not shown)" if row.kind.secret else raw
        detail = f"{row.kind.allowed}; {problem}" if str(problem) else row.kind.allowed
        raise refusal(written, shown, detail + where) from None


# --- files --------------------------------------------------------------------------------


def _file_values(environ: Mapping[str, str]) -> dict[str, object]:
    """The raw values of the TOML file by their lower-case names; none without a file."""
    name = "GAOLER_CONFIG"
    if name not in environ:
        return {}
    settings_file = _parsed(table()[name], "environment", name, environ[name])
    text, mode = _read_file(name, settings_file)
    try:
        values = tomllib.loads(text)
    except ValueError as problem:
        raise refusal(name, settings_file, f"a TOML file; {problem}") from None
    _need_known_names(settings_file, values)
    if "api_keys" in values:
        _need_private(name, settings_file, mode)
    return values


def _need_known_names(settings_file: Path, values: Mapping[str, object]) -> None:
    known = {
        each.lower()
        for name, row in table().items()
        if not row.environment_only
        for each in (name, *row.aliases)
    }
    for key in values:
        if key not in known:
            allowed = f"the names that `gaoler config` prints, in lower case; unknown is {key!a}"
            raise refusal("GAOLER_CONFIG", settings_file, allowed)


def _add_keys_of_file(values: dict[str, Any], sources: dict[str, str]) -> None:
    """Add the keys of API_KEYS_FILE, where one is named, to those of API_KEYS."""
    key_file = values.get("api_keys_file")
    if key_file is None:
        return
    name = "API_KEYS_FILE"
    text, mode = _read_file(name, key_file)
    _need_private(name, key_file, mode)
    lines = [line.strip() for line in text.splitlines()]
    raw = [line for line in lines if line and not line.startswith("#")]
    try:
        found = keys().parse(raw)
    except NotAllowedError as problem:
        allowed = f"a file with one key a line, each {keys().allowed}; {problem}"
        raise refusal(name, key_file, allowed) from None
    values["api_keys"] = tuple(dict.fromkeys((*values.get("api_keys", ()), *found)))
    if sources["API_KEYS"] == "default":
        sources["API_KEYS"] = sources[name]


def _read_file(name: str, wanted: Path) -> tuple[str, int]:
    """A file's text and its mode, taken from the same descriptor."""
    try:
        with wanted.open(encoding="utf-8") as opened:
            return opened.read(), os.fstat(opened.fileno()).st_mode
    except OSError as problem:
        raise refusal(name, wanted, f"a file that can be read; {problem.strerror}") from None
    except UnicodeDecodeError:
        raise refusal(name, wanted, "a file of UTF-8 text") from None


def _need_private(name: str, wanted: Path, mode: int) -> None:
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        allowed = f"a file that not everybody can read; chmod o-rw {wanted}"
        raise refusal(name, wanted, allowed)
