"""Processor time: whoever of a task uses it, it is counted, and nobody gets more than a share.

Every spinner stops by itself after some seconds and says that it got through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gaoler.sandbox.job import TaskResult
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import stretched
from tests.hosting import CGROUP_ROOT, LiveWarden, Watched, eventually, job, shell, task

CPU_MS = int(stretched(300))
# Past the limit: one look of the supervisor's, on a host that does other things as well.
NOTICED_MS = int(stretched(300))
PATIENT_MS = int(stretched(8_000))

SPIN = r"""
import hashlib, threading

MOST = float(sys.argv[1])  # seconds, by the wall
END = time.monotonic() + MOST

def spin(seconds=MOST):
    end = min(END, time.monotonic() + seconds)
    while time.monotonic() < end:
        pass

def burn(seconds):
    "Uses so much processor time of this process."
    end = time.process_time() + seconds
    while time.process_time() < end and time.monotonic() < END:
        pass

def child(body, *arguments):
    pid = os.fork()
    if pid == 0:
        body(*arguments)
        os._exit(0)
    return pid

tell(begun=True)
"""
END = "\ntell(through=True)\n"
MOST = str(stretched(6.0))


def spinner(live: LiveWarden, source: str, **limits: Any) -> TaskResult:
    limits = {"cpu_ms": CPU_MS, "wall_ms": PATIENT_MS, **limits}
    result = live.run_one(attack(SPIN + source + END, MOST, **limits))
    assert told(result)["begun"], result
    return result


def used_ms(result: TaskResult) -> int:
    return result.stats.cpu_user_ms + result.stats.cpu_system_ms


def expect_cpu_limit(result: TaskResult) -> None:
    """Ended for its processor time, by then used up and hardly more."""
    assert (result.outcome, result.reason, result.timed_out) == ("timed_out", "cpu", True), result
    assert (result.exit_code, result.signal) == (None, None)
    assert CPU_MS - 1 <= used_ms(result) <= CPU_MS + NOTICED_MS
    assert "through" not in told(result)


# --- whoever uses it ----------------------------------------------------------------------

WAYS = {
    "threads": """
def hash_on():
    while time.monotonic() < END:
        hashlib.sha256(bytes(1 << 18)).digest()
for _ in range(4):
    threading.Thread(target=hash_on, daemon=True).start()
spin()
""",
    "children side by side": """
pids = [child(spin) for _ in range(8)]
for pid in pids:
    os.waitpid(pid, 0)
""",
    "children one after the other, all of them reaped": """
while time.monotonic() < END:
    os.waitpid(child(burn, 0.02), 0)
""",
    "children that are never asked for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while time.monotonic() < END:
    try:
        child(burn, 0.02)
    except BlockingIOError:
        pass
    time.sleep(0.02)
""",
    "orphans": """
def middle():
    child(burn, 0.02)
while time.monotonic() < END:
    try:
        os.waitpid(child(middle), 0)
    except BlockingIOError:
        pass
    time.sleep(0.01)
""",
    "a leader of a session of its own": """
def leader():
    os.setsid()
    child(spin)
child(leader)
time.sleep(MOST)
""",
    "a program that becomes another, again and again": """
burn(0.01)
left = END - time.monotonic()
if left > 0:
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], str(left)])
""",
    "short bursts between sleeps": """
while time.monotonic() < END:
    burn(0.002)
    time.sleep(0.001)
""",
    "bursts that dodge the ticks": """
while time.monotonic() < END:
    for _ in range(2_000):
        pass
    time.sleep(0.00002)
""",
    "the kernel's work for it": """
file = os.open('/dev/urandom', os.O_RDONLY)
while time.monotonic() < END:
    os.read(file, 1 << 20)
""",
    "the making of processes": """
while time.monotonic() < END:
    os.waitpid(child(bool), 0)
""",
    "faults of pages": """
import mmap
m = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while time.monotonic() < END:
    for at in range(0, 16 << 20, 4096):
        m[at] = 1
    m.madvise(mmap.MADV_DONTNEED)
""",
    "handlers of signals": """
signal.signal(signal.SIGALRM, lambda *_: burn(0.005))
signal.setitimer(signal.ITIMER_REAL, 0.006, 0.006)
while time.monotonic() < END:
    signal.pause()
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_processor_time_is_counted_whoever_uses_it(warden: LiveWarden, way: str) -> None:
    expect_cpu_limit(spinner(warden, WAYS[way]))


# --- nothing gets round it ----------------------------------------------------------------


def test_neither_a_handler_nor_a_mask_nor_a_limit_of_its_own_evades_it(
    warden: LiveWarden,
) -> None:
    source = """
