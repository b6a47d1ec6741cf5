"""Time: a program cannot outlast its limit, whatever state it is in, nor move the clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gaoler.sandbox.job import TaskResult
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import stretched
from tests.hosting import LiveWarden, job, piped, shell, task

WALL_MS = int(stretched(500))
# Past the limit: to notice it, to kill, and to see the end on a host that is busy.
NOTICED_MS = stretched(1000)
END = "\ntell(through=True)\n"


def outlast(live: LiveWarden, source: str, **limits: Any) -> TaskResult:
    """Run what means to stay; it says `begun` and then does what it does."""
    result = live.run_one(
        attack("tell(begun=True)\n" + source + END, **{"wall_ms": WALL_MS, **limits})
    )
    assert told(result)["begun"], result
    return result


def expect_wall_limit(result: TaskResult) -> None:
    """Ended for its wall time, then and not much later."""
    assert (result.outcome, result.reason, result.timed_out) == ("timed_out", "wall", True), result
    assert (result.exit_code, result.signal) == (None, None)
    assert WALL_MS <= result.stats.wall_ms <= WALL_MS + NOTICED_MS
    assert "through" not in told(result)


# --- whatever state it is in --------------------------------------------------------------

STATES = {
    "stopped by itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stopped with all of its children": """
for _ in range(3):
    if os.fork() == 0:
        time.sleep(60)
os.killpg(0, signal.SIGSTOP)
""",
    "waiting for a child that is stopped": """
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(pid, 0)
""",
    "stopping and going on in turns": """
parent = os.getpid()
if os.fork() == 0:
    while True:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(parent, number)
            time.sleep(0.001)
time.sleep(60)
""",
    "with every signal blocked and ignored": """
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    time.sleep(1)
""",
    "in vfork until its child ends": """
# Without the shared memory, of which an interpreter would make a mess.
if syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:
    time.sleep(60)
    os._exit(0)
""",
    "opening a pipe that has no other end": "os.mkfifo('pipe'); open('pipe', 'w')",
    "waiting for a lock that its child holds": """
import fcntl
first, ready = open('lock', 'w'), os.pipe()
if os.fork() == 0:
    held = open('lock')
    fcntl.flock(held, fcntl.LOCK_EX)
    os.write(ready[1], b'x')
    time.sleep(60)
os.read(ready[0], 1)
fcntl.flock(first, fcntl.LOCK_EX)
""",
    "in the kernel without a way to be woken": """
word = ctypes.c_int(0)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
syscall(202, ctypes.byref(word), 0, 0, None, None, 0)  # futex: wait
""",
    "waiting for a semaphore": """
number = libc.semget(0, 1, 0o1600)
libc.semop(number, struct.pack('hhh', 0, -1, 0), 1)
""",
    "waiting for a message": """
number = libc.msgget(0, 0o1600)
libc.msgrcv(number, ctypes.create_string_buffer(64), 8, 0, 0)
""",
    "waiting for a connection": "socket.create_server(('127.0.0.1', 0)).accept()",
    "writing to a pipe that nobody reads": """
ends = os.pipe()
while True:
    os.write(ends[1], bytes(65536))
""",
    "reading what nobody writes": "os.set_inheritable(0, True); r, w = os.pipe(); os.read(r, 1)",
    "lingering over a connection": """
server = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(server.getsockname())
near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 60))
near.setblocking(False)
try:
    while True:
        near.send(bytes(65536))
except BlockingIOError:
    pass
near.setblocking(True)
near.close()
""",
    "ending, with a thread that does not": """
import threading
threading.Thread(target=time.sleep, args=(60,)).start()
syscall(60, 0)  # exit of the first thread alone: its process goes on
""",
    "becoming itself again and again": """
time.sleep(0.02)
os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
""",
}


@pytest.mark.parametrize("state", STATES)
def test_the_wall_limit_holds_in_every_state(warden: LiveWarden, state: str) -> None:
    expect_wall_limit(outlast(warden, STATES[state]))


@pytest.mark.heavy
def test_the_wall_limit_holds_for_many_at_once(warden: LiveWarden) -> None:
    """Sixty processes that all will not go: one end of their namespace is the end of all."""
    source = """
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for number in range(60):
    if os.fork() == 0:
        os.setsid()
        if number % 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)
