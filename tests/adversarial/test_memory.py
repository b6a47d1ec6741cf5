"""Memory: whatever form it takes, it is counted to the task, and too much of it ends the task.

Every hog stops by itself at 400 MiB and says that it got through; its limit is far below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gaoler.actors.policy.memory import request_memory_bytes
from gaoler.sandbox.job import TaskResult
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import stretched
from tests.hosting import CGROUP_ROOT, MIB, LiveWarden, eventually, job, shell, task

LIMIT = 96 * MIB
# A limit to within what the kernel charges at once, and what may be given back at a kill.
SLACK = MIB
SPENT = LIMIT * 3 // 4
PATIENT_MS = int(stretched(10_000))

# `begun` says that the probe came as far as its attempt, `through` that nothing stopped it.
HOG = r"""
import mmap

GREED = 400 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
NORESERVE = 0x4000

def touch(memory, size=GREED, stride=4096):
    for at in range(0, size, stride):
        memory[at] = 1

def fill(path, size=GREED):
    block = bytes(1 << 20)
    with open(path, 'wb', buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)

tell(begun=True)
"""
END = "\ntell(through=True)\n"


def hog(live: LiveWarden, source: str, memory_bytes: int = LIMIT, **options: Any) -> TaskResult:
    """Run a hog to its end, whatever that is; it has begun its attempt."""
    limits = {
        "memory_bytes": memory_bytes,
        "file_bytes": 512 * MIB,
        "wall_ms": PATIENT_MS,
        "cpu_ms": PATIENT_MS,
    }
    names = ("workspace_bytes", "budget_ms")
    around = {name: options.pop(name) for name in names if name in options}
    result = live.run_one(attack(HOG + source + END, **{**limits, **options}), **around)
    assert told(result)["begun"], result
    return result


def expect_memory_limit(result: TaskResult, memory_bytes: int = LIMIT) -> None:
    """Ended for its memory, with evidence, and before it came through."""
    assert (result.outcome, result.reason) == ("memory_limit", None), result
    assert (result.exit_code, result.signal, result.timed_out) == (None, None, False)
    assert result.stats.oom_kills >= 1
    assert memory_bytes * 3 // 4 <= result.stats.memory_peak_bytes <= memory_bytes + SLACK
    assert "through" not in told(result)


def expect_within(result: TaskResult, memory_bytes: int = LIMIT) -> dict[str, Any]:
    """Came through without an OOM kill and within its limit."""
    assert (result.outcome, result.exit_code, result.stderr) == ("completed", 0, b""), result
    assert result.stats.oom_kills == 0
    assert result.stats.memory_peak_bytes <= memory_bytes + SLACK
    return told(result)


# --- every form of it is counted ----------------------------------------------------------

FORMS = {
    "private pages": "touch(mmap.mmap(-1, GREED, flags=PRIVATE))",
    "shared pages": "touch(mmap.mmap(-1, GREED))",
    "pages that were never reserved": "touch(mmap.mmap(-1, GREED, flags=PRIVATE | NORESERVE))",
    "populated at once by mmap": "mmap.mmap(-1, GREED, flags=PRIVATE | 0x8000)",
    "huge pages where there are some": """
m = mmap.mmap(-1, GREED, flags=PRIVATE)
attempt(m.madvise, mmap.MADV_HUGEPAGE)
touch(m)
""",
    "a copy of a file's pages": """
file = open('/box/sparse', 'w+b')
file.truncate(GREED)
touch(mmap.mmap(file.fileno(), GREED, flags=mmap.MAP_PRIVATE, prot=3))
""",
    "the pages of a sparse file": """
file = open('/box/sparse', 'w+b')
file.truncate(GREED)
touch(mmap.mmap(file.fileno(), GREED))
""",
    "a file in the workspace": "fill('/box/file')",
    "space set aside in the workspace": """
file = open('/box/file', 'wb')
for at in range(0, GREED, 1 << 20):
    os.posix_fallocate(file.fileno(), at, 1 << 20)
""",
    "a file in the workspace that has no name any more": """
file = os.open('/box/file', os.O_RDWR | os.O_CREAT)
os.unlink('/box/file')
for _ in range(GREED >> 20):
    os.write(file, bytes(1 << 20))