import resource
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
infinite = resource.RLIM_INFINITY
tell(
    limit=attempt(resource.setrlimit, resource.RLIMIT_CPU, (infinite, infinite)),
    process=attempt(resource.prlimit, os.getpid(), resource.RLIMIT_CPU, (infinite, infinite)),
)
spin()
"""
    result = spinner(warden, source)
    expect_cpu_limit(result)
    # There is no such limit to raise: the time is not its process's but its group's.
    assert told(result)["limit"] == told(result)["process"] == "done"


def test_its_own_limit_ends_it_and_is_its_own_doing(warden: LiveWarden) -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
spin()
"""
    result = spinner(warden, source, cpu_ms=PATIENT_MS)
    assert (result.outcome, result.timed_out) == ("signaled", False)
    assert result.signal in (9, 24)  # SIGKILL or SIGXCPU, by the kernel alone


def test_no_priority_can_be_gained(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import resource
def policy(number, priority):
    return attempt(os.sched_setscheduler, 0, number, os.sched_param(priority))
# size, policy, flags, nice, priority, runtime, deadline, period
deadline = struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10_000_000, 30_000_000, 30_000_000)
nicer = struct.pack('IIQiIQQQ', 48, 0, 0, -10, 0, 0, 0, 0)
tell(
    nice=attempt(os.nice, -1),
    priority=attempt(os.setpriority, os.PRIO_PROCESS, 0, -20),
    user=attempt(os.setpriority, os.PRIO_USER, 0, -20),
    first=policy(os.SCHED_FIFO, 1), robin=policy(os.SCHED_RR, 1),
    deadline=syscall(314, 0, deadline, 0), nicer=syscall(314, 0, nicer, 0),
    limits=[resource.getrlimit(kind) for kind in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO)],
    raised=[syscall(160, int(kind), struct.pack('QQ', 20, 20))
            for kind in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO)],
    now=[os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
    io=[syscall(251, 1, 0, 0x2000), syscall(252, 1, 0)],
)
""",
    )
    for name in ("nice", "priority", "nicer"):
        assert seen[name] in ("EPERM", "EACCES"), name
    for name in ("first", "robin", "deadline"):
        assert seen[name] == "EPERM", name
    assert seen["user"] in ("EPERM", "EACCES", "ESRCH")
    assert seen["limits"] == [[0, 0], [0, 0]]
    assert seen["raised"] == ["EPERM", "EPERM"]
    assert seen["now"] == [0, 0]
    assert seen["io"] == ["EPERM", "EPERM"]


@pytest.mark.parametrize("lowered", ["SCHED_IDLE", "SCHED_BATCH", "nice"])
def test_time_at_a_low_priority_counts_as_much(warden: LiveWarden, lowered: str) -> None:
    become = {
        "nice": "os.nice(19)",
        "SCHED_IDLE": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "SCHED_BATCH": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    }[lowered]
    expect_cpu_limit(spinner(warden, become + "\nspin()"))


def test_who_sleeps_uses_nothing(warden: LiveWarden) -> None:
    """Wall time is no processor time, however many sleep."""
    pause = stretched(0.5)
    source = f"""
for _ in range(8):
    child(time.sleep, {pause})
