"""`gaoler plan` as somebody types it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gaoler.cli import exit_codes, plan
from gaoler.cli.main import main
from gaoler.planning.scenario import OPTIONS

FEW = ("--students=5", "--copies=3", "--duration-ms=30000")
SMALL = ("--slots=1", *FEW)


def run(*words: str, **environ: str) -> int:
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return plan.main(parser.parse_args(words), environ)


def numbers(capsys: pytest.CaptureFixture[str], *words: str, **environ: str) -> dict[str, object]:
    assert run(*words, "--json", **environ) == exit_codes.DONE
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def options(capsys: pytest.CaptureFixture[str], *words: str, **environ: str) -> dict[str, object]:
    found = numbers(capsys, *words, **environ)["scenario"]
    assert isinstance(found, dict)
    return found


def test_the_table_has_both_classes_and_every_number_says_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*SMALL) == exit_codes.DONE
    out = capsys.readouterr().out
    assert out.startswith("1 node of 1 slot (grading at most 1), cap 4, 0.5 minutes, seed 1\n")
    assert "5 students, 1 with endless loops" in out
    assert "interactive  grading\n" in out
    for label in ("requests sent", "refused at once", "in the queue, p95", "slot use"):
        assert any(line.startswith(label) for line in out.splitlines()), label


def test_the_tables_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    run(*SMALL)
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.endswith("grading"))
    table = lines[begin : lines.index("", begin)]
    assert len(table) > 12
    assert len({len(line) for line in table}) == 1


def test_the_command_line_goes_over_the_scenario_and_that_over_the_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "s.toml"
    file.write_text("cap = 7\naging_ms = 77\nstudents = 3\nduration_ms = 1000\n")
    found = options(
        capsys,
        f"--scenario={file}",
        "--cap=8",
        AGING_MS="55",
        QUEUE_LIMIT_GRADING="9",
        MAX_CONCURRENCY="3",
    )
    names = ("cap", "aging_ms", "students", "queue_limit_grading", "slots", "copies")
    assert [found[name] for name in names] == [8, 77, 3, 9, 3, 30]


def test_a_setting_that_is_not_at_its_default_is_shown_where_it_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Pins: a variable left over in the environment went unseen into the numbers."""
    file = tmp_path / "gaoler.toml"
    file.write_text("shm_bytes = 4096\n")
    environ = {
        "QUEUE_LIMIT_INTERACTIVE": "1",
        "GAOLER_CONFIG": str(file),
        "MAX_CONCURRENCY": "3",  # --slots goes over it
        "BIND": "127.0.0.1:9",  # nothing that a plan asks for
    }
    assert run(*SMALL, **environ) == exit_codes.DONE
    heading = capsys.readouterr().out.partition("\n")[0]
    assert heading.endswith(
        "seed 1, QUEUE_LIMIT_INTERACTIVE=1 of the environment, SHM_BYTES=4096 of the settings file"
    )
    assert numbers(capsys, *SMALL, **environ)["settings"] == {
        "QUEUE_LIMIT_INTERACTIVE": {"value": 1, "source": "environment"},
        "SHM_BYTES": {"value": 4096, "source": "file"},
    }


def test_the_scenario_in_the_json_is_a_scenario_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = numbers(capsys, *SMALL, "--seed=5")
    written = first["scenario"]
    assert isinstance(written, dict)
    assert list(written) == list(OPTIONS)
    file = tmp_path / "again.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in written.items()))
    assert numbers(capsys, f"--scenario={file}") == first


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--slots=0"], "--slots=0: allowed is an integer from 1 to 4096"),
        (["--looping-share=2"], "--looping-share=2: allowed is a number from 0 to 1"),
        (["--think-time=5"], "--think-time=5: allowed is one of constant:MS"),
        (["--click-again=soon"], "--click-again=soon: allowed is one of constant:MS"),
        (["--balance=fair"], "--balance=fair: allowed is round-robin or least-outstanding"),
        (["--want-wait-ms=x"], "--want-wait-ms=x: allowed is an integer"),
        (["--most-slots=0"], "--most-slots=0: allowed is an integer from 1"),
        (["--case-wall-ms=29600"], "--case-wall-ms=29600: allowed is at most 29500"),
        (["--grading-wall-ms=299501"], "--grading-wall-ms=299501: allowed is at most 299500"),
        (["--node-memory-bytes=5"], "--node-memory-bytes=5: allowed is 0, or at least"),
        (["--scenario=/nowhere"], "--scenario=/nowhere: allowed is a file that can be read"),
        (["--log=/nowhere"], "--log=/nowhere: allowed is a file that can be read"),
        (["--log=/nowhere", "--students=4"], "--students has no meaning together with --log"),
        (
            ["--slots=2", "--want-wait-ms=1"],
            "--slots has no meaning together with --want-wait-ms: the search tries",
        ),
        (
            ["--cap=2", "--want-grading-wait-ms=1"],
            "--cap has no meaning together with --want-grading-wait-ms: the search tries",
        ),
        (["--most-slots=2", *SMALL], "--most-slots has no meaning without --want-wait-ms"),
        (["--picture=p.png"], "--picture=p.png: allowed is a name that ends in .svg"),
        (["--picture=/nowhere/p.svg", *SMALL], "--picture=/nowhere/p.svg: allowed is a file"),
        (["--record=/nowhere/r.log", *SMALL], "--record=/nowhere/r.log: allowed is a file"),
    ],
)
def test_wrong_input_is_one_line_that_names_the_option(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["plan", *words]) == exit_codes.BAD_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gaoler: {told}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slots = 0", "slots=0: allowed is an integer from 1 to 4096"),
        ("slots = 1.5", "slots=1.5: allowed is an integer"),
        ("pupils = 3", "pupils=3: allowed is an option that `gaoler plan --help` names"),
        ("slots =", "--scenario="),
    ],
)
def test_a_wrong_line_of_a_scenario_names_the_file_and_the_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    assert main(["plan", f"--scenario={file}"]) == exit_codes.BAD_USAGE
    err = capsys.readouterr().err
    assert str(file) in err
    assert told in err


