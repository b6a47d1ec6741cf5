"""The command line before a command has it."""

from __future__ import annotations

import pytest

from gaoler.cli import exit_codes
from gaoler.cli.main import main


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == exit_codes.BAD_USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--slot", "2"], "--slot 2; did you mean --slots?"),
        (["plan", "--picure=a.svg"], "--picure=a.svg; did you mean --picture?"),
        (["config", "--jsn"], "--jsn; did you mean --json?"),
        (["drain", "--qqq"], "--qqq"),
        (["plan", "now"], "now"),
    ],
)
def test_an_unknown_option_is_refused_by_its_command_with_the_near_one(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    usage, _, said = refused(capsys, *words).partition("\n")
    assert usage.startswith(f"usage: gaoler {words[0]} [")
    assert said.endswith(f"gaoler {words[0]}: error: unrecognized arguments: {told}\n")


def test_an_unknown_option_before_any_command_is_refused_by_gaoler_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "--versin", "config")
    assert said.startswith("usage: gaoler [-h] [--version] COMMAND")
    assert said.endswith("unrecognized arguments: --versin; did you mean --version?\n")


def test_the_help_says_that_run_has_exit_codes_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "`gaoler run` has the program's own, and 120 to 125" in " ".join(
        capsys.readouterr().out.split()
    )
