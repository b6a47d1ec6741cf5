"""Leaks: nothing of one task or request is seen by another, whatever they share underneath.

Where a request comes after another under the same UID, a warden with a single UID forces it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gaoler.sandbox.job import Task
from tests.adversarial.probing import PRELUDE, attack, host_untouched, see, told
from tests.emulation import stretched
from tests.hosting import MIB, LiveWarden, Watched, eventually, job, shell, task

PATIENT_MS = int(stretched(8_000))
SECRET = "leak-" + "5e7c" * 8
# Away from every other range of the tests, and one for each test process.
ONE_UID = 900_000 + os.getpid() % 90_000


@pytest.fixture(scope="module")
def lone(
    session_warden: LiveWarden, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveWarden]:
    """A warden with a single UID: each request has the one that the last one had."""
    del session_warden  # which is skipped where there can be none
    warden = LiveWarden(tmp_path_factory.mktemp("lone"), uid_range=(ONE_UID, ONE_UID)).start()
    warden.run_one(task("/bin/true"))
    yield warden
    warden.stop()


@pytest.fixture
def reused(lone: LiveWarden) -> Iterator[LiveWarden]:
    with host_untouched(lone):
        yield lone


def program(source: str, *args: str, **limits: Any) -> Task:
    """A probe that leaves no file of its own in /box."""
    return task("/usr/bin/python3", "-c", PRELUDE + source, *args, **limits)


def beside(live: LiveWarden, source: str, **limits: Any) -> Watched:
    """Start a request that goes on, and wait until it has said so by making /box/on."""
    limits = {"wall_ms": PATIENT_MS, **limits}
    on = shell("until [ -e on ]; do sleep 0.02; done", wall_ms=PATIENT_MS)
    watched = live.submit(job([attack(source + "\ntime.sleep(60)\n", **limits), on]))
    eventually(lambda: (0, 1) in watched.results, "it is on")
    assert watched.results[0, 1].outcome == "completed", watched.results
    return watched


def end(watched: Watched) -> None:
    watched.cancel()
    watched.wait()


# --- the next request, under the same UID -------------------------------------------------

PLANT = """
import mmap
for folder in ('/tmp', '/dev/shm', '/box'):
    open(folder + '/left', 'w').write(SECRET)
    os.symlink('/box', folder + '/link')
    os.mkdir(folder + '/folder')
    os.mkfifo(folder + '/fifo')
segment = libc.shmget(0x5e7c, 4096, 0o1666)
libc.shmat.restype = ctypes.c_void_p
ctypes.memmove(libc.shmat(segment, None, 0), SECRET.encode(), len(SECRET))
queue = libc.msgget(0x5e7c, 0o1666)
libc.msgsnd(queue, struct.pack('l', 1) + SECRET.encode(), len(SECRET), 0)
sem = libc.semget(0x5e7c, 1, 0o1666)
server = socket.socket(socket.AF_UNIX); server.bind('\\0' + SECRET); server.listen()
tcp = socket.create_server(('127.0.0.1', 45_678))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 45_678))
if os.fork() == 0:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    time.sleep(60)
tell(segment=segment >= 0, queue=queue >= 0, sem=sem >= 0)
sys.stdout.flush()
os._exit(0)
"""
LOOK = """
def client(where, kind=socket.AF_UNIX):
    return attempt(socket.socket(kind).connect, where)
libc.shmget.restype = ctypes.c_int
def id_of(call, *arguments):
    ctypes.set_errno(0)
    return errno.errorcode[ctypes.get_errno()] if call(*arguments) < 0 else 'found'
