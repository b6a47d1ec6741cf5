"""Processes: no way of making them gets past a task's limit, and it is that task's alone.

Every bomb here stops by itself at 300 processes.
"""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.sandbox.job import TaskResult
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import stretched
from tests.hosting import CGROUP_ROOT, LiveWarden, eventually, job, shell, task

PIDS = 24
PATIENT_MS = int(stretched(10_000))

# `grow(make)` makes until it is refused: how many there were, and the refusal.
BOMB = r"""
import threading

MOST = 300

def grow(make, most=MOST):
    made, got = 0, 'done'
    while made < most and got == 'done':
        got = attempt(make)
        made += got == 'done'
    return [made, got]

def sleeper():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)

def by_number(flags, number=56):
    "clone(2) by its number, without a new stack: as fork."
    def make():
        pid = syscall(number, flags, 0, 0, 0, 0)
        if isinstance(pid, str):
            raise OSError(getattr(errno, pid), pid)
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    return make

def thread():
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, 'no thread') from error

def leave(code=0):
    sys.stdout.flush()
    os._exit(code)
"""


def bomb(live: LiveWarden, source: str, pids: int = PIDS, **limits: Any) -> TaskResult:
    """Run a bomb to its own end."""
    limits = {"wall_ms": PATIENT_MS, "cpu_ms": PATIENT_MS, **limits}
    result = live.run_one(attack(BOMB + source + "\nleave()\n", pids=pids, **limits))
    assert (result.outcome, result.exit_code, result.stderr) == ("completed", 0, b""), result
    return result


def has_peak(live: LiveWarden) -> bool:
    """True where this kernel remembers how many processes a group had at most."""
    found = (CGROUP_ROOT.glob(f"{depth}{live.instance}/pids.peak") for depth in ("", "*/", "*/*/"))
    return any(True for each in found for _ in each)


# --- no way round the limit ---------------------------------------------------------------

MAKERS = {
    "fork": "sleeper",
    "threads": "thread",
    "clone": "by_number(17)",
    "clone as a sibling": "by_number(17 | 0x8000)",
    "clone that shares files and handlers": "by_number(17 | 0x400 | 0x200)",
    "clone that nobody hears of": "by_number(0)",
    "clone that cannot be traced": "by_number(17 | 0x800000)",
}


@pytest.mark.heavy
@pytest.mark.parametrize("way", MAKERS)
def test_no_way_of_making_processes_gets_past_the_limit(warden: LiveWarden, way: str) -> None:
    result = bomb(warden, f"tell(grown=grow({MAKERS[way]}))")
    made, got = told(result)["grown"]
    assert got == "EAGAIN"
    assert made == PIDS - 1
    assert result.stats.pids_limit_hits >= 1
    if has_peak(warden):
        assert result.stats.pids_peak == PIDS


@pytest.mark.heavy
def test_threads_of_children_count_as_much_as_children(warden: LiveWarden) -> None:
    source = """
ends = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.write(ends[1], bytes([grow(thread)[0]]))
        time.sleep(60)
        leave()
tell(threads=sum(os.read(ends[0], 1)[0] for _ in range(4)))
"""
    assert told(bomb(warden, source))["threads"] == PIDS - 1 - 4


@pytest.mark.heavy
def test_orphans_and_leaders_of_sessions_count(warden: LiveWarden) -> None:
    source = """
ends = os.pipe()
def orphan():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
        except OSError:
            leave(1)
        leave()
    if os.waitpid(pid, 0)[1]:
        raise OSError(errno.EAGAIN, 'no grandchild')
tell(grown=grow(orphan))
"""
    result = bomb(warden, source)
    made, got = told(result)["grown"]
    assert got == "EAGAIN"
    # One place is needed by the process between, and freed again.
    assert PIDS - 2 <= made <= PIDS - 1


@pytest.mark.heavy
def test_the_dead_count_until_somebody_has_asked_for_them(warden: LiveWarden) -> None:
    source = """
def zombie():
    if os.fork() == 0:
        os._exit(0)
full = grow(zombie)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        break
tell(full=full, again=grow(zombie))
"""
    seen = told(bomb(warden, source))
    assert seen["full"] == seen["again"] == [PIDS - 1, "EAGAIN"]


