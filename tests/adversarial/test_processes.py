"""Processes and signals: what a task can reach of others, and what outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.calls import TRIED, let_through, raw, refused
from tests.adversarial.holding import held
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import stretched
from tests.hosting import LiveWarden, command_of, processes, shell, task

# A child that waits until it is killed.
CHILD = """
def child():
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid

def ended(pidfd):
    "Wait until that process has ended."
    import select
    select.select([pidfd], [], [])
"""
# `init_works()`: an orphan is reaped, which only an init does that runs.
INIT_WORKS = (
    CHILD
    + """
def init_works():
    read_end, write_end = os.pipe()
    first = os.fork()
    if first == 0:
        orphan = os.fork()
        if orphan == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(orphan, os.WUNTRACED)
        os.write(write_end, b'%d' % orphan)
        os._exit(0)
    os.waitpid(first, 0)
    orphan = int(os.read(read_end, 16))
    fd = os.pidfd_open(orphan)
    os.kill(orphan, signal.SIGCONT)
    ended(fd)
    # It is a zombie until init has waited for it.
    give_up = time.monotonic() + 5
    while os.path.exists('/proc/%d' % orphan) and time.monotonic() < give_up:
        os.sched_yield()
    return not os.path.exists('/proc/%d' % orphan)
"""
)

_SIGNAL_CALLS = (
    "tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal".split()
)
_HANDLE_CALLS = (
    "pidfd_open pidfd_getfd setns process_madvise process_mrelease waitid pidfd_send_signal"
).split()
_NAMING_CALLS = (
    "tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open prlimit64 process_vm_readv kcmp "
    "move_pages get_robust_list"
).split()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host's, of a user that is nobody's, that ends by any signal."""
    process = subprocess.Popen(["sleep", "300"], user=65534, group=65534, extra_groups=[])
    yield process
    process.kill()
    process.wait()


# --- signals out of the task -----------------------------------------------------------------


def test_a_signal_to_everybody_reaches_the_tasks_own_processes_alone(warden: LiveWarden) -> None:
    source = (
        CHILD
        + """
children = [child() for _ in range(3)]
answer = attempt(os.kill, -1, signal.SIGKILL)
ends = [os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in children]
tell(answer=answer, ends=ends, alone=attempt(os.kill, -1, signal.SIGKILL))
open('done', 'w').close()
"""
    )
    beside = "until [ -e done ]; do sleep 0.01; done; echo alive"
    with held(warden, "") as other:  # another request
        ((killer, sibling),) = warden.run([attack(source), shell(beside)])
        assert "probe.py" in command_of(other)
        assert _state(other) != "Z"
    assert told(killer) == {"answer": "done", "ends": [9] * 3, "alone": "ESRCH"}
    assert (sibling.outcome, sibling.stdout) == ("completed", b"alive\n")


def test_init_can_be_neither_killed_nor_stopped(warden: LiveWarden) -> None:
    source = (
        INIT_WORKS
        + """
answers = {}
for number in range(0, 65):
    answers[str(number)] = attempt(os.kill, 1, number)
tell(answers=answers, works=init_works(), parent=os.getppid())
"""
    )
    seen = see(warden, source)
    # Were it not refused, the kernel would let it go astray: an init gets only what it asks for.
    assert set(seen["answers"].values()) <= {"EPERM", "done"}
    assert (seen["works"], seen["parent"]) == (True, 1)