tell(
    files={folder: sorted(os.listdir(folder)) for folder in ('/tmp', '/dev/shm', '/box')},
    segment=id_of(libc.shmget, 0x5e7c, 0, 0),
    queue=id_of(libc.msgget, 0x5e7c, 0),
    sem=id_of(libc.semget, 0x5e7c, 0, 0),
    abstract=client('\\0' + SECRET), tcp=client(('127.0.0.1', 45_678), socket.AF_INET),
    processes=[n for n in os.listdir('/proc') if n.isdigit()] == [str(os.getpid())],
    listing=[len(open('/proc/net/' + name).readlines()) for name in ('unix', 'tcp', 'udp')],
    ipc=attempt(open, '/proc/sysvipc/shm'),
)
"""
NOTHING: dict[str, Any] = {
    "files": {"/tmp": [], "/dev/shm": [], "/box": []},
    "segment": "ENOENT",
    "queue": "ENOENT",
    "sem": "ENOENT",
    "abstract": "ECONNREFUSED",
    "tcp": "ECONNREFUSED",
    "processes": True,
}


def expect_nothing(seen: dict[str, Any], **other: Any) -> None:
    assert {name: seen[name] for name in NOTHING} == {**NOTHING, **other}
    assert seen["listing"] == [1, 1, 1]  # a heading each
    assert seen["ipc"] in ("EACCES", "ENOENT", "EPERM")


WITH_SECRET = f"SECRET = {SECRET!r}\n"


def test_the_next_request_under_the_same_uid_finds_nothing(reused: LiveWarden) -> None:
    planted = reused.run_one(program(WITH_SECRET + PLANT))
    assert told(planted) == {"segment": True, "queue": True, "sem": True}, planted.stderr
    found = reused.run_one(program(WITH_SECRET + LOOK))
    assert found.stderr == b""
    expect_nothing(told(found))


def test_the_next_step_finds_what_is_in_the_workspace_and_no_more(warden: LiveWarden) -> None:
    _, (found,) = warden.run(program(WITH_SECRET + PLANT), program(WITH_SECRET + LOOK))
    assert found.stderr == b""
    expect_nothing(
        told(found),
        files={"/tmp": [], "/dev/shm": [], "/box": ["fifo", "folder", "left", "link"]},
    )


def test_a_task_beside_it_finds_what_is_in_the_workspace_and_no_more(warden: LiveWarden) -> None:
    """Two tasks of a step at the same time: one user, one /box, and everything else apart."""
    stay = PLANT.replace("sys.stdout.flush()\nos._exit(0)", "open('/box/on', 'w')\ntime.sleep(60)")
    wait = "while not os.path.exists('/box/on'):\n    time.sleep(0.01)\n"
    watched = warden.submit(
        job([program(WITH_SECRET + stay, wall_ms=PATIENT_MS), program(WITH_SECRET + wait + LOOK)])
    )
    try:
        eventually(lambda: (0, 1) in watched.results, "it has looked")
    finally:
        end(watched)
    found = watched.results[0, 1]
    assert found.stderr == b""
    expect_nothing(
        told(found),
        files={"/tmp": [], "/dev/shm": [], "/box": ["fifo", "folder", "left", "link", "on"]},
    )


def test_a_request_beside_it_finds_nothing(warden: LiveWarden) -> None:
    stay = PLANT.replace("sys.stdout.flush()\nos._exit(0)", "open('/box/on', 'w')")
    watched = beside(warden, WITH_SECRET + stay)
    try:
        found = warden.run_one(program(WITH_SECRET + LOOK))
    finally:
        end(watched)
    assert found.stderr == b""
    expect_nothing(told(found))


def test_bounds_of_a_user_are_whole_again_for_the_next_one(reused: LiveWarden) -> None:
    """What the kernel counts for a user is used up by one request and free for the next."""
    greedy = """
kept, counts = [], {}
def grow(name, make, most):
    count = 0
    try:
        while count < most:
            kept.append(make())
            count += 1
    except (OSError, ValueError):
        pass
    counts[name] = count
import array, mmap
null = os.open('/dev/null', os.O_RDONLY)
def inotify():
    made = libc.inotify_init1(0)
    if made < 0:
        raise OSError(ctypes.get_errno(), 'inotify')
    return made
grow('inotify', inotify, 200)
def flight():
    pair = socket.socketpair()
    pair[0].sendmsg([b'x'], [(1, 1, array.array('i', [null] * 200))])
    return pair
grow('flight', flight, 50)
def pipe():
    ends = os.pipe()
    if isinstance(syscall(72, ends[1], 1031, 1 << 20), str):
        raise OSError(1, 'pipe')
    return ends
grow('pipes', pipe, 100)
def locked():
    m = mmap.mmap(-1, 1 << 20)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    if syscall(149, at, 1 << 20) != 0:
        raise OSError(12, 'mlock')
    return m
grow('locked', locked, 16)
def timer():
    if syscall(222, 1, 0, ctypes.byref(ctypes.c_int())) != 0:
        raise OSError(11, 'timer')