""",
    "a file that never had a name": """
file = os.open('/box', os.O_RDWR | os.O_TMPFILE)
for _ in range(GREED >> 20):
    os.write(file, bytes(1 << 20))
""",
    "files in /tmp and /dev/shm": "fill('/tmp/file', 60 << 20); fill('/dev/shm/file', 60 << 20)",
    "a file in memory alone": """
file = os.memfd_create('greed')
for _ in range(GREED >> 20):
    os.write(file, bytes(1 << 20))
""",
    "a sealed file in memory": """
for number in range(GREED >> 20):
    file = os.memfd_create('greed', 2)
    os.write(file, bytes(1 << 20))
    syscall(72, file, 1033, 15)  # fcntl: F_ADD_SEALS, all four
""",
    "System V shared memory": """
libc.shmat.restype = ctypes.c_void_p
for _ in range(GREED >> 24):
    number = libc.shmget(0, 16 << 20, 0o1600)
    at = libc.shmat(number, None, 0)
    ctypes.memset(at, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(at))  # nobody has it mapped: it stays all the same
""",
    "System V messages": """
words = struct.pack('l', 1) + bytes(8000)
for _ in range(GREED // 16_000):
    queue = libc.msgget(0, 0o1600)
    for _ in range(2):
        syscall(69, queue, words, 8000, 0o4000)
""",
    "many processes that are small each": """
for _ in range(40):
    if os.fork() == 0:
        m = mmap.mmap(-1, 10 << 20, flags=PRIVATE)  # named, so that it stays
        touch(m, 10 << 20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
""",
    "copies of what was shared with a child": """
m = mmap.mmap(-1, 60 << 20, flags=PRIVATE)
touch(m, 60 << 20)
for _ in range(5):
    if os.fork() == 0:
        touch(m, 60 << 20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
""",
    "pages that it tried to push out": """
for _ in range(8):
    m = mmap.mmap(-1, 50 << 20, flags=PRIVATE)
    touch(m, 50 << 20)
    m.madvise(21)  # MADV_PAGEOUT
    globals().setdefault('kept', []).append(m)
""",
    "page tables": """
# The pages read are all the one of zeroes; the tables to find them are the task's.
m = mmap.mmap(-1, 200 << 30, flags=PRIVATE | NORESERVE, prot=mmap.PROT_READ)
attempt(m.madvise, mmap.MADV_NOHUGEPAGE)
for at in range(0, 200 << 30, 2 << 20):
    m[at]
""",
    "mappings": """
page = os.memfd_create('page')
os.truncate(page, 4096)
libc.mmap.restype = ctypes.c_void_p
for number in range(60_000):
    at = ctypes.c_void_p((1 << 44) + (number << 21))
    got = libc.mmap(at, 4096, 3, 0x100011, page, ctypes.c_long(0))
    ctypes.memset(got, 1, 1)
""",
}
ROOMY = {"workspace_bytes": 512 * MIB}


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_counted_in_every_form(warden: LiveWarden, form: str) -> None:
    expect_memory_limit(hog(warden, FORMS[form], **ROOMY))


@pytest.mark.heavy
def test_a_stack_is_memory_too(warden: LiveWarden) -> None:
    source = b"""
#include <stdio.h>
static int deeper(int depth) {
    volatile char frame[1 << 16];
    for (int at = 0; at < sizeof frame; at += 4096) frame[at] = depth;
    return depth ? deeper(depth - 1) + frame[depth] : 0;
}
int main(void) {
    puts("{\\"begun\\": true}"); fflush(stdout);
    deeper(5000);
    puts("{\\"through\\": true}");
}
"""
    built, (deep,) = warden.run(
        task("gcc", "-O0", "-o", "deep", "deep.c", files={"deep.c": source}, wall_ms=PATIENT_MS),
        task("./deep", memory_bytes=LIMIT, stack_bytes=400 * MIB),
    )
    assert built[0].exit_code == 0, built
    expect_memory_limit(deep)


PIPES = """
full = bytes(1 << 20)
kept = []
for _ in range(100):
    ends = os.pipe()
    try:
        syscall(72, ends[1], 1031, 1 << 20)  # fcntl: F_SETPIPE_SZ
    except OSError:
        pass
    os.set_blocking(ends[1], False)
    try:
        os.write(ends[1], full)
    except BlockingIOError:
        pass
    kept.append(ends)
"""
SOCKETS = """
kept = []
full = bytes(1 << 16)
for _ in range(400):
    pair = socket.socketpair()
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        end.setblocking(False)
        try:
            while True:
                end.send(full)
        except OSError:
            pass
    kept.append(pair)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("source", [PIPES, SOCKETS], ids=["pipes", "unix sockets"])
def test_what_lies_in_a_buffer_of_the_kernel_is_counted(warden: LiveWarden, source: str) -> None:
    """With their own bounds these hold tens of MiB at most, so the limit is lower."""
    expect_memory_limit(hog(warden, source, memory_bytes=32 * MIB), 32 * MIB)


@pytest.mark.heavy
def test_the_buffers_of_tcp_sockets_are_bounded(warden: LiveWarden) -> None:
    """v2 counts them to the task's memory; v1 apart, and refuses them past 16 MiB."""
    source = """
listener = socket.create_server(('127.0.0.1', 0))
kept, queued = [], 0
for _ in range(100):
    near = socket.create_connection(listener.getsockname())
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    far = listener.accept()[0]
    near.setblocking(False)
    kept += [near, far]
    for _ in range(64):
        try:
            queued += near.send(bytes(1 << 16))
        except BlockingIOError:
            break
    tell(queued=queued)
"""
    result = hog(warden, source, memory_bytes=48 * MIB)
    assert result.outcome in ("completed", "memory_limit"), result
    assert told(result)["queued"] <= 64 * MIB
    assert result.stats.memory_peak_bytes <= 48 * MIB + SLACK


@pytest.mark.heavy
def test_a_tmpfs_that_is_larger_than_the_memory_is_no_way_round_it(warden: LiveWarden) -> None:
    for folder in ("/tmp", "/dev/shm"):  # of 64 MiB each
        result = hog(warden, f"fill('{folder}/file', 60 << 20)", memory_bytes=32 * MIB)
        expect_memory_limit(result, 32 * MIB)


@pytest.mark.heavy
def test_a_flood_of_files_is_memory(warden: LiveWarden) -> None:
    source = """
for number in range(60_000):
    os.close(os.open(f'/box/{number}', os.O_CREAT | os.O_WRONLY))
"""
    expect_memory_limit(hog(warden, source, memory_bytes=24 * MIB), 24 * MIB)


@pytest.mark.heavy
def test_extended_attributes_are_memory_or_refused(warden: LiveWarden) -> None:
    source = """
value, got = bytes(60_000), 'done'
for number in range(6_000):
    file = f'/box/{number % 60}'
    open(file, 'a').close()
    got = attempt(os.setxattr, file, f'user.{number}', value)
    tell(got=got)
    if got != 'done':
        break
else:
    tell(all=True)
"""
    result = hog(warden, source, memory_bytes=48 * MIB)
    if result.outcome == "completed":
        assert told(result)["got"] in ("EOPNOTSUPP", "ENOTSUP", "ENOSPC", "E2BIG"), result
        assert "all" not in told(result)
    else:
        expect_memory_limit(result, 48 * MIB)


# --- who is killed, and what comes of it --------------------------------------------------


@pytest.mark.heavy
def test_a_small_process_that_dies_beside_a_large_one_ends_the_task(warden: LiveWarden) -> None:
    """The kernel kills the largest: here a child, while the greedy one is the first process."""
    source = """
if os.fork() == 0:
    touch(mmap.mmap(-1, 60 << 20, flags=PRIVATE), 60 << 20)
    tell(child='full')
    time.sleep(60)
    os._exit(0)
time.sleep(0.3)
kept = []
for _ in range(100):
    kept.append(mmap.mmap(-1, 4 << 20, flags=PRIVATE))
    touch(kept[-1], 4 << 20)
time.sleep(60)
"""
    expect_memory_limit(hog(warden, source))


@pytest.mark.heavy
def test_an_orphan_that_meets_the_limit_ends_the_task_at_once(warden: LiveWarden) -> None:
    source = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        touch(mmap.mmap(-1, GREED, flags=PRIVATE))
        os._exit(0)
    os._exit(0)
time.sleep(60)
"""
    expect_memory_limit(hog(warden, source))


@pytest.mark.heavy
def test_sacrificing_one_child_after_the_other_does_not_go_on(warden: LiveWarden) -> None:
    source = """
for turn in range(20):
    seen = fate(lambda: touch(mmap.mmap(-1, GREED, flags=PRIVATE)))
    tell(turn=turn)
    time.sleep(0.2)
time.sleep(60)
"""
    result = hog(warden, source)
    expect_memory_limit(result)
    assert told(result).get("turn", 0) <= 1


def test_no_process_can_choose_who_dies_first(warden: LiveWarden) -> None:
    """A decoy would let the rest go on; no process may write the kernel's preference."""
    seen = see(
        warden,
        """
got = [attempt(open, f'/proc/self/{name}', 'w') for name in ('oom_score_adj', 'oom_adj')]
tell(got=got, now=open('/proc/self/oom_score_adj').read().strip())
""",
    )
    assert set(seen["got"]) <= {"EACCES", "EPERM", "ENOENT"}
    assert int(seen["now"]) >= 0


def test_what_is_collected_after_a_kill_is_what_was_there(warden: LiveWarden) -> None:
    source = "fill('/box/kept', 1 << 20)\ntouch(mmap.mmap(-1, GREED, flags=PRIVATE))"
    result = hog(warden, source, collect=("kept",), memory_bytes=32 * MIB)
    expect_memory_limit(result, 32 * MIB)
    assert [(len(f.data), f.error) for f in result.files] == [(MIB, None)]


# --- what is not memory is not counted ----------------------------------------------------


def test_a_map_of_a_terabyte_that_nobody_touches_costs_nothing(warden: LiveWarden) -> None:
    result = hog(warden, "m = mmap.mmap(-1, 1 << 40, flags=PRIVATE | NORESERVE)")
    assert expect_within(result)["through"]
    assert result.stats.memory_peak_bytes <= 32 * MIB


def test_pages_that_children_only_read_are_counted_once(warden: LiveWarden) -> None:
    source = """
m = mmap.mmap(-1, 60 << 20, flags=PRIVATE)
touch(m, 60 << 20)
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        sum(m[at] for at in range(0, 60 << 20, 4096))
        os._exit(0)
    os.waitpid(pid, 0)
"""
    result = hog(warden, source)
    assert expect_within(result)["through"]
    assert result.stats.memory_peak_bytes >= 60 * MIB


def test_memory_that_was_given_back_is_free_again(warden: LiveWarden) -> None:
    source = """
m = mmap.mmap(-1, 60 << 20, flags=PRIVATE)
for _ in range(4):
    touch(m, 60 << 20)
    m.madvise(mmap.MADV_DONTNEED)
for _ in range(4):
    fill('/box/file', 60 << 20)
    os.unlink('/box/file')
"""
    assert expect_within(hog(warden, source))["through"]


def test_a_hole_that_is_punched_into_a_file_gives_its_memory_back(warden: LiveWarden) -> None:
    source = """
file = open('/box/file', 'w+b', buffering=0)
for _ in range(4):
    file.seek(0)
    for _ in range(60):
        file.write(bytes(1 << 20))
    # fallocate: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    assert syscall(285, file.fileno(), 3, 0, 60 << 20) == 0
"""
    assert expect_within(hog(warden, source))["through"]


def test_reading_more_of_the_toolchain_than_the_memory_holds_ends_nothing(
    warden: LiveWarden,
) -> None:
    """Pages of files can be dropped and read again: the limit bounds them and kills nobody."""
    source = """
read = 0
for folder, _, names in os.walk('/usr/lib'):
    for name in names:
        try:
            with open(os.path.join(folder, name), 'rb', buffering=0) as file:
                while block := file.read(1 << 18):
                    read += len(block)
        except OSError:
            continue
        if read > 64 << 20:
            break
    if read > 64 << 20:
        break
tell(read=read)
"""
    seen = expect_within(hog(warden, source, memory_bytes=24 * MIB), 24 * MIB)
    assert seen["read"] > 24 * MIB


def test_names_that_do_not_exist_fill_no_memory(warden: LiveWarden) -> None:
    """The kernel remembers what it did not find, within the task's memory."""
    source = """
for number in range(60_000):
    try:
        os.stat(f'/usr/lib/{number:0200}')
    except FileNotFoundError:
        pass
"""
    assert expect_within(hog(warden, source, memory_bytes=24 * MIB), 24 * MIB)["through"]


# --- bounds of their own ------------------------------------------------------------------


def test_locked_memory_is_bounded_whatever_locks_it(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import mmap, resource
most = 8 << 20
def lock(size):
    m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    return [syscall(149, at, size), syscall(325, at, size, 1)]  # mlock, mlock2 on fault
segment = libc.shmget(0, 16 << 20, 0o1600)
tell(
    little=lock(1 << 20), much=lock(16 << 20),
    all=syscall(151, 7),  # mlockall: now, later, on fault
    flag=attempt(mmap.mmap, -1, 16 << 20, flags=mmap.MAP_PRIVATE | 0x2020),
    segment=syscall(31, segment, 11, 0),  # shmctl: SHM_LOCK
    limit=resource.getrlimit(resource.RLIMIT_MEMLOCK) == (most, most),
    raised=syscall(160, 8, struct.pack('QQ', 1 << 40, 1 << 40)),  # setrlimit
    still=resource.getrlimit(resource.RLIMIT_MEMLOCK) == (most, most),
)
""",
    )
    assert seen["little"] == [0, 0]
    assert set(seen["much"]) == {"ENOMEM"}
    assert (seen["all"], seen["flag"], seen["raised"]) == ("ENOMEM", "EAGAIN", "EPERM")
    assert seen["segment"] in ("ENOMEM", "EPERM")
    assert seen["limit"]
    assert seen["still"]


def test_everything_locked_is_still_within_the_limit(warden: LiveWarden) -> None:
    """mlockall with what it may lock, and then more memory than the limit."""
    source = "syscall(151, 4)\ntouch(mmap.mmap(-1, GREED, flags=PRIVATE))"
    result = hog(warden, source, memory_bytes=48 * MIB)
    assert result.outcome in ("memory_limit", "completed"), result
    if result.outcome == "completed":  # refused before it could touch anything
        assert result.exit_code != 0
    assert "through" not in told(result)


@pytest.mark.heavy
@pytest.mark.parametrize(("folder", "most"), [("/tmp", 16_384), ("/dev/shm", 16_384)])
def test_the_number_of_files_in_a_tasks_own_folders_is_bounded(
    warden: LiveWarden, folder: str, most: int
) -> None:
    source = f"""
made, got = 0, 'done'
while made < 20_000 and got == 'done':
    got = attempt(lambda: os.close(os.open(f'{folder}/{{made}}', os.O_CREAT | os.O_WRONLY)))
    made += got == 'done'
tell(made=made, got=got, link=attempt(os.symlink, 'x', '{folder}/link'))
"""
    seen = expect_within(hog(warden, source, memory_bytes=256 * MIB), 256 * MIB)
    assert seen["got"] == seen["link"] == "ENOSPC"
    assert most // 2 <= seen["made"] <= most


@pytest.mark.heavy
def test_the_number_of_files_in_a_workspace_is_bounded(warden: LiveWarden) -> None:
    live = warden.settings.workspace_inodes
    source = f"""
made, got = 0, 'done'
os.mkdir('/box/d')
file = os.open('/box/d/0', os.O_CREAT | os.O_WRONLY)
while made < {live} + 100 and got == 'done':
    got = attempt(os.symlink, 'x', f'/box/d/l{{made}}')
    made += got == 'done'
tell(made=made, got=got)
"""
    seen = expect_within(hog(warden, source, memory_bytes=512 * MIB), 512 * MIB)
    assert seen["got"] == "ENOSPC"
    assert live // 2 <= seen["made"] <= live


@pytest.mark.heavy
def test_descriptors_in_flight_are_bounded(warden: LiveWarden) -> None:
    """Sent and never received, they count for the user, however many sockets carry them."""
    seen = see(
        warden,
        """
import array
file = os.open('/dev/null', os.O_RDONLY)
batch = array.array('i', [file] * 253)
sent, got, kept = 0, 'done', []
while sent < 20_000 and got == 'done':
    pair = socket.socketpair()
    kept.append(pair)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)]
    got = attempt(pair[0].sendmsg, [b'x'], rights)
    sent += 253 * (got == 'done')
tell(sent=sent, got=got)
""",
    )
    assert seen["got"] == "ETOOMANYREFS"
    assert seen["sent"] <= 1024 + 2 * 253


def test_signals_that_wait_and_timers_are_bounded(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
info = ctypes.create_string_buffer(struct.pack('iii', signal.SIGRTMIN, 0, -1), 128)
queued, got = 0, 0
while queued < 10_000 and got == 0:
    got = syscall(129, os.getpid(), int(signal.SIGRTMIN), info)
    queued += got == 0
timers, stop, number = 0, 0, ctypes.c_int()
while timers < 10_000 and stop == 0:
    stop = syscall(222, 1, 0, ctypes.byref(number))
    timers += stop == 0
tell(queued=queued, got=got, timers=timers, stop=stop)
""",
    )
    assert (seen["got"], seen["stop"]) == ("EAGAIN", "EAGAIN")
    assert seen["queued"] + seen["timers"] <= 4096


def test_message_queues_are_bounded(warden: LiveWarden) -> None:
    """Refused altogether; without the layers that do so their own limit holds."""
    seen = see(
        warden,
        """
made, got = 0, 0
while made < 200 and not isinstance(got, str):
    got = syscall(240, f'q{made}'.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
    made += not isinstance(got, str)
tell(made=made, got=got)
""",
    )
    assert seen["got"] in ("ENOSYS", "EACCES", "EMFILE", "ENOSPC")
    assert seen["made"] <= 32


def test_the_hosts_huge_pages_are_not_to_be_had(warden: LiveWarden) -> None:
    """A pool of them is the host's, and no memory limit counts what is taken from it."""
    seen = see(
        warden,
        """
import mmap
anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
def of_memory():
    file = os.memfd_create('huge', 4)
    os.truncate(file, 2 << 20)
    mmap.mmap(file, 2 << 20)[0] = 1
tell(
    mapped=attempt(mmap.mmap, -1, 2 << 20, flags=anonymous | 0x40000),
    segment=syscall(29, 0, 2 << 20, 0o5600),
    memory=attempt(of_memory),
)
""",
    )
    refused = {"ENOMEM", "EPERM", "EINVAL", "ENOSYS", "ENOENT"}
    assert {seen["mapped"], seen["segment"], seen["memory"]} <= refused


def test_pages_cannot_be_offered_for_merging_with_those_of_others(warden: LiveWarden) -> None:
    """Merged pages are a clock that tells what others hold; for madvise as for prctl."""
    seen = see(
        warden,
        """
import mmap
m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
tell(area=attempt(m.madvise, 12), process=syscall(157, 67, 1, 0, 0, 0))
""",
    )
    assert seen["process"] in ("EPERM", "EINVAL")
    assert seen["area"] in ("EPERM", "EINVAL")


def test_no_madvise_breaks_a_page_of_the_machine(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import mmap
m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[0] = 1
tell(poison=attempt(m.madvise, 100), offline=attempt(m.madvise, 101))
""",
    )
    assert set(seen.values()) <= {"EPERM", "EINVAL"}


def test_nothing_of_a_task_may_be_swapped_out(warden: LiveWarden) -> None:
    """Swap would be memory beyond the limit; where the kernel counts it, there is none."""
    watched = warden.submit(job(shell("echo > ready; exec sleep 60", memory_bytes=LIMIT)))
    names = {"memory.swap.max": 0, "memory.memsw.limit_in_bytes": LIMIT}

    def found() -> dict[str, int]:
        return {
            path.name: int(path.read_text())
            for name in names
            for depth in ("", "*/", "*/*/")
            for path in CGROUP_ROOT.glob(f"{depth}{warden.instance}/jail-*/task-0/{name}")
            if path.read_text().strip() != "max"
        }

    try:
        probe = warden.run_one(shell("grep -c . /proc/swaps; grep Swap /proc/meminfo"))
        swaps = int(probe.stdout.split()[0]) - 1
        if swaps or found():
            eventually(lambda: found().items() <= names.items() and found(), "swap is limited")
    finally:
        watched.cancel()
        watched.wait()


# --- one step after the other -------------------------------------------------------------


def test_a_full_workspace_is_not_the_next_tasks_memory(warden: LiveWarden) -> None:
    """What step 1 left is charged to the request; step 2 reads it within a smaller limit."""
    source = """
with open('/box/left', 'rb') as file:
    m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    tell(sum=sum(m[at] for at in range(0, len(m), 4096)), size=len(m))
"""
    (wrote,), (read,) = warden.run(
        shell("head -c 83886080 /dev/zero > left", memory_bytes=LIMIT),
        attack(HOG + source, memory_bytes=32 * MIB, wall_ms=PATIENT_MS),
    )
    assert wrote.outcome == "completed"
    assert wrote.stats.memory_peak_bytes >= 80 * MIB
    assert expect_within(read, 32 * MIB)["size"] == 80 * MIB


def test_step_after_step_piles_up_no_more_than_the_workspace_holds(warden: LiveWarden) -> None:
    write = "head -c 31457280 /dev/zero > $$-$1 2> /dev/null; du -sb . | cut -f1"
    steps = [task("/bin/sh", "-c", write, "-", str(n), memory_bytes=LIMIT) for n in range(7)]
    sizes = [int(r.stdout) for (r,) in warden.run(*steps, workspace_bytes=128 * MIB)]
    assert sizes[0] >= 30 * MIB
    assert sizes[-1] <= 129 * MIB


@pytest.mark.heavy
def test_what_a_request_reserves_is_enough_for_the_greediest_one(warden: LiveWarden) -> None:
    """With the memory that the queue sets aside for it, every hog meets its own limit, never the
    request's: that would be our fault, and might end one of our own processes."""
    fill = "fill('/tmp/f', 60 << 20)\nfill('/dev/shm/f', 60 << 20)\n"
    greedy = HOG + fill + "touch(mmap.mmap(-1, GREED, flags=PRIVATE))" + END
    box = "fill('/box/f', 120 << 20)"
    limits = {"memory_bytes": 160 * MIB, "file_bytes": 512 * MIB, "wall_ms": PATIENT_MS}
    wanted = job(
        attack(HOG + box + END, **limits),
        [attack(greedy, **limits), attack(greedy, **limits)],
        attack(greedy, **limits),
        shell("echo last"),
        budget_ms=int(stretched(20_000)),
    )
    reserved = request_memory_bytes(
        steps=[[t.limits.memory_bytes for t in step.tasks] for step in wanted.steps],
        workspace_bytes=wanted.workspace_bytes,
        tmp_bytes=warden.settings.tmp_bytes,
        shm_bytes=warden.settings.shm_bytes,
        output_bytes=wanted.output_bytes,
    )
    watched = warden.submit(replace(wanted, memory_bytes=reserved)).wait()
    assert watched.failure is None, watched.failure
    results = watched.results
    assert told(results[0, 0])["through"]
    for place in ((1, 0), (1, 1), (2, 0)):
        expect_memory_limit(results[place], 160 * MIB)
    assert results[3, 0].stdout == b"last\n"


def test_one_tasks_hunger_does_not_kill_its_sibling(warden: LiveWarden) -> None:
    greedy = HOG + "touch(mmap.mmap(-1, GREED, flags=PRIVATE))" + END
    calm = HOG + "m = mmap.mmap(-1, 40 << 20, flags=PRIVATE)\ntouch(m, 40 << 20)\n"
    calm += "time.sleep(0.3)\nassert m[0] == 1" + END
    # They share the workspace, so each has its program on the command line.
    programs = (PRELUDE + greedy, PRELUDE + calm)
    ((one, two),) = warden.run(
        [task("/usr/bin/python3", "-c", text, memory_bytes=64 * MIB) for text in programs]
    )
    expect_memory_limit(one, 64 * MIB)
    assert expect_within(two, 64 * MIB)["through"]
