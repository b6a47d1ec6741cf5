"""Whether the numbers of a result are true: each against a measurement that is not ours.

The program measures itself by its own means, or uses what is known beforehand.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gaoler.sandbox.cgroup import Usage
from gaoler.sandbox.job import Task, TaskResult
from gaoler.sandbox.outcome import Ending
from gaoler.sandbox.run import Run
from tests.emulation import stretched
from tests.hosting import CGROUP_ROOT, MIB, MS, LiveWarden, job, python, shell, task

PATIENT_MS = int(stretched(8_000))

# User and system time are rounded to a millisecond each, and so is the wall's.
ROUNDING_MS = 2
# What a program uses outside of what it measures itself: the start of its interpreter before, its
# end after, on a host that is busy with other things, whose caches are cold.
AROUND_MS = stretched(250)
# The kernel tells user from system time by sampling, so of what is all one a part shows as the
# other.
SPLIT = 0.35
# A program's start and end by the wall are waited for, too.
WAITS_MS = stretched(1500)
# Memory is charged in batches for each processor, tables of pages and what the kernel keeps for
# the processes come on top, and pages of a file that nobody had read before.
MEMORY_AROUND = 6 * MIB
# Of what is known to have been touched nearly all must be there.
MEMORY_MISSED = MIB
# The least that any interpreter of ours, and the process that parks before it, may have at most.
TINY_MEMORY = 16 * MIB
TINY_MS = stretched(250)

HEAD = """
import ctypes, json, mmap, os, resource, signal, sys, threading, time

def own():
    "User and system seconds of this process and of the children that it asked for."
    mine, theirs = (resource.getrusage(who) for who in (0, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + theirs.ru_utime, mine.ru_stime + theirs.ru_stime

def burn(seconds, step=lambda: None):
    end = time.process_time() + seconds
    while time.process_time() < end:
        step()

def touch(size):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, 4096):
        memory[at] = 1
    return memory

def anonymous():
    lines = open('/proc/self/status').read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith('RssAnon'))) << 10

def child(body, *arguments):
    pid = os.fork()
    if pid == 0:
        body(*arguments)
        os._exit(0)
    return pid

def tell(**facts):
    print(json.dumps(facts), flush=True)

start, begun = own(), time.monotonic_ns()
"""


def measured(source: str, **limits: Any) -> Task:
    return python(HEAD + source, **{"wall_ms": PATIENT_MS, "cpu_ms": PATIENT_MS, **limits})


def measure(live: LiveWarden, source: str, **limits: Any) -> tuple[TaskResult, dict[str, Any]]:
    result = live.run_one(measured(source, **limits))
    assert (result.outcome, result.stderr) == ("completed", b""), result
    return result, told(result)


def told(result: TaskResult) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for line in result.stdout.splitlines():
        seen.update(json.loads(line))
    return seen


def cpu_ms(result: TaskResult) -> int:
    return result.stats.cpu_user_ms + result.stats.cpu_system_ms


def has_pids_peak(live: LiveWarden) -> bool:
    found = (CGROUP_ROOT.glob(f"{depth}{live.instance}/pids.peak") for depth in ("", "*/", "*/*/"))
    return any(True for each in found for _ in each)


# --- processor time -----------------------------------------------------------------------


def test_processor_time_is_what_the_program_says_it_used(warden: LiveWarden) -> None:
    """Its own clock has in it what its process used before the program: so it bounds from above;
    what it burned on purpose bounds from below."""
    result, seen = measure(warden, "burn(0.3)\ntell(all=sum(own()), before=sum(start))")
    burned_ms = (seen["all"] - seen["before"]) * 1000
    assert burned_ms >= 300
    assert burned_ms - ROUNDING_MS <= cpu_ms(result) <= seen["all"] * 1000 + AROUND_MS
    assert cpu_ms(result) <= burned_ms + AROUND_MS


@pytest.mark.parametrize(
    ("kind", "step"),
    [("user", "lambda: sum(range(2000))"), ("system", "lambda: os.read(file, 1 << 20)")],
)
def test_user_and_system_time_are_told_apart(warden: LiveWarden, kind: str, step: str) -> None:
    source = f"""
file = os.open('/dev/urandom', os.O_RDONLY)
before = own()
burn(0.4, {step})
after = own()
tell(user=(after[0] - before[0]) * 1000, system=(after[1] - before[1]) * 1000)
"""
    result, seen = measure(warden, source)
    off_ms = (seen["user"] + seen["system"]) * SPLIT
    assert seen[kind] >= 200
    ours = {"user": result.stats.cpu_user_ms, "system": result.stats.cpu_system_ms}
    for name, mine_ms in ours.items():
        assert seen[name] - off_ms <= mine_ms <= seen[name] + off_ms + AROUND_MS, (name, ours, seen)


CHILDREN = {
    "threads": """