time.sleep(60)
"""
    expect_wall_limit(outlast(warden, source, pids=64))


def test_who_has_ended_is_not_kept_by_a_daemon_that_holds_its_pipes(warden: LiveWarden) -> None:
    source = """
ready = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    os.write(ready[1], b'x')
    time.sleep(60)
os.read(ready[0], 1)
tell(left=True)
os._exit(3)
"""
    result = outlast(warden, source, wall_ms=int(stretched(8000)))
    assert (result.outcome, result.exit_code) == ("completed", 3)
    assert told(result) == {"begun": True, "left": True}
    assert result.stats.wall_ms < stretched(5000)


def test_a_partner_that_never_reads_holds_the_writer_no_longer_than_its_limit(
    warden: LiveWarden,
) -> None:
    ((writes, waits),) = warden.run(
        piped(
            shell("exec cat /dev/zero", wall_ms=WALL_MS),
            shell(f"exec sleep {stretched(1.0)}", wall_ms=int(stretched(8000))),
            pipes=((0, 1),),
        )
    )
    expect_wall_limit(writes)
    assert waits.outcome == "completed"


def test_files_of_a_program_past_its_time_are_still_collected(warden: LiveWarden) -> None:
    source = "open('kept', 'w').write('x' * 9000)\nos.kill(os.getpid(), signal.SIGSTOP)"
    result = outlast(warden, source, collect=("kept",))
    expect_wall_limit(result)
    assert [(len(f.data), f.error) for f in result.files] == [(9000, None)]


def test_an_end_at_the_very_limit_is_one_or_the_other(warden: LiveWarden) -> None:
    """Outcome and time never contradict each other, however close they are."""
    wall_ms = int(stretched(300))
    source = """
import time
wall, early = float(sys.argv[1]), float(sys.argv[2])
began = float(open('/proc/self/stat').read().rsplit(')')[1].split()[19]) / os.sysconf(2)
# Its start is known to a hundredth of a second: some end before the limit, some after it.
now = time.clock_gettime(time.CLOCK_BOOTTIME)
time.sleep(max(0, began + wall - early - now))
"""
    for early_ms in (20, 5, 0, -5):
        result = warden.run_one(
            attack(source, str(wall_ms / 1000), str(early_ms / 1000), wall_ms=wall_ms)
        )
        if result.outcome == "completed":
            assert (result.exit_code, result.stderr) == (0, b""), result
            assert result.stats.wall_ms <= wall_ms
        else:
            assert (result.outcome, result.reason) == ("timed_out", "wall"), result
            assert result.exit_code is None
            assert wall_ms <= result.stats.wall_ms <= wall_ms + NOTICED_MS


# --- the budget ---------------------------------------------------------------------------


def test_steps_that_all_want_to_stay_get_no_more_than_the_budget_together(
    warden: LiveWarden,
) -> None:
    """Each closes its ears; only the first begins, and the rest is not started."""
    stay = "trap '' TERM INT HUP; kill -STOP $$"
    budget_ms = int(stretched(700))
    wanted = job(*(shell(stay) for _ in range(6)), budget_ms=budget_ms)
    began = time.monotonic()
    watched = warden.submit(wanted).wait()
    took_ms = (time.monotonic() - began) * 1000
    assert watched.failure is None, watched.failure
    ends = [(r.outcome, r.reason) for _, r in sorted(watched.results.items())]
    assert ends[0] == ("timed_out", "wall")
    assert set(ends[1:]) == {("not_started", "budget")}
    assert watched.results[0, 0].cut_by_budget
    assert all(result.timed_out for result in watched.results.values())
    assert took_ms <= budget_ms + 2 * NOTICED_MS


def test_what_is_left_of_the_budget_cuts_every_later_step(warden: LiveWarden) -> None:
    pause = stretched(0.3)
    results = warden.run(
        *(shell(f"sleep {pause}; echo done") for _ in range(8)), budget_ms=int(stretched(1000))
    )
    ends = [result.outcome for (result,) in results]
    cut = ends.index("timed_out") if "timed_out" in ends else ends.index("not_started")
    assert 1 <= cut <= 3
    assert set(ends[:cut]) == {"completed"}
    assert set(ends[cut + 1 :]) == {"not_started"}
    assert all(result.stdout == b"" for (result,) in results[cut:])


def test_tasks_side_by_side_are_all_cut_at_the_deadline(warden: LiveWarden) -> None:
    budget_ms = int(stretched(700))
    ((one, two, three),) = warden.run(
        [shell("kill -STOP $$"), shell("sleep 60 & sleep 60"), shell("echo quick")],
        budget_ms=budget_ms,
    )
    assert {one.reason, two.reason} == {"wall"}
    assert one.cut_by_budget
    assert two.cut_by_budget
    assert (three.outcome, three.cut_by_budget) == ("completed", False)


# --- the clock ----------------------------------------------------------------------------


def test_the_clock_can_be_read_and_not_set(warden: LiveWarden) -> None:
    before = time.time() - time.monotonic()
    seen = see(
        warden,
        """