grow('timers', timer, 5000)
tell(**counts)
os._exit(0)
"""
    first, second = (told(reused.run_one(program(greedy))) for _ in range(2))
    assert first == second
    assert first["inotify"] > 0
    assert first["locked"] > 0


# --- who runs at the same time ------------------------------------------------------------


def test_environment_command_line_and_input_of_a_neighbour_are_nowhere(
    warden: LiveWarden,
) -> None:
    """Everything readable below /proc, /box, /tmp, /run and /etc is searched for the secret."""
    program_ = f"import os, time\nopen('/box/on', 'w').write('{SECRET}')\ntime.sleep(60)\n"
    files = {"probe.py": program_.encode(), SECRET: SECRET.encode()}
    secret = task(
        "/usr/bin/python3",
        "probe.py",
        SECRET,
        stdin=SECRET.encode(),
        env={"SECRET": SECRET},
        files=files,
        wall_ms=PATIENT_MS,
    )
    on = shell("until [ -e on ]; do sleep 0.02; done", wall_ms=PATIENT_MS)
    search = """
needle, found, read = 'leak-' + '5e7c' * 8, [], 0
for top in ('/proc', '/box', '/tmp', '/run', '/etc', '/dev/shm', '/var'):
    for folder, folders, names in os.walk(top):
        if folder.count('/') > 4:
            folders.clear()
        for name in [*names, *folders]:
            path = os.path.join(folder, name)
            if needle in path:
                found.append(path)
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    if needle in os.readlink(path):
                        found.append(path)
                    continue
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                read += 1
                if needle.encode() in os.read(descriptor, 1 << 16):
                    found.append(path)
            except OSError:
                pass
            finally:
                os.close(descriptor)
tell(found=found, read=read)
"""
    watched = warden.submit(job([secret, on]))
    try:
        eventually(lambda: (0, 1) in watched.results, "it is on")
        assert watched.results[0, 1].outcome == "completed"
        seen = see(warden, search, wall_ms=PATIENT_MS)
    finally:
        end(watched)
    # Only where its own source or command line says it, which it does not.
    assert seen["found"] == []
    assert seen["read"] > 100


OUTCOMES = {
    "exit": "completed",
    "flood": "output_limit",
    "kill": "signaled",
    "forbid": "policy_violation",
}


def test_eight_side_by_side_get_their_own_input_and_keep_their_own_output(
    warden: LiveWarden,
) -> None:
    """Some of them end by force, some flood: what each has is its own word and nothing else."""
    source = """
