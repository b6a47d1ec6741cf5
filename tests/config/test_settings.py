"""Settings: read once, typed, and refused with one line that helps."""

from __future__ import annotations

import dataclasses
import os
import typing
from pathlib import Path

import pytest

from gaoler.config import defaults
from gaoler.config.settings import PROFILES, Settings, SettingsError, load, read, table
from gaoler.sandbox import profiles

KEY = "k" * 16

CONTRACT_DEFAULTS = {
    "bind": ("127.0.0.1", 8300),
    "internal_bind": ("127.0.0.1", 8301),
    "api_keys": (),
    "api_keys_file": None,
    "runner_timeout_ms": 30_000,
    "overall_timeout_ms": 300_000,
    "runner_project_timeout_ms": 300_000,
    "runner_ttl_slack_ms": 2_000,
    "queue_allowance_interactive_ms": 20_000,
    "queue_allowance_grading_ms": 60_000,
    "aging_ms": 10_000,
    "max_concurrency": len(os.sched_getaffinity(0)),
    "grading_runner_concurrency": 1,
    "queue_limit_interactive": 64,
    "queue_limit_grading": 64,
    "runner_runs_per_evaluation": 4,
    "rate_limit_per_minute": 0,
    "subject_runs_per_minute": 0,
    "subject_tries_per_minute": 10,
    "request_body_timeout_ms": 10_000,
    "execute_body_limit_bytes": 33_554_432,
    "max_steps_per_request": 64,
    "max_parallel_tasks": 8,
    "wall_timeout_ms": 10_000,
    "budget_build_ms": 20_000,
    "budget_grace_ms": 500,
    "budget_upload_ms": 2_000,
    "output_limit_bytes": 1_048_576,
    "request_output_limit_bytes": 16_777_216,
    "memory_limit_bytes": 536_870_912,
    "pids_limit": 128,
    "memory_limit_max_bytes": 2_147_483_648,
    "pids_limit_max": 1_024,
    "workspace_bytes": 134_217_728,
    "runner_project_workdir_mb": 512,
    "cpus_per_slot": 1.0,
    "workspace_inodes": 65_536,
    "tmp_bytes": 67_108_864,
    "shm_bytes": 67_108_864,
    "admitted_bytes": 536_870_912,
    "service_user": "gaoler",
    "shutdown_timeout_ms": 10_000,
    "uid_range": (200_000, 265_535),
    "default_sandbox_profile": "standard_v1",
    "allowed_sandbox_profiles": ("standard_v1", "native_v1"),
    "state_dir": Path("/var/lib/gaoler"),
    "runtime_dir": Path("/run/gaoler"),
    "step_cache_bytes": 2**30,
    "file_store_bytes": 2**30,
    "file_ttl_s": 86_400,
    "runner_mode": "sandbox",
    "log_level": "info",
}


def refused(environ: dict[str, str]) -> str:
    """The one line that these settings are refused with."""
    with pytest.raises(SettingsError) as caught:
        load(environ)
    text = str(caught.value)
    assert text.isprintable(), "more than one line"
    return text


def toml_file(folder: Path, text: str) -> Path:
    written = folder / "gaoler.toml"
    written.write_text(text)
    written.chmod(0o600)
    return written


# --- the table ----------------------------------------------------------------------------


def test_without_any_setting_the_defaults_are_those_of_the_contract() -> None:
    settings = load({})
    found = {name: getattr(settings, name) for name in CONTRACT_DEFAULTS}
    assert found == CONTRACT_DEFAULTS
    left = {field.name for field in dataclasses.fields(Settings)} - set(CONTRACT_DEFAULTS)
    assert left == {"gaoler_config", "tasks_memory_bytes", "sandbox_readonly_paths"}


def test_every_default_has_the_type_that_its_field_states() -> None:
    settings = load({})
    for name, hint in typing.get_type_hints(Settings).items():
        kinds = [typing.get_origin(kind) or kind for kind in typing.get_args(hint) or [hint]]
        if typing.get_origin(hint) is tuple:
            kinds = [tuple]
        assert isinstance(getattr(settings, name), tuple(kinds)), name


def test_every_value_survives_being_written_into_the_environment_and_read_again() -> None:
    settings = load({})
    environ = {}
    for name, row in table().items():
        plain = row.kind.plain(getattr(settings, name.lower()))
        if plain is not None:
            environ[name] = ",".join(plain) if isinstance(plain, list) else str(plain)
    assert load(environ) == settings


def test_the_budget_defaults_are_those_that_the_client_library_imports() -> None:
    settings = load({})
    assert settings.wall_timeout_ms == defaults.WALL_TIMEOUT_MS
    assert settings.budget_build_ms == defaults.BUDGET_BUILD_MS
    assert settings.budget_grace_ms == defaults.BUDGET_GRACE_MS
    assert settings.budget_upload_ms == defaults.BUDGET_UPLOAD_MS