spec = struct.pack('qq', 1_000_000_000, 0)
def adjust(modes, number=159, *first):
    state = ctypes.create_string_buffer(512)
    struct.pack_into('I', state, 0, modes)
    struct.pack_into('q', state, 8, 100_000)
    return syscall(number, *first, state)
timer = syscall(283, 0, 0)
cancel = syscall(286, timer, 3, struct.pack('qqqq', 0, 0, int(time.time()) + 1000, 0), None)
tell(
    real=syscall(227, 0, spec), monotonic=syscall(227, 1, spec), tai=syscall(227, 11, spec),
    day=syscall(164, spec, None), zone=syscall(164, None, struct.pack('ii', 60, 0)),
    read=adjust(0),
    set={name: adjust(modes) for name, modes in {
        'offset': 1, 'frequency': 2, 'status': 16, 'tick': 0x4000, 'step': 0x100,
        'tai': 0x80, 'single': 0x8001,
    }.items()},
    other=adjust(1, 305, 0), otherread=adjust(0, 305, 0),
    cancel=cancel, left=attempt(os.read, os.dup(timer), 0),
    rtc=[attempt(open, path) for path in ('/dev/rtc', '/dev/rtc0', '/dev/ptp0', '/dev/hpet')],
)
""",
    )
    for name in ("real", "monotonic", "tai", "day", "zone", "other", "otherread"):
        assert seen[name] in ("EPERM", "EINVAL"), name
    assert isinstance(seen["read"], int)
    assert set(seen["set"].values()) == {"EPERM"}
    # A timer that ends with a change of the clock only waits for what will not come.
    assert seen["cancel"] == 0
    assert set(seen["rtc"]) == {"ENOENT"}
    assert abs(time.time() - time.monotonic() - before) < stretched(1.0)


def test_a_time_namespace_cannot_be_had(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
tell(
    unshare=fate(lambda: syscall(272, 0x80)),
    clone=syscall(56, 0x80, 0, 0, 0, 0),
    clone3=syscall(435, struct.pack('QQQQQQQQ', 0x80, 0, 0, 0, 17, 0, 0, 0), 64),
    offsets=attempt(open, '/proc/self/timens_offsets', 'w'),
    enter=fate(lambda: syscall(308, os.open('/proc/self/ns/time', os.O_RDONLY), 0)),
)
""",
    )
    assert seen["unshare"] == ["signal", 31]
    assert seen["clone"] in ("EPERM", "EINVAL")
    assert seen["clone3"] == "ENOSYS"
    assert seen["offsets"] in ("EACCES", "EPERM", "EROFS", "ENOENT")
    assert seen["enter"] in (["signal", 31], ["exit", 99])


def test_a_timer_does_not_outlive_its_task(warden: LiveWarden) -> None:
    """Timers of one task, for the time after it, say nothing to the next."""
    arm = (
        PRELUDE
        + """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.05)
tell(armed=True)
"""
    )
    wait = PRELUDE + f"time.sleep({stretched(0.4)})\ntell(left=signal.getitimer(0))\n"
    (_,), (after,) = warden.run(
        task("/usr/bin/python3", "-c", arm), task("/usr/bin/python3", "-c", wait)
    )
    assert told(after) == {"left": [0.0, 0.0]}