word = sys.stdin.buffer.read()
name = os.environ['NAME'].encode()
assert word == name * (len(word) // len(name)) and len(word) > 60_000
open('/box/copy', 'wb').write(word)
ending = sys.argv[1]
for _ in range(200 if ending == 'flood' else 1):
    os.write(1, word)
os.write(2, name)
if ending == 'kill':
    os.kill(os.getpid(), signal.SIGKILL)
if ending == 'forbid':
    syscall(165, 0, 0, 0, 0, 0)
"""
    endings = list(OUTCOMES)

    def one(number: int) -> None:
        name = f"<{number:03}-{SECRET}>"
        ending = endings[number % len(endings)]
        result = warden.run_one(
            attack(
                source,
                ending,
                stdin=name.encode() * 2000,
                env={"NAME": name},
                collect=("copy",),
                wall_ms=PATIENT_MS,
            )
        )
        assert result.outcome == OUTCOMES[ending], result.stats
        whole = name.encode() * 50_000
        assert result.stdout == whole[: len(result.stdout)]
        assert len(result.stdout) >= len(name) * 2000
        if ending != "flood":
            assert result.stderr == name.encode()
        assert result.files[0].data == whole[: len(name) * 2000]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(16)))


def test_watching_what_every_jail_has_tells_nothing_of_a_neighbour(warden: LiveWarden) -> None:
    """The small root, /etc and the devices: every jail has the same, and none may share them."""
    source = """
watcher = libc.inotify_init1(0o4000)
watched = {}
for path in ('/', '/etc', '/dev', '/run', '/usr', '/var', '/etc/passwd', '/etc/nsswitch.conf',
             '/etc/ld.so.cache', '/etc/hosts', '/dev/null', '/dev/zero', '/dev/urandom',
             '/usr/bin/env', '/usr/lib', '/proc', '/proc/sys/kernel/ostype'):
    number = libc.inotify_add_watch(watcher, path.encode(), 0xfff)
    if number >= 0:
        watched[number] = path
open('/box/on', 'w').close()
seen, end = set(), time.monotonic() + PAUSE
while time.monotonic() < end:
    time.sleep(0.02)
    try:
        data = os.read(watcher, 1 << 16)
    except BlockingIOError:
        continue
    while data:
        number, mask, _, length = struct.unpack_from('iIII', data)
        # Its own sibling, which waits in the same jail, reads programs and their libraries.
        seen.add((watched[number], mask & 0xfff))
        data = data[16 + length:]
tell(seen=sorted(seen), watched=len(watched))
""".replace("PAUSE", str(stretched(1.0)))
    # No sibling here: what is seen is the neighbour's.
    watched = warden.submit(job(attack(source, wall_ms=PATIENT_MS)))
    touch = "cat /etc/passwd /etc/hosts /etc/nsswitch.conf; env; id; ls / /etc /dev /usr /var /run"
    neighbour = shell(f"{touch}; head -c 9 /dev/zero; head -c 9 /dev/urandom; echo x > /dev/null")
    while not watched.gone.is_set():
        assert warden.run_one(neighbour).outcome == "completed"
    result = watched.results[0, 0]
    assert (result.outcome, result.stderr) == ("completed", b""), result
    assert told(result)["watched"] >= 10
    assert told(result)["seen"] == []


def test_a_lock_on_what_every_jail_has_is_no_lock_for_a_neighbour(warden: LiveWarden) -> None:
    paths = "/etc/passwd /etc/ld.so.cache /dev/null /dev/zero /etc /dev / /run /usr /usr/bin/env"
    lock = f"""
import fcntl
kept, got = [], {{}}
for path in {paths.split()!r}:
    kept.append(os.open(path, os.O_RDONLY))
    got[path] = attempt(fcntl.flock, kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
tell(**got)
"""
    watched = beside(warden, lock + "open('/box/on', 'w').close()")
    try:
        seen = see(warden, lock)
    finally:
        end(watched)
    assert seen == dict.fromkeys(paths.split(), "done")


def test_ports_and_names_of_a_neighbour_are_free(warden: LiveWarden) -> None:
    """Both take the same: neither is told that the other has it."""
    take = """
tcp = socket.create_server(('127.0.0.1', 8080))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 8080))
six = socket.socket(socket.AF_INET6); got = attempt(six.bind, ('::1', 8080))
name = socket.socket(socket.AF_UNIX); name.bind('\\0name')
segment = libc.shmget(7, 4096, 0o3600)  # IPC_CREAT | IPC_EXCL
open('/dev/shm/sem.name', 'x').close()
open('/tmp/name', 'x').close()
tell(segment=segment >= 0, got=got)
"""
    watched = beside(warden, take + "open('/box/on', 'w').close()")
    try:
        seen = see(warden, take)
    finally:
        end(watched)
    assert seen["segment"]
    assert seen["got"] in ("done", "EADDRNOTAVAIL", "EAFNOSUPPORT")


# --- memory that was somebody's -----------------------------------------------------------


@pytest.mark.heavy
def test_fresh_memory_is_zero_after_a_neighbour_filled_the_same(reused: LiveWarden) -> None:
    fill = """
import mmap
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[:] = b'leakleak' * (8 << 20)
open('/dev/shm/f', 'wb').write(m[:16 << 20])
tell(filled=m[-8:].decode())
"""
    look = """
import mmap
def dirty(data):
    return len(data) - data.count(0)
size = 48 << 20
plain = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
asked = attempt(mmap.mmap, -1, 1 << 20, flags=0x4000022)  # MAP_UNINITIALIZED
dirtied = {'private': dirty(plain[:])}
plain.close()
if asked == 'done':
    dirtied['uninitialised'] = dirty(mmap.mmap(-1, 8 << 20, flags=0x4000022)[:])