def test_the_profiles_that_can_be_named_are_those_that_the_sandbox_has() -> None:
    assert set(PROFILES) == set(profiles.PROFILES)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load({}).bind = ("0.0.0.0", 80)  # type: ignore[misc]


def test_the_least_and_the_most_of_every_integer_are_allowed_and_the_next_one_is_not() -> None:
    for name, row in table().items():
        words = row.kind.allowed.split()
        if words[:3] != ["an", "integer", "from"]:
            continue
        least, most = int(words[3]), int(words[5])
        assert row.kind.parse(str(least)) == least
        assert row.kind.parse(str(most)) == most
        for value in (least - 1, most + 1):
            assert refused({name: str(value)}).startswith(f"{name}={value}: allowed is an integer")


# --- environment and file -----------------------------------------------------------------


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    config = toml_file(tmp_path, 'pids_limit = 100\nmax_parallel_tasks = 4\nbind = "[::1]:1"\n')
    reading = read({"GAOLER_CONFIG": str(config), "PIDS_LIMIT": "200"})
    assert reading.settings.pids_limit == 200
    assert reading.settings.max_parallel_tasks == 4
    assert reading.settings.bind == ("::1", 1)
    assert reading.settings.gaoler_config == config
    sources = [reading.sources[name] for name in ("PIDS_LIMIT", "MAX_PARALLEL_TASKS", "TMP_BYTES")]
    assert sources == ["environment", "file", "default"]


def test_the_file_can_hold_numbers_and_arrays(tmp_path: Path) -> None:
    text = 'cpus_per_slot = 2\nallowed_sandbox_profiles = ["standard_v1"]\nfile_ttl_s = "60"\n'
    settings = load({"GAOLER_CONFIG": str(toml_file(tmp_path, text))})
    assert settings.cpus_per_slot == 2.0
    assert settings.allowed_sandbox_profiles == ("standard_v1",)
    assert settings.file_ttl_s == 60


@pytest.mark.parametrize("key", ["max_concurency", "PIDS_LIMIT", "gaoler_config", "a.b"])
def test_an_unknown_key_in_the_file_is_refused_by_its_name(tmp_path: Path, key: str) -> None:
    text = refused({"GAOLER_CONFIG": str(toml_file(tmp_path, f"{key} = 1\n"))})
    assert f"unknown is '{key.split('.')[0]}'" in text


@pytest.mark.parametrize(
    "line", ["pids_limit = true", "pids_limit = 1.5", "pids_limit = [1]", "pids_limit = {a = 1}"]
)
def test_a_value_of_the_wrong_type_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    text = refused({"GAOLER_CONFIG": str(toml_file(tmp_path, line))})
    assert text.startswith("PIDS_LIMIT=")
    assert "in the settings file" in text


def test_a_settings_file_that_is_missing_or_no_toml_is_refused(tmp_path: Path) -> None:
    assert refused({"GAOLER_CONFIG": str(tmp_path / "none")}).startswith("GAOLER_CONFIG=")
    broken = toml_file(tmp_path, "pids_limit = \n")
    assert "line 1" in refused({"GAOLER_CONFIG": str(broken)})
    broken.write_bytes(b"\xff")
    assert "UTF-8" in refused({"GAOLER_CONFIG": str(broken)})


def test_runner_concurrency_is_another_name_of_max_concurrency(tmp_path: Path) -> None:
    assert load({"RUNNER_CONCURRENCY": "3"}).max_concurrency == 3
    assert load({"RUNNER_CONCURRENCY": "3", "MAX_CONCURRENCY": "3"}).max_concurrency == 3
    assert "RUNNER_CONCURRENCY=0:" in refused({"RUNNER_CONCURRENCY": "0"})
    both = refused({"RUNNER_CONCURRENCY": "3", "MAX_CONCURRENCY": "4"})
    assert both.startswith("MAX_CONCURRENCY=4 and RUNNER_CONCURRENCY=3: allowed is")
    config = toml_file(tmp_path, "max_concurrency = 5\n")
    mixed = load({"GAOLER_CONFIG": str(config), "RUNNER_CONCURRENCY": "6"})
    assert mixed.max_concurrency == 6


def test_other_variables_of_the_environment_are_not_ours() -> None:
    assert load({"HOME": "/root", "PIDS_LIMITS": "x"}) == load({})