def test_orphans_that_die_are_reaped_by_somebody(warden: LiveWarden) -> None:
    """Init reaps what nobody else will, so the dead do not fill up the limit."""
    source = """
made, refused = 0, 0
while made < 100 and refused < 2000:
    pid = -1
    try:
        pid = os.fork()
    except BlockingIOError:
        refused += 1
        time.sleep(0.002)
        continue
    if pid == 0:
        try:
            if os.fork() == 0:
                os._exit(0)
        except BlockingIOError:
            os._exit(1)
        os._exit(0)
    made += os.waitpid(pid, 0)[1] == 0
tell(made=made)
"""
    assert told(bomb(warden, source, pids=8))["made"] == 100


def test_clone3_and_vfork_are_no_way_round(warden: LiveWarden) -> None:
    source = """
arguments = ctypes.create_string_buffer(struct.pack('QQQQQQQQ', 0, 0, 0, 0, 17, 0, 0, 0))
full = grow(sleeper)
import subprocess
tell(
    full=full,
    clone3=syscall(435, arguments, 64),
    vfork=attempt(subprocess.run, ['/bin/true'], close_fds=False),
    system=attempt(os.posix_spawn, '/bin/true', ['true'], {}),
)
"""
    seen = told(bomb(warden, source))
    assert seen["clone3"] in ("ENOSYS", "EAGAIN")
    assert (seen["vfork"], seen["system"]) == ("EAGAIN", "EAGAIN")


def test_a_program_that_may_be_one_process_is_one(warden: LiveWarden) -> None:
    result = bomb(warden, "tell(fork=grow(sleeper), thread=grow(thread))", pids=1)
    assert told(result) == {"fork": [0, "EAGAIN"], "thread": [0, "EAGAIN"]}


def test_every_refusal_is_counted_and_nothing_else(warden: LiveWarden) -> None:
    refused = bomb(
        warden,
        """
full = grow(sleeper)
tell(more=[attempt(sleeper) for _ in range(6)])
""",
    )
    assert told(refused)["more"] == ["EAGAIN"] * 6
    assert refused.stats.pids_limit_hits == 7
    own = bomb(
        warden,
        """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
tell(own=attempt(sleeper))
""",
    )
    # Its own limit refuses where the kernel lets it, and that is no hit of ours.
    assert told(own)["own"] in ("EAGAIN", "done")
    assert own.stats.pids_limit_hits == 0


def test_a_limit_that_was_hit_ends_nothing(warden: LiveWarden) -> None:
    source = """
kept = grow(sleeper)
time.sleep(0.05)
tell(kept=kept, alive=len([n for n in os.listdir('/proc') if n.isdigit()]))
"""
    result = bomb(warden, source)
    assert told(result)["alive"] == PIDS
    assert result.stats.pids_limit_hits == 1


# --- the limit is the task's --------------------------------------------------------------


@pytest.mark.heavy
def test_tasks_of_one_step_have_a_limit_each(warden: LiveWarden) -> None:
    """Both are full at the same time: neither takes from the other."""
    source = """
mine, other = sys.argv[1:]
grown = grow(sleeper)
open('/box/' + mine, 'w').close()
while not os.path.exists('/box/' + other):
    time.sleep(0.01)
tell(grown=grown, again=grow(sleeper))
leave()
"""
    program = PRELUDE + BOMB + source
    tasks = [
        task("/usr/bin/python3", "-c", program, *names, pids=PIDS, wall_ms=PATIENT_MS)
        for names in (("a", "b"), ("b", "a"))
    ]
    for result in warden.run(tasks)[0]:
        assert result.outcome == "completed", result
        assert told(result) == {"grown": [PIDS - 1, "EAGAIN"], "again": [0, "EAGAIN"]}


@pytest.mark.heavy
def test_a_neighbour_of_a_bomb_can_still_fork(warden: LiveWarden) -> None:
    source = """
grow(sleeper)
open('/box/full', 'w').close()
while True:  # and on it goes
    attempt(sleeper)
    time.sleep(0.001)
"""
    full = "until [ -e full ]; do sleep 0.05; done"
    bombs = attack(BOMB + source, pids=64, wall_ms=PATIENT_MS)
    watched = warden.submit(job([bombs, shell(full, wall_ms=PATIENT_MS)]))
    try:
        eventually(lambda: (0, 1) in watched.results, "the bomb is full")
        assert watched.results[0, 1].outcome == "completed"
        neighbour = bomb(warden, "tell(grown=grow(sleeper, 20))")
        assert told(neighbour)["grown"] == [20, "done"]
        assert neighbour.stats.pids_limit_hits == 0
    finally:
        watched.cancel()
        watched.wait()


