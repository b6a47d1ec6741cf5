"""`gaoler config` and the dispatcher in front of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gaoler.cli import config_command, exit_codes
from gaoler.cli.main import COMMANDS, main
from gaoler.config.settings import table

KEY = "s3cret-s3cret-s3cret"


def run(environ: dict[str, str], *words: str) -> int:
    parser = argparse.ArgumentParser()
    config_command.add_arguments(parser)
    return config_command.main(parser.parse_args(words), environ)


def test_every_setting_is_one_line_with_value_default_source_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run({"PIDS_LIMIT": "99"}) == exit_codes.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "VALUE", "DEFAULT", "SOURCE", "MEANING"]
    assert [line.split()[0] for line in lines[1:]] == list(table())
    (line,) = (line for line in lines if line.startswith("PIDS_LIMIT "))
    assert line.split(maxsplit=4)[1:4] == ["99", "128", "environment"]


def test_json_has_the_same_with_numbers_as_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "gaoler.toml"
    config.write_text("aging_ms = 5\n")
    assert run({"GAOLER_CONFIG": str(config)}, "--json") == exit_codes.DONE
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert list(rows) == list(table())
    aging = rows["AGING_MS"]
    assert (aging["value"], aging["default"], aging["source"]) == (5, 10_000, "file")
    assert rows["UID_RANGE"]["value"] == "200000-265535"
    assert rows["API_KEYS"]["value"] is None
    assert all(row["meaning"] and row["allowed"] for row in rows.values())


@pytest.mark.parametrize("words", [(), ("--json",), ("API_KEYS",)])
def test_keys_are_counted_and_never_shown(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run({"API_KEYS": f"{KEY},{KEY}2"}, *words) == exit_codes.DONE
    out = capsys.readouterr().out
    assert "2 keys" in out
    assert KEY not in out


def test_named_settings_are_printed_as_bare_values_for_scripts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run({"STATE_DIR": "/srv/g"}, "STATE_DIR", "service_user", "API_KEYS_FILE") == 0
    assert capsys.readouterr().out == "/srv/g\ngaoler\n\n"


def test_an_unknown_name_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run({}, "NO_SUCH") == exit_codes.BAD_USAGE
    assert "NO_SUCH" in capsys.readouterr().err


def test_a_bad_setting_is_one_line_on_stderr_and_bad_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_MODE", "off")
    assert main(["config"]) == exit_codes.BAD_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "gaoler: RUNNER_MODE=off: allowed is sandbox or stub\n"


# --- the dispatcher -----------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["config", "--help"]])
def test_help_is_there_and_leaves_with_zero(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: gaoler")
    if len(words) == 1:
        assert all(f"    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("words", [[], ["no-such"], ["--no-such"], ["config", "--no-such"]])
def test_bad_usage_leaves_with_two(words: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == exit_codes.BAD_USAGE


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("gaoler 0.")


def test_only_the_called_subcommand_is_imported() -> None:
    code = (
        "import sys; from gaoler.cli.main import main; main(['config', 'BIND']);"
        "print(sorted(name for name in sys.modules if name.startswith('gaoler.cli.')));"
        "print([name for name in ('falcon', 'pykka', 'gunicorn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    _, ours, heavy = done.stdout.splitlines()
    assert ours == "['gaoler.cli.config_command', 'gaoler.cli.exit_codes', 'gaoler.cli.main']"
    assert heavy == "[]"


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    """Pins: `gaoler config | head -1` ended with an exception in the interpreter's exit."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        command = [sys.executable, "-m", "gaoler.cli.main", "config"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
    assert done.returncode == exit_codes.FAILED


@pytest.mark.parametrize("words", [["config"], ["config", "BIND"], ["--help"], ["--version"]])
def test_output_that_cannot_be_written_is_one_line(words: list[str]) -> None:
    """Pins: `gaoler config >/dev/full` was a traceback."""
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "gaoler.cli.main", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b"gaoler: [Errno 28] No space left on device\n"
    assert done.returncode == exit_codes.FAILED