# --- one line for every slip --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNNER_TIMEOUT_MS", "25999"),
        ("RUNNER_PROJECT_TIMEOUT_MS", "600001"),
        ("MAX_CONCURRENCY", ""),
        ("MAX_CONCURRENCY", "two"),
        ("MAX_CONCURRENCY", "1e3"),
        ("MAX_CONCURRENCY", "1_000"),
        ("MAX_CONCURRENCY", "٣"),
        ("TMP_BYTES", "0"),
        ("CPUS_PER_SLOT", "nan"),
        ("CPUS_PER_SLOT", "-0.5"),
        ("CPUS_PER_SLOT", "inf"),
        ("CPUS_PER_SLOT", "٣"),
        ("CPUS_PER_SLOT", "1_0"),
        ("CPUS_PER_SLOT", "1e400"),
        ("CPUS_PER_SLOT", ""),
        ("BIND", "8300"),
        ("BIND", ":8300"),
        ("BIND", "127.0.0.1"),
        ("BIND", "127.0.0.1:65536"),
        ("BIND", "::1:8300"),
        ("BIND", "[127.0.0.1]:1"),
        ("BIND", "127.0.0.300:1"),
        ("INTERNAL_BIND", "127.0.0.1:80\n90"),
        ("UID_RANGE", "200000"),
        ("UID_RANGE", "300000-200000"),
        ("UID_RANGE", "999-70000"),
        ("UID_RANGE", "-1-70000"),
        ("SERVICE_USER", "nobody"),
        ("SERVICE_USER", "root"),
        ("SERVICE_USER", "0"),
        ("SERVICE_USER", "a b"),
        ("RUNNER_MODE", "off"),
        ("LOG_LEVEL", "INFO"),
        ("DEFAULT_SANDBOX_PROFILE", "standard_v9"),
        ("ALLOWED_SANDBOX_PROFILES", ""),
        ("ALLOWED_SANDBOX_PROFILES", "standard_v1,wide_open"),
        ("STATE_DIR", "var/lib"),
        ("STATE_DIR", "/"),
        ("STATE_DIR", "/var/lib/../gaoler"),
        ("STATE_DIR", "/var/\x07"),
        ("RUNTIME_DIR", "/run/" + "x" * 90),
        ("API_KEYS_FILE", "keys.txt"),
        ("GAOLER_CONFIG", ""),
        ("SANDBOX_READONLY_PATHS", "/"),
        ("SANDBOX_READONLY_PATHS", "/etc"),
        ("SANDBOX_READONLY_PATHS", "/proc/self"),
        ("SANDBOX_READONLY_PATHS", "/usr,opt"),
        ("SANDBOX_READONLY_PATHS", "/no/such/folder"),
    ],
)
def test_a_bad_value_is_refused_with_its_variable_its_value_and_what_is_allowed(
    name: str, value: str
) -> None:
    text = refused({name: value})
    assert text.startswith(f"{name}=")
    assert ascii(value)[1:-1][:40] in text
    assert ": allowed is " in text


def test_a_very_long_value_is_cut_in_the_line() -> None:
    assert len(refused({"LOG_LEVEL": "x" * 100_000})) < 200


# --- keys ---------------------------------------------------------------------------------


def test_keys_are_separated_by_commas_and_doubles_count_once() -> None:
    assert load({"API_KEYS": f"{KEY}, {'b' * 20},{KEY}"}).api_keys == (KEY, "b" * 20)


@pytest.mark.parametrize("value", ["", " , ", "fifteen-letters", "k" * 16 + ",short", "ü" * 20])
def test_a_bad_key_is_refused_and_never_shown(value: str) -> None:
    text = refused({"API_KEYS": value})
    assert text.startswith("API_KEYS=(not shown): allowed is keys of at least 16")
    assert not value.strip(" ,") or value.split(",")[-1] not in text


def key_file(folder: Path, text: str, mode: int = 0o640) -> Path:
    written = folder / "keys"
    written.write_text(text)
    written.chmod(mode)
    return written


def test_a_key_file_has_one_key_a_line_and_may_have_comments(tmp_path: Path) -> None:
    keys = key_file(tmp_path, f"# of the course\n{KEY}\n\n  {'b' * 16}  \n")
    reading = read({"API_KEYS_FILE": str(keys), "API_KEYS": "c" * 16})
    assert reading.settings.api_keys == ("c" * 16, KEY, "b" * 16)
    assert read({"API_KEYS_FILE": str(keys)}).sources["API_KEYS"] == "environment"


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_key_file_that_everybody_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    keys = key_file(tmp_path, KEY, mode)
    text = refused({"API_KEYS_FILE": str(keys)})
    assert text.startswith(f"API_KEYS_FILE={keys}"[:60])
    assert "chmod o-rw" in text


@pytest.mark.parametrize("content", ["", "# none\n", "tooshort\n", f"{KEY} {KEY}\n"])
def test_a_key_file_without_sound_keys_is_refused(tmp_path: Path, content: str) -> None:
    text = refused({"API_KEYS_FILE": str(key_file(tmp_path, content))})
    assert "one key a line" in text
    assert KEY not in text


def test_a_settings_file_with_keys_must_be_private(tmp_path: Path) -> None:
    config = toml_file(tmp_path, f'api_keys = ["{KEY}"]\n')
    assert load({"GAOLER_CONFIG": str(config)}).api_keys == (KEY,)
    config.chmod(0o644)
    assert "chmod o-rw" in refused({"GAOLER_CONFIG": str(config)})


def test_keys_are_not_in_the_settings_text() -> None:
    assert KEY not in repr(load({"API_KEYS": KEY}))
