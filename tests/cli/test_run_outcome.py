"""From a service's answer to the exit code of `gaoler run` and its line."""

from __future__ import annotations

import msgspec
import pytest

from gaoler.cli.run_outcome import Asked, Reply, conclude, summary
from gaoler.http.client_answers import Answer, Result, Stats, Timing
from gaoler.http.client_errors import (
    AnswerGarbled,
    NotConnected,
    RequestRefused,
    RunnerBusy,
    RunnerFailed,
    RunnerUnavailable,
)

OK = Result("completed", exit_code=0)
ASKED = Asked(with_key=True, for_grading=False)
NOT_RUN = Result("not_started", reason="earlier_step_failed")


def ran(*results: Result) -> Answer:
    return Answer(results, request_id="r-1")


def timed_out(reason: str) -> Result:
    return Result("timed_out", reason, stats=Stats(wall_ms=300))


CASES: list[tuple[Reply, int, str | None]] = [
    # The program's own.
    (ran(OK), 0, None),
    (ran(OK, OK), 0, None),
    (ran(Result("completed", exit_code=3)), 3, None),
    (ran(OK, Result("completed", exit_code=255)), 255, None),
    (ran(Result("signaled", signal=11)), 139, "the program was ended by SIGSEGV"),
    (ran(Result("signaled", signal=40)), 168, "the program was ended by signal 40"),
    (
        ran(Result("signaled", "file_size", signal=25)),
        153,
        "the program was ended by SIGXFSZ, a file passed its size limit",
    ),
    (
        ran(Result("completed", "command_not_found", exit_code=127)),
        127,
        "the program could not be started: the service's sandbox has no such command",
    ),
    # The build's.
    (
        ran(Result("completed", exit_code=1), NOT_RUN),
        1,
        "the build failed, the program was not run",
    ),
    (
        ran(Result("completed", "not_executable", exit_code=126), NOT_RUN),
        126,
        "the build could not be started: its command is not executable",
    ),
    (ran(Result("memory_limit"), NOT_RUN), 123, "limit: the build used more memory than it may"),
    (
        ran(timed_out("wall"), NOT_RUN),
        124,
        "out of time: the build was killed at its wall limit, after 300 ms",
    ),
    # Limits and time.
    (ran(Result("memory_limit")), 123, "limit: the program used more memory than it may"),
    (
        ran(Result("output_limit")),
        123,
        "limit: the program wrote more than it may; what was kept is shown",
    ),
    (
        ran(Result("policy_violation")),
        123,
        "limit: the program made a system call that its profile forbids",
    ),
    (
        ran(timed_out("cpu")),
        124,
        "out of time: the program was killed at its cpu limit, after 300 ms",
    ),
    (
        ran(OK, Result("not_started", "budget")),
        124,
        "out of time: the program was not started, what is left of the request's time "
        "cannot hold it",
    ),
    # Busy, unavailable, refused.
    (RunnerBusy("spent", retry_after_s=7), 120, "busy: spent; try again in 7 s"),
    (RunnerBusy("full"), 120, "busy: full"),
    (RunnerUnavailable("it stops", status=503), 121, "unavailable: it stops"),
    (
        NotConnected("host: Connection refused"),
        121,
        "unavailable: host: Connection refused; does it run there? see --url and GAOLER_URL",
    ),
    (
        ran(msgspec.structs.replace(OK, stub=True)),
        121,
        "unavailable: the service is a stub, it runs nothing",
    ),
    (RequestRefused("a: bad", status=400), 122, "refused: a: bad"),
    # Our fault.
    (RunnerFailed("oh", request_id="r-1"), 125, "the service failed: oh (request r-1)"),
    (RunnerFailed("stuck"), 125, "the service failed: stuck"),
    (
        ran(Result("setup_failed", "no_space")),
        125,
        "the service failed: the program: setup_failed, no_space (request r-1)",
    ),
    (ran(Result("from_the_future")), 125, "the service failed: the program: from_the_future"),
    (ran(Result("completed")), 125, "the service failed: the program: completed"),
    (AnswerGarbled("not JSON"), 125, "the service's answer makes no sense: not JSON"),
]


@pytest.mark.parametrize(("reply", "code", "line"), CASES)
def test_every_answer_comes_to_one_code_and_at_most_one_line(
    reply: Reply, code: int, line: str | None
) -> None:
    ending = conclude(reply, ASKED)
    assert ending.code == code
    shown = ending.line and ending.line.removesuffix(" (request r-1)")
    assert shown == (line and line.removesuffix(" (request r-1)"))


@pytest.mark.parametrize(
    ("detail", "status", "asked", "line"),
    [
        (
            "send a key",
            401,
            Asked(with_key=False, for_grading=False),
            "the service wants a key; see --key-file and GAOLER_API_KEY",
        ),
        (
            "send a key",
            401,
            ASKED,
            "the service takes no key like this one; see --key-file and GAOLER_API_KEY",
        ),
        (
            "steps[0].limits.wall_ms: allowed is 1 to 29500",
            422,
            ASKED,
            "steps[0].limits.wall_ms: allowed is 1 to 29500 "
            "(see --timeout-ms; --priority grading may have more time)",
        ),
        (
            "steps[1].limits.wall_ms: allowed is 1 to 299500",
            422,
            Asked(with_key=True, for_grading=True),
            "steps[1].limits.wall_ms: allowed is 1 to 299500 (see --timeout-ms)",
        ),
        (
            "steps[0].limits.memory_bytes: allowed is 1 to 9",
            422,
            ASKED,
            "steps[0].limits.memory_bytes: allowed is 1 to 9 (see --memory-bytes)",
        ),
    ],
)
def test_a_refusal_names_the_option_that_helps(
    detail: str, status: int, asked: Asked, line: str
) -> None:
    ending = conclude(RequestRefused(detail, status=status), asked)
    assert (ending.code, ending.line) == (122, f"refused: {line}")


def test_a_fault_names_the_request_for_the_operators_log() -> None:
    for reply in (RunnerFailed("oh", request_id="r-1"), ran(Result("setup_failed"))):
        assert "(request r-1)" in str(conclude(reply, ASKED).line)


def test_every_build_before_the_program_must_succeed() -> None:
    assert conclude(ran(OK, Result("completed", exit_code=2), NOT_RUN), ASKED).code == 2


def test_the_summary_tells_what_ran_last_and_how_long_it_waited() -> None:
    used = Stats(wall_ms=1_230, cpu_user_ms=900, cpu_system_ms=100, memory_peak_bytes=3 << 19)
    built = Answer(
        (Result("completed", exit_code=1, stats=used), NOT_RUN), timing=Timing(queued_ms=500)
    )
    assert summary(built) == "1.23 s, 1.00 s of CPU, 1.5 MiB, 0.50 s in the queue"
    assert summary(ran(NOT_RUN)) is None


def test_the_summary_tells_that_the_limit_of_processes_was_hit() -> None:
    assert "limit of processes" in str(
        summary(ran(Result("completed", stats=Stats(pids_limit_hits=4))))
    )
