"""How tasks end, in the real sandbox: the outcome, its evidence and its numbers."""

from __future__ import annotations

from tests.emulation import stretched
from tests.hosting import MIB, LiveWarden, piped, python, shell, task


def test_a_program_that_ends_by_itself_is_completed_whatever_its_code(warden: LiveWarden) -> None:
    results = warden.run(*(shell(f"exit {code}") for code in (0, 3, 137)))
    assert [(r.outcome, r.exit_code, r.signal) for (r,) in results] == [
        ("completed", 0, None),
        ("completed", 3, None),
        ("completed", 137, None),
    ]


def test_a_signal_that_we_did_not_send_is_the_programs_own(warden: LiveWarden) -> None:
    result = warden.run_one(shell("echo bye; kill -9 $$"))
    assert (result.outcome, result.signal, result.exit_code) == ("signaled", 9, None)
    assert result.stdout == b"bye\n"


def test_an_endless_loop_meets_its_cpu_limit_and_not_its_wall_limit(warden: LiveWarden) -> None:
    result = warden.run_one(shell("while :; do :; done", cpu_ms=300))
    assert (result.outcome, result.reason, result.timed_out) == ("timed_out", "cpu", True)
    assert 300 <= result.stats.cpu_user_ms + result.stats.cpu_system_ms <= stretched(600)


def test_a_sleeper_meets_its_wall_limit_and_keeps_what_it_said(warden: LiveWarden) -> None:
    result = warden.run_one(shell("echo begun; exec sleep 60", wall_ms=400))
    assert (result.outcome, result.reason, result.stdout) == ("timed_out", "wall", b"begun\n")
    assert 400 <= result.stats.wall_ms <= stretched(1400)


def test_a_memory_hog_meets_the_memory_limit_even_if_only_its_child_is_killed(
    warden: LiveWarden,
) -> None:
    hog = "x = bytearray(512 << 20); print(len(x))"
    alone, child = warden.run(
        python(hog, memory_bytes=64 * MIB),
        shell(f"python3 -c '{hog}'; echo went on", memory_bytes=64 * MIB),
    )
    for (result,) in (alone, child):
        assert (result.outcome, result.exit_code, result.signal) == ("memory_limit", None, None)
        assert result.stats.oom_kills >= 1
        assert 32 * MIB <= result.stats.memory_peak_bytes <= 65 * MIB


def test_endless_output_on_both_streams_at_once_is_cut_and_ended(warden: LiveWarden) -> None:
    result = warden.run_one(shell("yes out & yes err >&2; wait", output_bytes=4096))
    assert result.outcome == "output_limit"
    assert result.stdout_truncated or result.stderr_truncated
    assert len(result.stdout) <= 4096
    assert len(result.stderr) <= 4096


def test_output_past_the_limit_counts_even_if_the_program_had_ended(warden: LiveWarden) -> None:
    result = warden.run_one(shell("head -c 5000 /dev/zero", output_bytes=4096))
    assert (result.outcome, len(result.stdout), result.stdout_truncated) == (
        "output_limit",
        4096,
        True,
    )


def test_output_of_exactly_the_limit_is_whole(warden: LiveWarden) -> None:
    result = warden.run_one(shell("head -c 4096 /dev/zero", output_bytes=4096))
    assert (result.outcome, len(result.stdout), result.stdout_truncated) == (
        "completed",
        4096,
        False,
    )


def test_a_forbidden_system_call_is_a_policy_violation(warden: LiveWarden) -> None:
    result = warden.run_one(python("import ctypes; ctypes.CDLL(None).unshare(0x10000000)"))
    assert (result.outcome, result.exit_code, result.signal) == ("policy_violation", None, None)


def test_a_file_that_grows_past_its_limit_ends_the_writer(warden: LiveWarden) -> None:
    result = warden.run_one(shell("exec head -c 3000000 /dev/zero > big", file_bytes=MIB))
    assert (result.outcome, result.reason, result.signal) == ("signaled", "file_size", 25)


def test_a_fork_bomb_is_refused_and_counted(warden: LiveWarden) -> None:
    result = warden.run_one(
        shell("b() { b | b & }; b; sleep 60", pids=16, wall_ms=1500, cpu_ms=1500, output_bytes=4096)
    )
    assert result.outcome in ("timed_out", "output_limit", "completed")
    assert result.stats.pids_limit_hits >= 1
    assert result.stats.pids_peak <= 16


def test_a_missing_command_and_one_without_the_right_to_run_differ(warden: LiveWarden) -> None:
    results = warden.run(
        task("no-such-program"),
        task("./plain", files={"readme": b"text"}),
        shell("chmod 644 readme"),
        task("./readme"),
        task("/usr"),
    )
    assert [(r.outcome, r.reason, r.exit_code) for (r,) in results] == [
        ("completed", "command_not_found", 127),
        ("completed", "command_not_found", 127),
        ("completed", None, 0),
        ("completed", "not_executable", 126),
        ("completed", "not_executable", 126),
    ]