dirtied['shared'] = dirty(mmap.mmap(-1, 8 << 20)[:])
file = open('/dev/shm/f', 'w+b')
os.posix_fallocate(file.fileno(), 0, 8 << 20)
dirtied['allocated'] = dirty(os.pread(file.fileno(), 8 << 20, 0))
os.truncate('/dev/shm/f', 0)
os.truncate('/dev/shm/f', 8 << 20)
dirtied['truncated'] = dirty(os.pread(file.fileno(), 8 << 20, 0))
hidden = os.memfd_create('m')
os.truncate(hidden, 1 << 20)
dirtied['memfd'] = dirty(os.pread(hidden, 1 << 20, 0))
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 8 << 20, 0o1600)
dirtied['segment'] = dirty(ctypes.string_at(libc.shmat(segment, None, 0), 8 << 20))
libc.sbrk.restype = ctypes.c_void_p
grown = libc.sbrk(ctypes.c_long(4 << 20))
dirtied['heap'] = dirty(ctypes.string_at(grown, 4 << 20))
big = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
attempt(big.madvise, mmap.MADV_HUGEPAGE)
dirtied['huge'] = dirty(big[:])
tell(**dirtied)
"""
    filled = reused.run_one(program(fill))
    assert told(filled) == {"filled": "leakleak"}, filled
    looked = reused.run_one(program(look))
    assert (looked.outcome, looked.stderr) == ("completed", b""), looked
    assert set(told(looked).values()) == {0}, told(looked)
    assert len(told(looked)) >= 8


def test_the_end_of_a_page_of_a_file_is_zero(warden: LiveWarden) -> None:
    """Past a file's end, in its last page, lies nothing of who had the page before."""
    seen = see(
        warden,
        """
import mmap
dirty = 0
for folder in ('/box', '/tmp', '/dev/shm'):
    with open(folder + '/short', 'w+b') as file:
        file.write(b'x' * 5)
        file.flush()
        page = mmap.mmap(file.fileno(), 0)[:]
        at = libc.mmap
        at.restype = ctypes.c_void_p
        where = at(None, 4096, 1, 1, file.fileno(), ctypes.c_long(0))
        dirty += 4091 - ctypes.string_at(where, 4096)[5:].count(0)
tell(dirty=dirty)
""",
    )
    assert seen == {"dirty": 0}


# --- what is there for nobody -------------------------------------------------------------


def test_there_is_no_terminal_to_be_had(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import pty, termios
paths = ('/dev/tty', '/dev/ptmx', '/dev/pts', '/dev/pts/ptmx', '/dev/console', '/dev/tty0')
tell(
    opened={path: attempt(open, path) for path in paths},
    openpt=attempt(pty.openpty),
    tty=[os.isatty(n) for n in (0, 1, 2)],
    field=open('/proc/self/stat').read().rsplit(')')[1].split()[4],
    control=attempt(lambda: __import__('fcntl').ioctl(0, termios.TIOCSCTTY, 0)),
    foreground=attempt(os.tcgetpgrp, 0),
    leader=os.getsid(0) == os.getpid() == os.getpgrp(),
)
""",
    )
    assert set(seen["opened"].values()) == {"ENOENT"}
    assert seen["openpt"] != "done"
    assert (seen["tty"], seen["field"], seen["leader"]) == ([False] * 3, "0", True)
    assert {seen["control"], seen["foreground"]} <= {"ENOTTY", "EPERM", "EINVAL"}


def test_the_hosts_name_is_not_told_and_no_name_can_be_set(warden: LiveWarden) -> None:
    host = os.uname().nodename
    seen = see(
        warden,
        """
tell(
    name=[os.uname().nodename, socket.gethostname(), libc.gethostid() and 'an id'],
    domain=open('/proc/sys/kernel/domainname').read().strip(),
    file=open('/proc/sys/kernel/hostname').read().strip(),
    set=[syscall(170, b'mine', 4), syscall(171, b'mine', 4),
         attempt(open, '/proc/sys/kernel/hostname', 'w')],
    after=os.uname().nodename,
    told=[open(path).read() for path in ('/etc/hosts', '/etc/hostname', '/proc/version')],
)
""",
    )
    assert seen["name"][:2] == [seen["file"], seen["after"]] == ["gaoler", "gaoler"]
    assert seen["domain"] in ("(none)", "")
    assert seen["set"][:2] == ["EPERM", "EPERM"]
    assert seen["set"][2] in ("EACCES", "EROFS", "EPERM")
    assert host == "gaoler" or len(host) < 3 or not any(host in text for text in seen["told"])


def test_keys_can_neither_be_left_nor_found(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
tell(
    add=fate(lambda: syscall(248, b'user', b'name', b'secret', 6, -3)),
    ask=fate(lambda: syscall(249, b'user', b'name', None, -3)),
    control=fate(lambda: syscall(250, 0, -3, 0)),
    lists=[attempt(open, path) for path in ('/proc/keys', '/proc/key-users')],
)
""",
    )
    killed = ["signal", signal.SIGSYS]
    assert (seen["add"], seen["ask"], seen["control"]) == (killed, killed, killed)
    assert set(seen["lists"]) <= {"EACCES", "ENOENT"}