import hashlib
def hash_on():
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        hashlib.sha256(bytes(1 << 16)).digest()
threads = [threading.Thread(target=hash_on) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
""",
    "children": "[os.waitpid(child(burn, 0.1), 0) for _ in range(3)]",
    "children at the same time": """
for pid in [child(burn, 0.1) for _ in range(3)]:
    os.waitpid(pid, 0)
""",
    "grandchildren": """
def middle():
    for _ in range(3):
        os.waitpid(child(burn, 0.1), 0)
os.waitpid(child(middle), 0)
""",
    "children that nobody asks for": """
ends = os.pipe()
def say():
    burn(0.1)
    os.write(ends[1], b'x')
    time.sleep(60)
pids = [child(say) for _ in range(3)]
for _ in pids:
    os.read(ends[0], 1)
""",
    "children that were killed": """
ends = os.pipe()
def say():
    burn(0.1)
    os.write(ends[1], b'x')
    time.sleep(60)
pids = [child(say) for _ in range(3)]
for _ in pids:
    os.read(ends[0], 1)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
""",
    "a program before this one": """
if len(sys.argv) == 1:
    burn(0.25)
    os.execv(sys.executable, [sys.executable, 'probe.py', 'again'])
burn(0.05)
""",
}


@pytest.mark.parametrize("who", CHILDREN)
def test_three_hundred_milliseconds_are_so_whoever_used_them(warden: LiveWarden, who: str) -> None:
    result, _ = measure(warden, CHILDREN[who])
    assert 300 - ROUNDING_MS <= cpu_ms(result) <= 300 + 2 * AROUND_MS


def test_who_sleeps_used_no_processor_time(warden: LiveWarden) -> None:
    result, seen = measure(warden, "time.sleep(0.5)\ntell(all=sum(own()))")
    assert result.stats.wall_ms >= 500
    assert cpu_ms(result) <= seen["all"] * 1000 + AROUND_MS
    assert cpu_ms(result) <= AROUND_MS


def test_one_thread_uses_no_more_processor_time_than_passes(warden: LiveWarden) -> None:
    """What its process used before the program began is in neither of the two."""
    for (result,) in warden.run(*(task("/bin/true") for _ in range(16))):
        assert cpu_ms(result) <= result.stats.wall_ms + ROUNDING_MS, result.stats


@pytest.mark.parametrize("before_ms", [(8, 0), (0, 8), (4, 4), (20, 0)])
def test_what_came_before_is_taken_off_whichever_way_the_kernel_splits_it(
    before_ms: tuple[int, int],
) -> None:
    """The group's split and the process's are sampled apart: only the sums fit together."""
    run = Run.__new__(Run)
    run.ending, run.exec_ns = Ending(), 0
    run.cpu_before_exec = (before_ms[0] * MS, before_ms[1] * MS)
    usage = Usage(2 * MS, 10 * MS, MIB, 1, 0, 0, oom_by_own_limit=False)
    stats = run._stats(usage)
    assert stats.cpu_user_ms + stats.cpu_system_ms == max(0, 12 - sum(before_ms))
    assert min(stats.cpu_user_ms, stats.cpu_system_ms) >= 0


# --- wall time ----------------------------------------------------------------------------


def test_wall_time_holds_what_the_program_says_and_little_else(warden: LiveWarden) -> None:
    """All clocks are one: the program's own times lie within the result's, and these in ours."""
    submitted_ns = time.monotonic_ns()
    result, seen = measure(warden, "time.sleep(0.3)\ntell(begun=begun, ended=time.monotonic_ns())")
    received_ns = time.monotonic_ns()
    began_ns = result.ended_ns - result.stats.wall_ms * MS
    slack_ns = ROUNDING_MS * MS
    assert submitted_ns <= began_ns + slack_ns
    assert began_ns - slack_ns <= seen["begun"] <= seen["ended"] <= result.ended_ns <= received_ns
    inner_ms = (seen["ended"] - seen["begun"]) / MS
    assert inner_ms >= 300
    assert inner_ms - ROUNDING_MS <= result.stats.wall_ms <= inner_ms + WAITS_MS


def test_a_killed_program_has_the_time_until_it_was_killed(warden: LiveWarden) -> None:
    wall_ms = int(stretched(400))
    result = warden.run_one(
        measured(
            "while True:\n    tell(last=time.monotonic_ns(), begun=begun)\n    time.sleep(0.02)",
            wall_ms=wall_ms,
        )
    )
    assert (result.outcome, result.reason) == ("timed_out", "wall")
    seen = told(result)
    assert wall_ms <= result.stats.wall_ms <= wall_ms + WAITS_MS
    assert result.stats.wall_ms >= (seen["last"] - seen["begun"]) // MS
    assert seen["last"] <= result.ended_ns


def test_neither_waiting_for_its_turn_nor_its_input_is_a_programs_time(warden: LiveWarden) -> None:
    """The second was parked while the first ran, and had much to write before it began."""
    (first,), (second,), (third,) = warden.run(
        shell(f"sleep {stretched(0.6)}"),
        task("/bin/true"),
        task("/bin/true", files={"input": b"x" * 60_000_000}),
    )
    assert first.stats.wall_ms >= stretched(600)
    for tiny in (second, third):
        assert tiny.stats.wall_ms <= TINY_MS
        assert cpu_ms(tiny) <= TINY_MS
    assert second.stats.memory_peak_bytes <= TINY_MEMORY
    assert third.stats.memory_peak_bytes >= 60_000_000  # what it wrote is its own


def test_a_program_has_ended_when_its_first_process_has(warden: LiveWarden) -> None:
    result, seen = measure(warden, "child(time.sleep, 60)\ntell(ended=time.monotonic_ns())")
    assert seen["ended"] <= result.ended_ns <= seen["ended"] + WAITS_MS * MS
    assert result.stats.wall_ms <= stretched(5000)


# --- memory -------------------------------------------------------------------------------

TOUCHED = 64 * MIB
FORMS = {
    "private": "kept = touch(64 << 20)",
    "given back before the end": "touch(64 << 20).close()",
    "a child's": "os.waitpid(child(touch, 64 << 20), 0)",
    "two children's together": """
ends, go = os.pipe(), os.pipe()
def hold():
    kept = touch(32 << 20)
    os.write(ends[1], b'x')
    os.read(go[0], 1)
pids = [child(hold), child(hold)]
for _ in pids:
    os.read(ends[0], 1)
os.write(go[1], b'xx')
for pid in pids:
    os.waitpid(pid, 0)
""",
    "two children's one after the other": """
for _ in range(3):
    os.waitpid(child(touch, 64 << 20), 0)
""",
    "a file in the workspace": """
with open('/box/file', 'wb', buffering=0) as file:
    for _ in range(64):
        file.write(bytes(1 << 20))
""",
    "a file that was removed": """
for _ in range(2):
    with open('/box/file', 'wb', buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    os.unlink('/box/file')
""",
    "shared with a child": """
kept = touch(64 << 20)
def read():
    sum(kept[at] for at in range(0, 64 << 20, 4096))
for _ in range(3):
    os.waitpid(child(read), 0)
""",
}


@pytest.fixture(scope="module")
def empty_peak(session_warden: LiveWarden) -> int:
    """The peak of a program that does nothing, once the toolchain's pages are in memory."""
    peaks = [session_warden.run_one(measured("")).stats.memory_peak_bytes for _ in range(3)]
    return min(peaks)


@pytest.mark.parametrize("form", FORMS)
def test_a_peak_is_what_was_touched_at_once(warden: LiveWarden, empty_peak: int, form: str) -> None:
    result, _ = measure(warden, FORMS[form])
    more = result.stats.memory_peak_bytes - empty_peak
    assert TOUCHED - MEMORY_MISSED <= more <= TOUCHED + MEMORY_AROUND


def test_a_peak_agrees_with_what_the_kernel_says_of_the_process(warden: LiveWarden) -> None:
    """Every private page of the process is in it, and hardly anything else."""
    result, seen = measure(warden, "kept = touch(40 << 20)\ntell(private=anonymous())")
    assert seen["private"] >= 40 * MIB
    peak = result.stats.memory_peak_bytes
    assert seen["private"] - MEMORY_MISSED <= peak <= seen["private"] + MEMORY_AROUND


def test_what_is_only_mapped_is_no_memory(warden: LiveWarden, empty_peak: int) -> None:
    result, _ = measure(warden, "kept = mmap.mmap(-1, 1 << 30, flags=0x4022)")
    assert result.stats.memory_peak_bytes <= empty_peak + MEMORY_AROUND


def test_an_empty_program_has_a_small_peak_that_is_not_nothing(empty_peak: int) -> None:
    assert MIB <= empty_peak <= TINY_MEMORY


# --- processes ----------------------------------------------------------------------------

COUNTS = {
    "one": ("", 1),
    "threads": (
        """
wait = threading.Event()
threads = [threading.Thread(target=wait.wait) for _ in range(5)]
[t.start() for t in threads]
wait.set()
""",
        6,
    ),
    "children": (
        """
ends = os.pipe()
pids = [child(os.read, ends[0], 1) for _ in range(7)]
os.write(ends[1], bytes(7))
for pid in pids:
    os.waitpid(pid, 0)
""",
        8,
    ),
    "one child at a time": ("[os.waitpid(child(bool), 0) for _ in range(12)]", 2),
    "the dead, too": ("[child(bool) for _ in range(4)]", 5),
    "a child's threads": (
        """
def many():
    wait = threading.Event()
    threads = [threading.Thread(target=wait.wait) for _ in range(3)]
    [t.start() for t in threads]
    wait.set()
    [t.join() for t in threads]
os.waitpid(child(many), 0)
""",
        5,
    ),
}


@pytest.mark.parametrize("who", COUNTS)
def test_a_peak_of_processes_is_how_many_there_were(warden: LiveWarden, who: str) -> None:
    if not has_pids_peak(warden):
        pytest.skip("this kernel does not remember the most processes of a group")
    source, count = COUNTS[who]
    result, _ = measure(warden, source)
    assert result.stats.pids_peak == count
    assert result.stats.pids_limit_hits == 0


# --- nothing carries over -----------------------------------------------------------------

HUGE = """
kept = touch(100 << 20)
pids = []
try:
    while len(pids) < 40:
        pids.append(child(time.sleep, 60))
except BlockingIOError:
    tell(refused=len(pids))
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
burn(0.3)
time.sleep(0.2)
"""
BURST = "kept = touch(400 << 20)\ntell(through=True)"


def expect_huge(result: TaskResult) -> None:
    assert result.stats.memory_peak_bytes >= 100 * MIB
    assert result.stats.pids_limit_hits == 1
    assert cpu_ms(result) >= 300
    assert result.stats.wall_ms >= 500


def expect_tiny(live: LiveWarden, result: TaskResult) -> None:
    """As if it were the only one that ever ran."""
    stats = result.stats
    assert (result.outcome, result.exit_code) == ("completed", 0)
    assert (stats.oom_kills, stats.pids_limit_hits) == (0, 0)
    assert 0 < stats.memory_peak_bytes <= TINY_MEMORY
    assert cpu_ms(result) <= TINY_MS
    assert stats.wall_ms <= TINY_MS
    if has_pids_peak(live):
        assert stats.pids_peak == 1


def test_a_tiny_step_after_a_huge_one_has_tiny_numbers(warden: LiveWarden) -> None:
    results = warden.run(
        task("/bin/true"),
        measured(HUGE, pids=20),
        task("/bin/true"),
        measured(BURST, memory_bytes=64 * MIB),
        task("/bin/true"),
    )
    tiny, huge, after, burst, last = (result for (result,) in results)
    expect_huge(huge)
    assert burst.outcome == "memory_limit"
    assert burst.stats.oom_kills >= 1
    for each in (tiny, after, last):
        expect_tiny(warden, each)


def test_a_tiny_task_beside_a_huge_one_has_tiny_numbers(warden: LiveWarden) -> None:
    wait = task("/bin/sleep", str(stretched(0.1)))
    ((tiny, huge, burst, slept),) = warden.run(
        [
            task("/bin/true"),
            task("/usr/bin/python3", "-c", HEAD + HUGE, pids=20, wall_ms=PATIENT_MS),
            task("/usr/bin/python3", "-c", HEAD + BURST, memory_bytes=64 * MIB),
            wait,
        ]
    )
    expect_huge(huge)
    assert burst.outcome == "memory_limit"
    expect_tiny(warden, tiny)
    assert slept.stats.memory_peak_bytes <= TINY_MEMORY
    assert (slept.stats.oom_kills, slept.stats.pids_limit_hits) == (0, 0)


def test_a_tiny_request_after_a_huge_one_has_tiny_numbers(warden: LiveWarden) -> None:
    expect_huge(warden.run_one(measured(HUGE, pids=20)))
    expect_tiny(warden, warden.run_one(task("/bin/true")))


def test_a_full_workspace_is_not_in_the_peak_of_who_only_reads_it(warden: LiveWarden) -> None:
    (wrote,), (read,) = warden.run(
        shell("head -c 80000000 /dev/zero > file"), shell("cat file | wc -c")
    )
    assert wrote.stats.memory_peak_bytes >= 80_000_000
    assert read.stdout == b"80000000\n"
    assert read.stats.memory_peak_bytes <= TINY_MEMORY


def test_what_was_never_started_used_nothing(warden: LiveWarden) -> None:
    wanted = job(shell("exit 1"), task("/bin/true"), stop_on_failure=True, budget_ms=PATIENT_MS)
    watched = warden.submit(wanted).wait()
    never = watched.results[1, 0]
    assert (never.outcome, never.ended_ns) == ("not_started", 0)
    stats = never.stats
    assert (stats.wall_ms, stats.memory_peak_bytes, stats.pids_peak) == (0, 0, 0)
    assert cpu_ms(never) == 0


def test_a_command_that_is_not_there_used_hardly_anything(warden: LiveWarden) -> None:
    result = warden.run_one(task("no-such-program"))
    assert result.exit_code == 127
    assert result.stats.wall_ms <= TINY_MS
    assert cpu_ms(result) <= TINY_MS