def test_a_daemon_that_forks_twice_ends_with_its_task(warden: LiveWarden) -> None:
    daemon = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for s in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        while True:
            open('beat', 'a').write('.')
            time.sleep(0.02)
    os._exit(0)
while not os.path.exists('beat'):
    time.sleep(0.01)
"""
    script = "a=$(wc -c < beat); sleep 0.3; b=$(wc -c < beat); test $a = $b && echo quiet"
    started, after = warden.run(python(daemon), shell(script))
    assert started[0].outcome == "completed"
    assert started[0].stats.wall_ms < stretched(5000)
    assert after[0].stdout == b"quiet\n"


def test_ten_megabytes_of_stdin_that_nobody_reads_hold_up_nothing(warden: LiveWarden) -> None:
    (unread,), (counted,) = warden.run(
        task("/bin/true", stdin=b"x" * 10_000_000),
        task("/usr/bin/wc", "-c", stdin=b"x" * 10_000_000),
    )
    assert unread.outcome == "completed"
    assert counted.stdout == b"10000000\n"


def test_two_tasks_of_a_step_run_at_the_same_time(warden: LiveWarden) -> None:
    left = "echo x > a; until [ -e b ]; do sleep 0.01; done; echo left"
    right = "echo x > b; until [ -e a ]; do sleep 0.01; done; echo right"
    ((one, two),) = warden.run([shell(left), shell(right)])
    assert (one.stdout, two.stdout) == (b"left\n", b"right\n")


def test_a_pipe_between_tasks_carries_more_than_it_holds_and_says_who_left_first(
    warden: LiveWarden,
) -> None:
    reader = shell(f"wc -l; sleep {stretched(0.2)}", wall_ms=int(stretched(10_000)))
    step = piped(task("seq", "1", "100000"), reader, pipes=((0, 1),))
    ((source, target),) = warden.run(step)
    assert (source.reason, source.stdout) == ("left_first", b"")
    assert (target.reason, target.stdout) == (None, b"100000\n")


def test_tasks_can_be_piped_in_a_circle(warden: LiveWarden) -> None:
    asks = python("print('6 7', flush=True); import sys; sys.stderr.write(input())")
    answers = task(
        "/usr/bin/python3", "-c", "a, b = map(int, input().split()); print(a * b, flush=True)"
    )
    ((one, two),) = warden.run(piped(asks, answers, pipes=((0, 1), (1, 0))))
    assert one.stderr == b"42"
    assert two.outcome == "completed"


def test_steps_share_the_workspace_and_nothing_else(warden: LiveWarden) -> None:
    write = "for d in /box /tmp /dev/shm; do echo x > $d/left; done; ipcmk -M 4096 > /dev/null"
    look = "ls /box /tmp /dev/shm; ipcs -m | grep -c 4096"
    _, (after,) = warden.run(shell(write), shell(look))
    assert after.stdout.decode().split() == ["/box:", "left", "/dev/shm:", "/tmp:", "0"]


def test_a_promised_wall_limit_that_no_longer_fits_is_not_started(warden: LiveWarden) -> None:
    (slow,), (never,), (last,) = warden.run(
        shell(f"sleep {stretched(0.6)}"),
        shell("echo never", wall_ms=int(stretched(1500)), wall_promised=True),
        shell("echo unpromised"),
        budget_ms=int(stretched(1800)),
    )
    assert slow.outcome == "completed"
    assert (never.outcome, never.reason, never.timed_out) == ("not_started", "budget", True)
    assert last.stdout == b"unpromised\n"


def test_a_task_without_a_promise_gets_what_is_left_of_the_budget(warden: LiveWarden) -> None:
    result = warden.run_one(shell("sleep 30"), budget_ms=700)
    assert (result.outcome, result.reason) == ("timed_out", "wall")
    assert result.stats.wall_ms <= stretched(1200)
    assert result.cut_by_budget


def test_nothing_is_started_after_a_failure_where_that_was_asked_for(warden: LiveWarden) -> None:
    (bad,), (never,) = warden.run(shell("exit 1"), shell("echo x"), stop_on_failure=True)
    assert bad.exit_code == 1
    assert (never.outcome, never.reason) == ("not_started", "earlier_step_failed")


def test_the_share_of_output_is_divided_among_the_tasks_of_a_step(warden: LiveWarden) -> None:
    flood = "head -c 100000 /dev/zero"
    ((one, two),) = warden.run([shell(flood), shell(flood)], output_bytes=100_000)
    assert [r.outcome for r in (one, two)] == ["output_limit", "output_limit"]
    assert [len(r.stdout) for r in (one, two)] == [50_000, 50_000]


def test_native_v1_runs_a_program_and_forbids_new_processes(warden: LiveWarden) -> None:
    source = b"#include <unistd.h>\nint main(int c, char **v) { if (c > 1) fork(); return 5; }\n"
    _, (runs,), (forks,) = warden.run(
        task("gcc", "-o", "p", "p.c", files={"p.c": source}),
        task("./p", profile="native_v1"),
        task("./p", "fork", profile="native_v1"),
    )
    assert (runs.outcome, runs.exit_code) == ("completed", 5)
    assert forks.outcome == "policy_violation"