CRASHES = {
    "segv": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "quit": "os.kill(os.getpid(), signal.SIGQUIT)",
    "trap": "os.kill(os.getpid(), signal.SIGTRAP)",
    "child": "fate(os.abort); os.kill(os.getpid(), signal.SIGILL)",
    "filter": "syscall(165, 0, 0, 0, 0, 0)",
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_leaves_no_core_anywhere(warden: LiveWarden, crash: str, tmp_path: Path) -> None:
    """Neither a file, in whichever folder it stands, nor a program of the host's to take it."""
    source = """
import resource
kind = resource.RLIMIT_CORE
infinite = resource.RLIM_INFINITY
tell(
    limit=resource.getrlimit(kind),
    soft=attempt(resource.setrlimit, kind, (1, 1)),
    dumpable=syscall(157, 4, 1, 0, 0, 0),
    pattern=attempt(open, '/proc/sys/kernel/core_pattern', 'w'),
    filter=attempt(open, '/proc/self/coredump_filter', 'w'),
)
try:
    resource.setrlimit(kind, (infinite, infinite))
    tell(raised=True)
except (OSError, ValueError):
    tell(raised=False)
os.mkdir('/tmp/here') or os.chdir('/tmp/here' if len(sys.argv) > 1 else '/box')
open('small', 'w').close()
"""
    places = {Path(place): _names(Path(place)) for place in ("/", "/tmp", os.getcwd())}
    look = "find /box -type f; find / -xdev -name 'core*' -newer /box/probe.py -type f 2> /dev/null"
    (crashed,), (after,) = warden.run(
        attack(source + CRASHES[crash], file_bytes=64 * MIB),
        shell(look + "; true", wall_ms=PATIENT_MS),
    )
    seen = told(crashed)
    assert crashed.outcome == ("policy_violation" if crash == "filter" else "signaled"), crashed
    assert (seen["limit"], seen["raised"]) == ([1, 1], False)
    assert {seen["pattern"], seen["filter"]} <= {"EACCES", "EROFS", "EPERM"}
    assert sorted(after.stdout.decode().split()) == ["/box/probe.py", "/box/small"]
    for place, names in places.items():
        assert not {n for n in _names(place) - names if n.startswith("core")}, place
    assert _names(tmp_path) == set()


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_the_mount_table_names_nothing_of_another_request(warden: LiveWarden) -> None:
    """It may name its own UID and the toolchain's devices; nobody else's UID, group or path."""
    watched = beside(warden, "open('/box/on', 'w').close()")
    try:
        seen = see(
            warden,
            """
tell(mounts=open('/proc/self/mountinfo').read(), group=open('/proc/self/cgroup').read(),
     mine=int(open('/proc/self/uid_map').read().split()[1]))
""",
        )
    finally:
        end(watched)
    low, high = warden.settings.uid_range
    named = {
        word.partition("=")[2]
        for line in seen["mounts"].splitlines()
        for word in line.replace(",", " ").split()
        if word.startswith(("uid=", "gid="))
    }
    assert named <= {str(seen["mine"])}
    assert low <= seen["mine"] <= high
    assert "jail-" not in seen["mounts"]
    assert "jail-" not in seen["group"]


def test_a_uid_that_comes_again_owns_nothing_of_the_last_jail(reused: LiveWarden) -> None:
    """The same number on the host, request after request, and each time an empty world."""
    source = """
tell(uid=open('/proc/self/uid_map').read().split()[1],
     box=os.listdir('/box'), ino=os.stat('/box').st_dev)
open('/box/left', 'w').write('x')
"""
    seen = [told(reused.run_one(program(source))) for _ in range(3)]
    assert {each["uid"] for each in seen} == {str(ONE_UID)}
    assert [each["box"] for each in seen] == [[], [], []]


def test_a_descriptor_that_was_sent_does_not_reach_a_later_step(warden: LiveWarden) -> None:
    """A socket in /box outlives its task as a name alone: what was sent is gone with it."""
    leave = """
server = socket.socket(socket.AF_UNIX); server.bind('/box/way'); server.listen()
near = socket.socket(socket.AF_UNIX); near.connect('/box/way')
file = os.open('/tmp/secret', os.O_RDWR | os.O_CREAT); os.write(file, b'secret')
socket.send_fds(near, [b'x'], [file])
loop = socket.socketpair()  # it carries itself: only the kernel's collector finds it
socket.send_fds(loop[0], [b'x'], [loop[0].fileno(), loop[1].fileno(), file])
os._exit(0)
"""
    look = """
near = socket.socket(socket.AF_UNIX)
tell(there=os.path.exists('/box/way'), got=attempt(near.connect, '/box/way'),
     tmp=os.listdir('/tmp'))
"""
    _, (after,) = warden.run(program(leave), program(look))
    assert told(after) == {"there": True, "got": "ECONNREFUSED", "tmp": []}