def test_init_is_out_of_reach_by_every_other_way_of_sending_a_signal(warden: LiveWarden) -> None:
    source = (
        INIT_WORKS
        + raw(*_SIGNAL_CALLS)
        + """
info = struct.pack('iii', signal.SIGKILL, 0, -1).ljust(128, b'\\0')  # SI_QUEUE
kernels = struct.pack('iii', signal.SIGKILL, 0, 0x80).ljust(128, b'\\0')  # SI_KERNEL
held = syscall(NR_pidfd_open, 1, 0)
answers = {}
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
    name = signal.Signals(number).name
    answers['thread ' + name] = syscall(NR_tkill, 1, number)
    answers['thread in group ' + name] = syscall(NR_tgkill, 1, 1, number)
    for kind, given in (('queued', info), ('forged', kernels)):
        answers[kind + name] = syscall(NR_rt_sigqueueinfo, 1, number, given)
        answers[kind + ' thread ' + name] = syscall(NR_rt_tgsigqueueinfo, 1, 1, number, given)
    for flags in (0, 1, 2, 4):  # its thread, its group, its process group
        answers['handle %s %d' % (name, flags)] = syscall(
            NR_pidfd_send_signal, held, number, None, flags)
answers['group'] = attempt(os.killpg, 1, signal.SIGKILL)
tell(answers=answers, works=init_works())
"""
    )
    seen = see(warden, source)
    gone_astray = {name for name, answer in seen["answers"].items() if answer in (0, "done")}
    assert set(let_through(seen["answers"])) <= gone_astray
    assert seen["works"]


def test_no_way_of_naming_a_process_reaches_one_of_the_hosts(
    warden: LiveWarden, victim: subprocess.Popen[bytes]
) -> None:
    source = (
        raw(*_NAMING_CALLS)
        + """
info = struct.pack('iii', signal.SIGKILL, 0, -1).ljust(128, b'\\0')
memory = ctypes.create_string_buffer(64)
place = struct.pack('QQ', ctypes.addressof(memory), 64)
answers = {}
for pid in map(int, sys.argv[1:]):
    answers.update({'%s %d' % (name, pid): answer for name, answer in {
        'kill': attempt(os.kill, pid, signal.SIGKILL), 'ask': attempt(os.kill, pid, 0),
        'group': attempt(os.killpg, pid, signal.SIGKILL),
        'thread': syscall(NR_tkill, pid, 9), 'in group': syscall(NR_tgkill, pid, pid, 9),
        'queue': syscall(NR_rt_sigqueueinfo, pid, 9, info),
        'queue thread': syscall(NR_rt_tgsigqueueinfo, pid, pid, 9, info),
        'handle': syscall(NR_pidfd_open, pid, 0),
        'limit': syscall(NR_prlimit64, pid, 7, None, None),
        'polite': attempt(os.setpriority, os.PRIO_PROCESS, pid, 19),
        'idle': attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0)),
        'bind': attempt(os.sched_setaffinity, pid, {0}), 'session': attempt(os.getsid, pid),
        'its group': attempt(os.getpgid, pid), 'join': attempt(os.setpgid, 0, pid),
        'proc': attempt(os.stat, '/proc/%d' % pid), 'wait': attempt(os.waitpid, pid, 0),
        'memory': tried(syscall, NR_process_vm_readv, pid, place, 1, place, 1, 0),
        'compare': tried(syscall, NR_kcmp, os.getpid(), pid, 0, 0, 0),
        'pages': syscall(NR_move_pages, pid, 0, None, None, None, 0),
        'locks': syscall(NR_get_robust_list, pid, bytes(8), bytes(8)),
    }.items()})
tell(answers=answers)
"""
    )
    assert warden.process is not None
    pids = [victim.pid, warden.process.pid, os.getpid()]
    before = [_of_process(pid) for pid in pids]
    seen = see(warden, source, *map(str, pids))
    assert let_through(seen["answers"]) == {}
    assert victim.poll() is None
    assert warden.process.poll() is None
    assert [_of_process(pid) for pid in pids] == before


def _of_process(pid: int) -> tuple[int, int, set[int]]:
    return (
        os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getscheduler(pid),
        os.sched_getaffinity(pid),
    )


def _state(pid: int) -> str:
    """As ps has it, "" where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_signal_by_a_descriptor_that_becomes_ready_reaches_nobody_else(
    warden: LiveWarden, victim: subprocess.Popen[bytes]
) -> None:
    source = (
        INIT_WORKS
        + TRIED
        + """