time.sleep({pause})
"""
    result = spinner(warden, source)
    assert (result.outcome, told(result)["through"]) == ("completed", True)
    assert used_ms(result) < CPU_MS
    assert result.stats.wall_ms >= pause * 1000


def test_a_siblings_time_is_the_siblings(warden: LiveWarden) -> None:
    """Beside one that burns all of its time, one with a small limit only sleeps."""
    calm = PRELUDE + SPIN + f"time.sleep({stretched(0.6)})" + END
    hog = PRELUDE + SPIN + "for _ in range(4): child(spin)\nspin()" + END
    programs = [
        task("/usr/bin/python3", "-c", text, MOST, cpu_ms=CPU_MS, wall_ms=PATIENT_MS)
        for text in (hog, calm)
    ]
    ((spun, slept),) = warden.run(programs)
    expect_cpu_limit(spun)
    assert (slept.outcome, told(slept)["through"]) == ("completed", True)
    assert used_ms(slept) < CPU_MS


# --- a share, and no more -----------------------------------------------------------------

# A task may use one processor's time in each period of 100 ms, and may have begun and ended within
# one; a period late is what the kernel itself may be on a busy host.
ONE_PROCESSOR = 1.0
TWO_PERIODS_MS = 200
# Of what the greediest gets a neighbour has at the least this part.  All that is fair is 1; the
# host does other things as well, and there may be one processor for both.
FAIR_PART = 0.2


@pytest.mark.heavy
@pytest.mark.parametrize("many", ["threads", "children", "affinity"])
def test_being_many_brings_no_more_than_one_processor(warden: LiveWarden, many: str) -> None:
    source = {
        "threads": """
def hash_on():
    while time.monotonic() < END:
        hashlib.sha256(bytes(1 << 18)).digest()
for _ in range(7):
    threading.Thread(target=hash_on, daemon=True).start()
hash_on()
""",
        "children": "for _ in range(7): child(spin)\nspin()\n",
        "affinity": """
for number in sorted(os.sched_getaffinity(0)):
    def pinned(number=number):
        os.sched_setaffinity(0, {number})
        spin()
    child(pinned)
spin()
""",
    }[many]
    program = attack(SPIN + source + END, "1.0", cpu_ms=PATIENT_MS, wall_ms=PATIENT_MS)
    result = warden.run_one(program)
    assert (result.outcome, told(result)["through"]) == ("completed", True), result
    most_ms = result.stats.wall_ms * ONE_PROCESSOR * 1.1 + TWO_PERIODS_MS
    assert used_ms(result) <= most_ms, result.stats


MEASURE = """
end = time.monotonic() + 1.0
while time.monotonic() < end:
    pass
"""


def jails_cpu(live: LiveWarden) -> dict[Path, int]:
    """Microseconds that each jail used, all of its processes together."""
    found = {}
    for depth in ("", "*/", "*/*/"):
        for path in CGROUP_ROOT.glob(f"{depth}{live.instance}/jail-*/cpu.stat"):
            text = path.read_text()
            if text.startswith("usage_usec"):
                found[path.parent] = int(text.split()[1])
    return found


def share_beside(live: LiveWarden, hogs: Watched, ready: tuple[int, int]) -> float:
    """What a plain program gets while the hogs run, as a part of what these get meanwhile."""
    try:
        eventually(lambda: ready in hogs.results, "the hogs run")
        assert hogs.results[ready].outcome == "completed"
        ((jail, before),) = jails_cpu(live).items()
        result = live.run_one(attack(MEASURE, cpu_ms=PATIENT_MS, wall_ms=PATIENT_MS))
        theirs_ms = (jails_cpu(live)[jail] - before) / 1000
    finally:
        hogs.cancel()
        hogs.wait()
    assert result.outcome == "completed", result
    print(f"beside {theirs_ms} ms of the hogs it had {used_ms(result)} ms")
    return used_ms(result) / theirs_ms


@pytest.mark.heavy
def test_many_processes_do_not_starve_a_neighbour(warden: LiveWarden) -> None:
    hog = SPIN + "for _ in range(30): child(spin)\nopen('/box/on', 'w').close()\nspin()\n"
    wait = shell("until [ -e on ]; do sleep 0.05; done", wall_ms=PATIENT_MS)
    program = attack(hog, MOST, cpu_ms=PATIENT_MS, wall_ms=PATIENT_MS)
    assert share_beside(warden, warden.submit(job([program, wait])), (0, 1)) >= FAIR_PART


@pytest.mark.heavy
def test_many_tasks_of_one_request_do_not_starve_another_request(warden: LiveWarden) -> None:
    hog = PRELUDE + SPIN + "for _ in range(7): child(spin)\nspin()\n"
    hogs = [
        task("/usr/bin/python3", "-c", hog, MOST, cpu_ms=PATIENT_MS, wall_ms=PATIENT_MS)
        for _ in range(5)
    ]
    quick = shell("sleep 0.2", wall_ms=PATIENT_MS)
    assert share_beside(warden, warden.submit(job([*hogs, quick])), (0, 5)) >= FAIR_PART