def test_a_search_prints_what_it_found_and_shows_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*FEW, "--students=12", "--want-wait-ms=1000") == exit_codes.DONE
    out = capsys.readouterr().out
    assert out.startswith("the least that holds it: 2 slots on a node, cap ")
    assert "\n1 node of 2 slots " in out


def test_a_scenarios_own_slots_are_no_obstacle_to_a_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "s.toml"
    file.write_text("slots = 7\ncap = 3\n")
    words = (f"--scenario={file}", *FEW, "--students=12", "--want-wait-ms=1000")
    assert run(*words) == exit_codes.DONE
    assert "\n1 node of 2 slots " in capsys.readouterr().out


def test_a_wait_that_no_number_of_slots_holds_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*FEW, "--want-wait-ms=0", "--most-slots=1", "--json") == exit_codes.FAILED
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["search"]  # Pins: the default node stood there as if found
    found = printed["search"]
    assert found["found"] is None
    assert {trial["slots"] for trial in found["tried"]} == {1}
    assert found["largest"] == found["tried"][-1]


def test_where_nothing_was_found_there_is_no_table_and_no_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "p.svg"
    words = (*FEW, "--want-wait-ms=0", "--most-slots=1", f"--picture={picture}")
    assert run(*words) == exit_codes.FAILED
    said = capsys.readouterr()
    assert said.out.startswith("no cap holds that with up to 1 slot on a node (--most-slots);\n")
    assert "the largest tried, 1 slot and cap 5, gave a p95 of " in said.out
    assert "requests sent" not in said.out
    assert f"--picture: {picture} is not written" in said.err
    assert not picture.exists()


def test_what_is_recorded_can_be_replayed_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log, picture = tmp_path / "r.log", tmp_path / "p.svg"
    first = numbers(capsys, *SMALL, f"--record={log}")
    again = numbers(capsys, "--slots=1", f"--log={log}", f"--picture={picture}")
    classes = first["classes"], again["classes"]
    sent = [each["interactive"]["sent"] for each in classes if isinstance(each, dict)]
    assert sent[0] == sent[1] > 0
    assert again["log"] == {
        "requests": len(log.read_text().splitlines()),
        "passed_over": 0,
        "without_run_time": 0,
    }
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_without_simpy_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    assert run(*SMALL) == exit_codes.UNAVAILABLE
    assert "pip install '/path/to/gaoler[plan]'" in capsys.readouterr().err


def help_text(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["plan", "--help"])
    assert left.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_names_every_option_with_its_default_and_its_choices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_RUNS_PER_EVALUATION", "77")
    out = help_text(capsys)
    for name, each in OPTIONS.items():
        assert f"--{name.replace('_', '-')} {each.written} " in out
    assert "(setting RUNNER_RUNS_PER_EVALUATION, now 77)" in out
    assert "--balance round-robin|least-outstanding " in out
    assert "--grading-request copy|case " in out
    assert "--grading-again DISTRIBUTION|retry-after|never " in out


def test_wrong_settings_do_not_keep_the_help_from_being_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_RUNS_PER_EVALUATION", "many")
    assert "(setting RUNNER_RUNS_PER_EVALUATION)" in help_text(capsys)