import fcntl
ours, theirs = socket.socketpair()
read_end, write_end = os.pipe()
answers = {}
for pid in (int(sys.argv[1]), -int(sys.argv[1])):
    for name, held in (('socket', ours.fileno()), ('pipe', read_end)):
        answers['%s %d' % (name, pid)] = attempt(fcntl.fcntl, held, 8, pid)  # F_SETOWN
        owner = struct.pack('ii', 2 if pid < 0 else 1, abs(pid))
        answers['%s ex %d' % (name, pid)] = attempt(fcntl.fcntl, held, 15, owner)
    answers['ioctl %d' % pid] = attempt(fcntl.ioctl, ours, 0x8902, struct.pack('i', pid))
# Init can be named; what it is sent is refused when the moment comes.
for held, waker in ((ours.fileno(), theirs.fileno()), (read_end, write_end)):
    fcntl.fcntl(held, 8, 1)
    fcntl.fcntl(held, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(waker, b'x')
tell(answers=answers, works=init_works())
"""
    )
    seen = see(warden, source, str(victim.pid))
    assert let_through(seen["answers"]) == {}
    assert seen["works"]
    assert victim.poll() is None


def test_a_timer_cannot_be_aimed_at_another_process(
    warden: LiveWarden, victim: subprocess.Popen[bytes]
) -> None:
    source = (
        raw("timer_create", "clock_gettime", "clock_nanosleep")
        + """
def timer(clock, kind, target):
    event = struct.pack('QiiI', 0, signal.SIGKILL, kind, target).ljust(64, b'\\0')
    return syscall(NR_timer_create, clock, event, ctypes.create_string_buffer(8))
def clock_of(pid):
    return ((~pid) << 3) | 2
answers = {}
for pid in (1, int(sys.argv[1])):
    answers['thread %d' % pid] = timer(1, 4, pid)  # SIGEV_THREAD_ID
    answers['clock %d' % pid] = timer(clock_of(pid), 0, 0)
host = int(sys.argv[1])
answers['read'] = syscall(NR_clock_gettime, clock_of(host), ctypes.create_string_buffer(16))
answers['wait'] = syscall(NR_clock_nanosleep, clock_of(host), 1, bytes(16), None)
del answers['clock 1']  # init's time may be measured; the timer's signal is our own
tell(answers=answers)
"""
    )
    assert let_through(see(warden, source, str(victim.pid))["answers"]) == {}
    assert victim.poll() is None


# --- what of init, and of ours, can be seen --------------------------------------------------


def test_nothing_of_init_can_be_opened_by_any_path(warden: LiveWarden) -> None:
    source = (
        raw("openat2", "pidfd_open")
        + """
names = ('mem environ maps cwd root exe fd fd/0 fd/3 fdinfo ns ns/pid status stat cmdline stack io '
         'syscall task task/1/mem map_files limits mountinfo net/tcp oom_score_adj personality')
answers = {}
for name in names.split():
    for prefix in ('/proc/1/', '/proc/self/task/%d/../../../1/' % os.getpid(), '/proc/./1/task/1/'):
        answers[prefix + name] = attempt(os.stat, prefix + name)
        answers['open ' + prefix + name] = attempt(os.open, prefix + name, os.O_RDONLY)
folder = os.open('/proc', os.O_PATH)
for name in ('1/mem', '1/root', '1/fd', '1/environ'):
    how = struct.pack('QQQ', 0, 0, 0)
    answers['openat2 ' + name] = syscall(NR_openat2, folder, name.encode(), how, 24)
listed = [name for name in os.listdir('/proc') if name.isdigit()]
tell(answers=answers, listed=listed == [str(os.getpid())])
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["listed"]


def test_a_handle_of_init_serves_for_nothing(warden: LiveWarden) -> None:
    source = (
        raw(*_HANDLE_CALLS)
        + """
import fcntl
held = syscall(NR_pidfd_open, 1, 0)
if isinstance(held, str):
    held = -1
answers = {
    'descriptor': tried(syscall, NR_pidfd_getfd, held, 3, 0),
    'namespaces': tried(syscall, NR_setns, held, 0x20000000),
    'advise': tried(syscall, NR_process_madvise, held, None, 0, 4, 0),
    'release': tried(syscall, NR_process_mrelease, held, 0),
    'wait': syscall(NR_waitid, 3, held, bytes(128), 4 | 1, None),
    'signal': syscall(NR_pidfd_send_signal, held, 9, None, 0),
    'path': attempt(os.open, '/proc/self/fd/%d/x' % held, os.O_RDONLY),
}
tell(answers={n: 'ENOTTY' if a in ('EBADF', 'ENOTDIR') else a for n, a in answers.items()})
"""
    )
    assert let_through(see(warden, source)["answers"]) == {}


def test_no_number_leads_to_a_process_that_is_not_the_tasks_own(warden: LiveWarden) -> None:
    """Every number there can be first, and the parked process of the next step among them."""
    scan = (
        raw("tkill", "pidfd_open")
        + """
own, found = os.getpid(), {}
for pid in range(2, 5000):
    if pid == own:
        continue
    for name, answer in (('kill', attempt(os.kill, pid, signal.SIGKILL)),
                         ('thread', syscall(NR_tkill, pid, 9)),
                         ('handle', syscall(NR_pidfd_open, pid, 0))):
        if answer != 'ESRCH':
            found['%s %d' % (name, pid)] = answer
tell(found=found, all=attempt(os.kill, -1, signal.SIGKILL), group=attempt(os.killpg, own, 0))
tell(shown=[n for n in os.listdir('/proc') if n.isdigit() and int(n) != own])
"""
    )
    first, second = warden.run(attack(scan), shell("echo untouched"))
    seen = told(first[0])
    assert (seen["found"], seen["shown"]) == ({}, [])
    assert (second[0].outcome, second[0].stdout) == ("completed", b"untouched\n")


def test_a_task_sees_and_reaches_nothing_of_its_sibling(warden: LiveWarden) -> None:
    scan = (
        TRIED
        + """
while not os.path.exists('there'):
    os.sched_yield()
own, answers = os.getpid(), {}
for pid in range(2, 300):
    if pid != own:
        answers[str(pid)] = [attempt(os.kill, pid, signal.SIGTERM), attempt(os.getsid, pid),
                             attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)]
others = {str(answer) for answer in answers.values()}
# Everybody of this user, wherever: the sibling runs as the same one.
polite = attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
tell(others=sorted(others), polite=polite, shown=[n for n in os.listdir('/proc') if n.isdigit()])
tell(own=own)
open('done', 'w').close()
"""
    )
    sibling = """
open('there', 'w').close()
while not os.path.exists('done'):
    os.sched_yield()
tell(nice=os.getpriority(os.PRIO_PROCESS, 0), pid=os.getpid())
"""
    files = {"sibling.py": (PRELUDE + sibling).encode()}
    ((one, two),) = warden.run([attack(scan), task("python3", "sibling.py", files=files)])
    seen = told(one)
    assert seen["others"] == [str(["ESRCH"] * 3)]
    assert seen["shown"] == [str(seen["own"])]
    assert told(two)["nice"] == 0


def test_the_process_that_waits_for_the_next_step_keeps_its_place(warden: LiveWarden) -> None:
    source = (
        INIT_WORKS
        + """
answers = [attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19),
           attempt(os.kill, 0, signal.SIGURG), attempt(os.kill, -1, signal.SIGSTOP)]
tell(answers=answers, works=init_works())
"""
    )
    ask = "tell(nice=os.getpriority(os.PRIO_PROCESS, 0), parent=os.getppid())"
    first, second = warden.run(attack(source), attack(ask))
    assert told(first[0])["works"]
    assert told(second[0]) == {"nice": 0, "parent": 1}


# --- what is left when the task ends ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["session", "stopped", "deaf", "zombies", "threads"])
def test_whatever_a_process_has_become_it_ends_with_its_task(warden: LiveWarden, kind: str) -> None:
    source = (
        CHILD
        + """
import threading
kind = sys.argv[1]
ready, tell_ready = os.pipe()
def become():
    os.setsid()
    if os.fork():
        os._exit(0)
    if kind == 'deaf':
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if kind == 'zombies':
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
    if kind == 'threads':
        threading.Thread(target=child_waits).start()
    os.write(tell_ready, b'x')
    if kind == 'stopped':
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == 'threads':
        libc.syscall(60, 0)  # the leader's thread alone
    child_waits()
def child_waits():
    while True:
        time.sleep(60)
if os.fork() == 0:
    become()
os.read(ready, 1)
tell(kind=kind)
"""
    )
    # That nothing is left on the host is looked at after each test.
    assert see(warden, source, kind) == {"kind": kind}


def test_the_leaders_thread_can_leave_and_the_task_goes_on_until_its_last(
    warden: LiveWarden,
) -> None:
    source = """
import threading
def last():
    path = '/proc/self/stat'
    while open(path).read().rpartition(')')[2].split()[0] != 'Z':
        os.sched_yield()
    tell(leader='gone')
    os._exit(7)
threading.Thread(target=last).start()
libc.syscall(60, 0)
"""
    result = warden.run_one(attack(source))
    assert (result.outcome, result.exit_code, told(result)) == ("completed", 7, {"leader": "gone"})


def test_a_task_that_stops_itself_whole_meets_its_wall_limit(warden: LiveWarden) -> None:
    source = (
        CHILD
        + """
children = [child() for _ in range(3)]
tell(said=True)
os.kill(0, signal.SIGSTOP)
tell(went_on=True)
"""
    )
    limit = int(stretched(400))
    result = warden.run_one(attack(source, wall_ms=limit), budget_ms=8 * limit)
    assert (result.outcome, result.reason) == ("timed_out", "wall")
    assert told(result) == {"said": True}


def test_an_orphan_goes_to_init_and_is_reaped(warden: LiveWarden) -> None:
    source = (
        INIT_WORKS
        + """
read_end, write_end = os.pipe()
middle = os.fork()
if middle == 0:
    fd = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        ended(fd)
        os.write(write_end, b'%d' % os.getppid())
        os._exit(0)
    os._exit(0)
os.waitpid(middle, 0)
tell(parent=int(os.read(read_end, 16)), reaped=init_works())
"""
    )
    assert see(warden, source) == {"parent": 1, "reaped": True}


def test_a_task_that_takes_in_orphans_takes_none_of_them_along(warden: LiveWarden) -> None:
    source = (
        CHILD
        + raw("prctl")
        + """
syscall(NR_prctl, 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
read_end, write_end = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    fd = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        ended(fd)
        os.write(write_end, b'%d' % os.getppid())
        while True:
            signal.pause()
    os._exit(0)
os.waitpid(middle, 0)
tell(mine=int(os.read(read_end, 16)) == os.getpid())
"""
    )
    # The orphan lives when the task's first process ends.
    assert see(warden, source) == {"mine": True}


VFORK = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int shared;
int main(int count, char **words) {
    printf("begun\n");
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        if (!strcmp(words[1], "waits"))
            for (;;)
                pause();
        if (!strcmp(words[1], "stops"))
            kill(getpid(), SIGSTOP);
        shared = 5;
        if (!strcmp(words[1], "killed"))
            kill(getpid(), SIGKILL);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    return shared;
}
"""


@pytest.fixture(scope="module")
def vfork_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("vfork")
    (folder / "p.c").write_text(VFORK)
    subprocess.run(["gcc", "-w", "-O0", "-o", folder / "p", folder / "p.c"], check=True)
    return (folder / "p").read_bytes()


def test_a_parent_that_its_child_holds_up_in_the_kernel_meets_its_limit(
    warden: LiveWarden, vfork_program: bytes
) -> None:
    """Between vfork and the child's exec no signal but SIGKILL reaches the parent."""
    limit = int(stretched(300))
    ((waits, stops),) = warden.run(
        [
            task("./" + way, way, files={way: vfork_program}, wall_ms=limit)
            for way in ("waits", "stops")
        ],
        budget_ms=8 * limit,
    )
    for result in (waits, stops):
        assert (result.outcome, result.reason, result.stdout) == ("timed_out", "wall", b"begun\n")


def test_a_child_that_shares_its_parents_memory_and_dies_takes_nothing_along(
    warden: LiveWarden, vfork_program: bytes
) -> None:
    result = warden.run_one(task("./p", "killed", files={"p": vfork_program}))
    assert (result.outcome, result.exit_code) == ("completed", 5)


def test_a_wish_to_be_told_of_the_parents_death_binds_nobody_to_the_task(
    warden: LiveWarden,
) -> None:
    source = (
        INIT_WORKS
        + raw("prctl")
        + """
# Of init, whose death it would be told of; and of a thread of its own that ends.
answers = [syscall(NR_prctl, 1, number, 0, 0, 0) for number in (9, 15, 64)]
bad = [syscall(NR_prctl, 1, number, 0, 0, 0) for number in (65, 1 << 20)]
syscall(NR_prctl, 1, signal.SIGKILL, 0, 0, 0)
tell(answers=answers, bad=bad, works=init_works())
read_end, write_end = os.pipe()
middle = os.fork()
if middle == 0:
    go, stay = os.pipe()
    if os.fork() == 0:
        syscall(NR_prctl, 1, signal.SIGUSR1, 0, 0, 0)
        signal.signal(signal.SIGUSR1, lambda *_: os.write(write_end, b'%d' % os.getppid()))
        os.write(stay, b'x')
        while True:
            signal.pause()
    os.read(go, 1)
    os._exit(0)
os.waitpid(middle, 0)
tell(told_of=int(os.read(read_end, 16)))
"""
    )
    seen = see(warden, source)
    assert all(refused(answer) for answer in seen.pop("bad"))
    assert seen == {"answers": [0, 0, 0], "works": True, "told_of": 1}


def test_zombies_count_as_processes_and_are_gone_with_the_task(warden: LiveWarden) -> None:
    source = """
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
tell(made=made)
"""
    result = warden.run_one(attack(source, pids=24))
    assert (result.outcome, result.exit_code) == ("completed", 0)
    assert told(result)["made"] < 24
    assert result.stats.pids_limit_hits >= 1


def test_a_task_that_kills_itself_beside_a_child_that_holds_its_streams_ends_at_once(
    warden: LiveWarden,
) -> None:
    source = (
        CHILD
        + """
for _ in range(4):
    if child() and os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
tell(said=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    result = warden.run_one(attack(source))
    assert (result.outcome, result.signal) == ("signaled", signal.SIGKILL)
    assert told(result) == {"said": True}


@pytest.mark.heavy
def test_a_race_of_forks_against_the_end_leaves_nobody(warden: LiveWarden) -> None:
    source = """
def runs():
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        runs()
tell(left=True)
"""
    low, high = warden.settings.uid_range
    for _ in range(3):
        assert see(warden, source) == {"left": True}
    assert [pid for pid, _, uid, _ in processes() if low <= uid <= high] == []


def test_a_request_that_is_cancelled_takes_stopped_and_deaf_processes_along(
    warden: LiveWarden,
) -> None:
    source = (
        CHILD
        + """
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
"""
    )
    low, high = warden.settings.uid_range
    with held(warden, source):
        assert sum(low <= uid <= high for _, _, uid, _ in processes()) >= 6
    assert [pid for pid, _, uid, _ in processes() if low <= uid <= high] == []