@pytest.mark.heavy
def test_the_next_step_starts_with_none_of_the_processes_before(warden: LiveWarden) -> None:
    leave_many = BOMB + "tell(grown=grow(sleeper))\nleave()\n"
    look = BOMB + (
        "tell(grown=grow(sleeper), first=os.getpid(),"
        " seen=[n for n in os.listdir('/proc') if n.isdigit()])\nleave()\n"
    )
    (before,), (after,) = warden.run(attack(leave_many, pids=PIDS), attack(look, pids=4))
    assert told(before)["grown"][0] == PIDS - 1
    seen = told(after)
    assert seen["grown"] == [3, "EAGAIN"]
    assert len(seen["seen"]) == 4
    assert after.stats.pids_limit_hits == 1
    if has_peak(warden):
        assert after.stats.pids_peak == 4


@pytest.mark.heavy
def test_processes_that_flee_by_forking_and_exiting_end_with_their_task(
    warden: LiveWarden,
) -> None:
    """Whoever is looked up has gone by then; the kernel ends them all with their init."""
    source = """
def flee(end):
    while time.monotonic() < end:
        with open('/box/beat', 'a') as beat:
            beat.write('.')
        try:
            if os.fork():
                os._exit(0)
        except BlockingIOError:
            time.sleep(0.001)
for _ in range(4):
    if os.fork() == 0:
        flee(time.monotonic() + 20)
while not os.path.exists('/box/beat'):
    time.sleep(0.01)
leave()
"""
    look = "a=$(wc -c < beat); sleep 0.2; b=$(wc -c < beat); test $a = $b && echo quiet"
    (fled,), (after,) = warden.run(attack(BOMB + source, pids=16), shell(look))
    assert fled.outcome == "completed"
    assert fled.stats.wall_ms < stretched(5000)
    assert after.stdout == b"quiet\n"


def test_a_signal_to_everybody_reaches_its_own_alone(warden: LiveWarden) -> None:
    neighbour = warden.submit(job(shell("echo begun > file; sleep 0.6; echo alive")))
    seen = see(
        warden,
        """
child = os.fork()
if child == 0:
    time.sleep(60)
got = [attempt(os.kill, 1, 0), attempt(os.kill, 1, signal.SIGKILL)]
os.kill(-1, signal.SIGKILL)
tell(got=got, child=os.WTERMSIG(os.waitpid(child, 0)[1]), again=attempt(os.kill, -1, 9))
""",
    )
    assert seen["child"] == 9
    # Init cannot be signalled at all, so that nobody is left to send one to.
    assert set(seen["got"]) == {"EPERM"}
    assert seen["again"] in ("ESRCH", "EPERM")
    assert neighbour.wait().results[0, 0].stdout == b"alive\n"


def test_no_process_of_the_host_can_be_named(warden: LiveWarden) -> None:
    """The warden, its children and the test itself: their numbers mean nothing inside."""
    assert warden.process is not None
    seen = see(
        warden,
        """
import threading
for pid in map(int, sys.argv[1:]):
    tell(**{str(pid): [
        attempt(os.kill, pid, 0), attempt(os.pidfd_open, pid), attempt(os.getpgid, pid),
        attempt(os.sched_getaffinity, pid), attempt(os.stat, f'/proc/{pid}'),
        attempt(os.getpriority, os.PRIO_PROCESS, pid),
    ]})
""",
        str(warden.process.pid),
        "999999",
    )
    refused = ["ESRCH", "ESRCH", "ESRCH", "ESRCH", "ENOENT", "ESRCH"]
    # Small numbers may be its own; those of a long-lived host are not.
    assert seen["999999"] == [refused[0], "EINVAL", *refused[2:]] or seen["999999"] == refused
    assert seen[str(warden.process.pid)] == refused
