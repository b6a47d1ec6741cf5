"""Objects of the kernel that outlive a process or are found by name: none is anybody else's."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaoler.sandbox.job import Task
from tests.adversarial.calls import TRIED, let_through, raw, refused
from tests.adversarial.holding import held
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.hosting import MIB, LiveWarden, task

IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0
_libc = ctypes.CDLL(None, use_errno=True)

SYSTEM_V = """
IPC_CREAT, IPC_EXCL = 0o1000, 0o2000

def by_key(kind, key, flags):
    "The object's id, or the errno's name."
    ctypes.set_errno(0)
    call = getattr(libc, kind + 'get')
    number = {'shm': lambda: call(key, ctypes.c_size_t(4096), flags),
              'sem': lambda: call(key, 1, flags), 'msg': lambda: call(key, flags)}[kind]()
    return errno.errorcode[ctypes.get_errno()] if number < 0 else number

def listed(kind):
    "All objects that the kernel shows by index, without a key."
    found = []
    for index in range(64):
        data = ctypes.create_string_buffer(256)
        number = {'shm': lambda: libc.shmctl(index, 13, data),
                  'sem': lambda: libc.semctl(index, 0, 18, data),
                  'msg': lambda: libc.msgctl(index, 11, data)}[kind]()
        if number >= 0:
            found.append(number)
    return found
"""
KINDS = ("shm", "sem", "msg")


def _key() -> int:
    """One that nobody else has."""
    return random.SystemRandom().randrange(1 << 20, 1 << 30)


def _sibling(source: str) -> Task:
    """A second probe for a step in which there is one already."""
    files = {"sibling.py": (PRELUDE + source).encode()}
    return task("/usr/bin/python3", "sibling.py", files=files)


# Two tasks of a step go on together: each says where it is by a file, and waits for the other.
MEETING = """
def here(name):
    open(name, 'w').close()

def until(name):
    while not os.path.exists(name):
        time.sleep(0.005)
"""


# --- System V --------------------------------------------------------------------------------


@pytest.fixture
def host_objects() -> Iterator[int]:
    """Of each kind one on the host that everybody may use; gives their key."""
    key = _key()
    flags = IPC_CREAT | IPC_EXCL | 0o666
    shm = _libc.shmget(key, ctypes.c_size_t(4096), flags)
    sem = _libc.semget(key, 1, flags)
    msg = _libc.msgget(key, flags)
    assert min(shm, sem, msg) >= 0
    yield key
    _libc.shmctl(shm, IPC_RMID, None)
    _libc.semctl(sem, 0, IPC_RMID)
    _libc.msgctl(msg, IPC_RMID, None)


def _on_host(key: int) -> dict[str, list[str]]:
    """The host's objects with that key, as the kernel shows them."""
    return {
        kind: [
            line
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
            if int(line.split()[0]) == key
        ]
        for kind in KINDS
    }


def test_an_object_of_the_hosts_that_everybody_may_use_is_not_there(
    warden: LiveWarden, host_objects: int
) -> None:
    source = (
        SYSTEM_V
        + """
key = int(sys.argv[1])
tell(found={kind: by_key(kind, key, 0) for kind in ('shm', 'sem', 'msg')})
tell(listed={kind: listed(kind) for kind in ('shm', 'sem', 'msg')})
# With the same key it makes one of its own.
tell(made=[isinstance(by_key(k, key, IPC_CREAT | IPC_EXCL | 0o666), int)
           for k in ('shm', 'sem', 'msg')])
"""
    )
    before = _on_host(host_objects)
    seen = see(warden, source, str(host_objects))
    assert seen["found"] == dict.fromkeys(KINDS, "ENOENT")
    assert seen["listed"] == {kind: [] for kind in KINDS}
    assert seen["made"] == [True] * 3
    assert all(len(lines) == 1 for lines in before.values())
    assert _on_host(host_objects) == before


@pytest.mark.parametrize("kind", KINDS)
def test_two_requests_at_once_do_not_find_each_others_objects(
    warden: LiveWarden, kind: str
) -> None:
    make = SYSTEM_V + "assert by_key(sys.argv[1], int(sys.argv[2]), IPC_CREAT | 0o666) != 'EEXIST'"
    look = (
        SYSTEM_V
        + """
kind, key = sys.argv[1], int(sys.argv[2])
tell(found=by_key(kind, key, 0), listed=listed(kind))
tell(made=isinstance(by_key(kind, key, IPC_CREAT | IPC_EXCL | 0o666), int), mine=len(listed(kind)))
"""
    )
    key = _key()
    with held(warden, make, kind, str(key)):
        seen = see(warden, look, kind, str(key))
        assert _on_host(key)[kind] == []
    assert seen == {"found": "ENOENT", "listed": [], "made": True, "mine": 1}


def test_tasks_side_by_side_do_not_find_each_others_objects(warden: LiveWarden) -> None:
    key = _key()
    make = f"""
made = [by_key(kind, {key}, IPC_CREAT | 0o666) for kind in ('shm', 'sem', 'msg')]
here('made')
until('looked')
tell(made=[isinstance(number, int) for number in made], mine=len(listed('shm')))
"""
    look = f"""
until('made')
tell(found=[by_key(kind, {key}, 0) for kind in ('shm', 'sem', 'msg')])
tell(listed=[listed(kind) for kind in ('shm', 'sem', 'msg')])
# By number, as ids are small and can be guessed.
tell(guessed=[libc.shmctl(n, 0, None) for n in range(8)] + [libc.msgctl(n, 0, None)
              for n in range(8)] + [libc.semctl(n, 0, 0, 0) for n in range(8)])
here('looked')
"""
    head = SYSTEM_V + MEETING
    ((one, two),) = warden.run([attack(head + make), _sibling(head + look)])
    assert told(one) == {"made": [True] * 3, "mine": 1}
    assert told(two) == {"found": ["ENOENT"] * 3, "listed": [[]] * 3, "guessed": [-1] * 24}


def test_queues_semaphores_and_named_memory_do_not_last_until_the_next_step(
    warden: LiveWarden,
) -> None:
    key = _key()
    make = f"""
made = [by_key(kind, {key}, IPC_CREAT | 0o666) for kind in ('shm', 'sem', 'msg')]
queue = libc.mq_open(b'/left', os.O_RDWR | os.O_CREAT, 0o666, None)
open('/dev/shm/left', 'w').write('x')
tell(made=[isinstance(number, int) for number in made])
"""
    look = f"""
tell(found=[by_key(kind, {key}, 0) for kind in ('shm', 'sem', 'msg')])
tell(listed=[listed(kind) for kind in ('shm', 'sem', 'msg')])
tell(queue=libc.mq_open(b'/left', os.O_RDWR), shm=os.listdir('/dev/shm'))
"""
    first, second = warden.run(attack(SYSTEM_V + make), attack(SYSTEM_V + look))
    assert told(first[0]) == {"made": [True] * 3}
    assert told(second[0]) == {
        "found": ["ENOENT"] * 3,
        "listed": [[]] * 3,
        "queue": -1,
        "shm": [],
    }
    assert _on_host(key) == {kind: [] for kind in KINDS}


def test_shared_memory_in_huge_pages_is_refused_and_takes_none(warden: LiveWarden) -> None:
    source = (
        raw("shmget", "memfd_create", "mmap")
        + """
HUGE = 0o4000
def sizes(flag, shift):
    return [flag, flag | 21 << shift, flag | 30 << shift]  # any, 2 MiB, 1 GiB
# Huge pages may be had where the host has set some aside, which is what is counted out here.
made = []
for flags in sizes(HUGE, 26):
    made.append(syscall(NR_shmget, 0, 1 << 21, 0o1600 | flags))
for flags in sizes(4, 26):
    fd = syscall(NR_memfd_create, b'huge', flags)
    made.append(attempt(os.posix_fallocate, fd, 0, 1 << 21) if isinstance(fd, int) else fd)
for flags in sizes(0x40000, 26):
    made.append(syscall(NR_mmap, 0, 1 << 21, 3, 0x22 | flags, -1, 0))
tell(made=made)
"""
    )
    before = _huge_pages()
    seen = see(warden, source)
    assert [answer for answer in seen["made"] if not isinstance(answer, str)] == []
    assert "done" not in seen["made"]
    assert _huge_pages() == before


def _huge_pages() -> list[str]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return [line for line in lines if line.startswith("HugePages_")]


def test_shared_memory_that_no_process_has_mapped_counts_as_the_tasks(warden: LiveWarden) -> None:
    source = """
size = 8 << 20
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
for _ in range(16):
    segment = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, size)
    libc.shmdt(place)
tell(filled=True)
"""
    result = warden.run_one(attack(source, memory_bytes=64 * MIB))
    assert (result.outcome, told(result)) == ("memory_limit", {})
    assert result.stats.memory_peak_bytes <= 65 * MIB


def test_the_limits_of_shared_objects_cannot_be_raised(warden: LiveWarden) -> None:
    source = (
        SYSTEM_V
        + """
def write(path):
    held = os.open(path, os.O_WRONLY)
    os.write(held, b'1000000')
names = ('kernel/shmmax kernel/shmall kernel/shmmni kernel/msgmax kernel/msgmnb kernel/msgmni '
         'kernel/sem kernel/shm_rmid_forced kernel/msg_next_id kernel/shm_next_id '
         'fs/mqueue/msg_max fs/mqueue/msgsize_max fs/mqueue/queues_max fs/pipe-max-size')
answers = {name: attempt(write, '/proc/sys/' + name) for name in names.split()}
# A queue's own size may be lowered by anybody, raised by none.
queue = by_key('msg', 0, 0o600)
data = ctypes.create_string_buffer(256)
libc.msgctl(queue, 2, data)
fields = bytearray(data.raw)
struct.pack_into('Q', fields, 88, 1 << 30)  # msg_qbytes
ctypes.set_errno(0)
libc.msgctl(queue, 1, bytes(fields))
answers['queue'] = errno.errorcode.get(ctypes.get_errno(), 'done')
tell(answers=answers)
"""
    )
    shown = {name: _sysctl(name) for name in ("kernel/shmmax", "kernel/msgmni", "kernel/sem")}
    assert let_through(see(warden, source)["answers"]) == {}
    assert {name: _sysctl(name) for name in shown} == shown


def _sysctl(name: str) -> str:
    return Path(f"/proc/sys/{name}").read_text()


# --- POSIX: queues, memory, semaphores -------------------------------------------------------


def test_two_requests_at_once_share_no_queue_and_the_hosts_are_not_there(
    warden: LiveWarden,
) -> None:
    name = f"/gaoler-test-{_key()}".encode()
    host = _libc.mq_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666, None)
    assert host >= 0
    try:
        _libc.fchmod(host, 0o666)
        # It may be that none can be made at all.
        make = "libc.mq_open(b'/mine', os.O_RDWR | os.O_CREAT, 0o666, None)"
        look = f"""
def opened(name, flags=os.O_RDWR):
    ctypes.set_errno(0)
    held = libc.mq_open(name, flags)
    return errno.errorcode[ctypes.get_errno()] if held < 0 else held
tell(mine=opened(b'/mine'), host=opened({name!r}))
tell(unlinked=[libc.mq_unlink(b'/mine'), libc.mq_unlink({name!r})])
tell(folder=attempt(os.listdir, '/dev/mqueue'))
"""
        with held(warden, make):
            seen = see(warden, look)
        assert let_through({"mine": seen["mine"], "host": seen["host"]}) == {}
        assert (seen["unlinked"], seen["folder"]) == ([-1, -1], "ENOENT")
        again = _libc.mq_open(name, os.O_RDWR)
        assert again >= 0  # it is still there
        os.close(again)
    finally:
        os.close(host)
        _libc.mq_unlink(name)


def test_message_queues_are_bounded_by_the_users_limit(warden: LiveWarden) -> None:
    source = """
made, why = [], None
while len(made) < 1000:
    ctypes.set_errno(0)
    queue = libc.mq_open(b'/q%d' % len(made), os.O_RDWR | os.O_CREAT, 0o600, None)
    if queue < 0:
        why = errno.errorcode[ctypes.get_errno()]
        break
    made.append(queue)
tell(made=len(made), why=why)
"""
    seen = see(warden, source)
    # 1 MiB by each queue's own account: ten messages of 8 KiB.
    assert seen["made"] <= 16
    assert seen["why"] in ("EMFILE", "ENOSPC", "ENOMEM", "EACCES", "ENOSYS")


def test_shared_memory_by_name_is_the_tasks_own_and_not_the_hosts(warden: LiveWarden) -> None:
    name = f"gaoler-test-{_key()}"
    host = Path("/dev/shm") / name
    host.write_text("the host's")
    host.chmod(0o666)
    try:
        make = "open('/dev/shm/mine', 'w').write('mine')"
        look = f"""
from multiprocessing import shared_memory
tell(host=attempt(open, '/dev/shm/{name}'), mine=attempt(open, '/dev/shm/mine'))
tell(by_name=attempt(shared_memory.SharedMemory, '{name}'), listed=os.listdir('/dev/shm'))
open('/dev/shm/{name}', 'w').write('the task\\'s')
"""
        with held(warden, make):
            assert not Path("/dev/shm/mine").exists()
            seen = see(warden, look)
        assert (seen["host"], seen["mine"], seen["by_name"]) == ("ENOENT",) * 3
        assert seen["listed"] == []
        assert host.read_text() == "the host's"
    finally:
        host.unlink()


def test_a_named_semaphore_of_one_task_is_not_its_siblings(warden: LiveWarden) -> None:
    opened = """
libc.sem_open.restype = ctypes.c_void_p
def semaphore(flags, value=0):
    ctypes.set_errno(0)
    found = libc.sem_open(b'/turn', flags, 0o666, value)
    return 'there' if found else errno.errorcode[ctypes.get_errno()]
"""
    make = "tell(made=semaphore(os.O_CREAT | os.O_EXCL, 1))\nhere('made')\nuntil('looked')"
    look = """
until('made')
tell(found=semaphore(0), own=semaphore(os.O_CREAT | os.O_EXCL), tmp=os.listdir('/tmp'))
here('looked')
"""
    head = MEETING + opened
    make = "open('/tmp/mine', 'w').close()\n" + make
    ((one, two),) = warden.run([attack(head + make), _sibling(head + look)])
    assert told(one) == {"made": "there"}
    assert told(two) == {"found": "ENOENT", "own": "there", "tmp": []}


def test_memory_without_a_name_is_found_by_no_other_task(warden: LiveWarden) -> None:
    """Not even by its holder's number: each has a /proc of its own."""
    make = """
held = os.memfd_create('secret')
os.write(held, b'a secret')
os.dup2(held, 200)
here('made')
until('looked')
tell(pid=os.getpid())
"""
    look = """
until('made')
found = {}
for pid in range(1, 64):
    for path in ('/proc/%d/fd/200' % pid, '/proc/%d/map_files' % pid, '/proc/%d/cwd' % pid):
        if pid != os.getpid():
            found[path] = attempt(os.stat, path)
tell(found=sorted(set(found.values())), links=[p for p, a in found.items() if a == 'done'])
here('looked')
"""
    ((_, two),) = warden.run([attack(MEETING + make), _sibling(MEETING + look)])
    seen = told(two)
    assert seen["links"] == []
    assert set(seen["found"]) <= {"ENOENT", "EACCES", "EPERM"}


# --- sockets between tasks -------------------------------------------------------------------


def test_an_abstract_socket_of_one_task_is_not_its_siblings(warden: LiveWarden) -> None:
    make = """
listeners = []
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind('\\0gaoler %d' % kind)
    if kind != socket.SOCK_DGRAM:
        listener.listen()
    listener.setblocking(False)
    listeners.append(listener)
here('made')
until('looked')
import select
tell(knocked=len(select.select(listeners, [], [], 0)[0]))
"""
    look = """
until('made')
answers = {}
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    answers[str(kind)] = attempt(socket.socket(socket.AF_UNIX, kind).connect, '\\0gaoler %d' % kind)
tell(answers=answers)
here('looked')
"""
    ((one, two),) = warden.run([attack(MEETING + make), _sibling(MEETING + look)])
    assert let_through(told(two)["answers"]) == {}
    assert told(one) == {"knocked": 0}


# Siblings may do this: they are not protected from each other.  What each has is what it had.
GIVE = (
    MEETING
    + """
import array
def give(listener, descriptors):
    peer, _ = listener.accept()
    socket.send_fds(peer, [b'x'], descriptors)
    return peer
def take(count):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect('meet')
    _, descriptors, _, _ = socket.recv_fds(peer, 1, count)
    return peer, descriptors
def meet():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('meet')
    listener.listen()
    here('made')
    return listener
"""
)


def test_a_siblings_descriptors_open_nothing_that_neither_of_them_could(
    warden: LiveWarden,
) -> None:
    gives = """
folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY)
           for path in ('/', '/proc', '/dev/shm', '/tmp', '/proc/self/ns')]
peer = give(meet(), [*folders, os.open('/proc/self/ns/user', os.O_RDONLY)])
peer.recv(1)
tell(ids=os.getresuid())
"""
    takes = (
        TRIED
        + raw("setns")
        + """
until('made')
peer, (root, proc, shm, tmp, folder, user) = take(6)
answers = {}
for name in ('1/environ', '1/root', '1/mem', '1/ns/pid', 'sys/kernel/core_pattern', 'kmsg',
             'sysrq-trigger', 'self/../1/fd'):
    answers['proc ' + name] = attempt(os.open, name, os.O_RDWR, dir_fd=proc)
for name in ('etc/shadow', 'root', 'home', '../../../etc/shadow', 'proc/1/root/etc/shadow'):
    answers['root ' + name] = attempt(os.open, name, os.O_RDONLY, dir_fd=root)
for name in ('usr/new', 'etc/new', 'new'):
    answers['root ' + name] = attempt(os.open, name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=root)
for held in (shm, tmp):
    answers['device %d' % held] = attempt(os.mknod, 'disk', stat.S_IFBLK, 1, dir_fd=held)
answers['namespace'] = tried(syscall, NR_setns, user, 0x10000000)
answers['chroot'] = tried(lambda: (os.fchdir(root), os.chroot('.')))
os.fchdir(root)
for _ in range(32):
    os.chdir('..')
tell(answers=answers, top=sorted(os.listdir('.')), ids=os.getresuid())
peer.send(b'x')
"""
    )
    ((one, two),) = warden.run([attack(GIVE + gives), _sibling(GIVE + takes)])
    assert (one.outcome, one.stderr, two.stderr) == ("completed", b"", b"")
    seen = told(two)
    assert {n: a for n, a in seen["answers"].items() if not refused(a) and a != "EISDIR"} == {}
    assert {"box", "usr"} <= set(seen["top"])
    assert not {"root", "home", "sys", "work"} & set(seen["top"])
    assert seen["ids"] == told(one)["ids"] == [1000] * 3


def test_a_siblings_process_cannot_be_ended_by_a_handle_that_it_gives(warden: LiveWarden) -> None:
    gives = """
listener = meet()
peer = give(listener, [os.pidfd_open(os.getpid())])
peer.recv(1)
tell(alive=True)
"""
    takes = (
        TRIED
        + raw("pidfd_send_signal", "pidfd_getfd", "setns")
        + """
until('made')
peer, (handle,) = take(1)
answers = {
    'kill': syscall(NR_pidfd_send_signal, handle, signal.SIGKILL, None, 0),
    'group': syscall(NR_pidfd_send_signal, handle, signal.SIGKILL, None, 4),
    'descriptor': tried(syscall, NR_pidfd_getfd, handle, 0, 0),
    'namespace': tried(syscall, NR_setns, handle, 0x10000000),
}
# And the one that the kernel makes of whoever is connected.
try:
    peers = peer.getsockopt(socket.SOL_SOCKET, 77)  # SO_PEERPIDFD
    answers['peer'] = syscall(NR_pidfd_send_signal, peers, signal.SIGKILL, None, 0)
except OSError:
    pass
pid, uid, gid = struct.unpack('iii', peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
tell(answers=answers, peer=[pid, uid])
peer.send(b'x')
"""
    )
    ((one, two),) = warden.run([attack(GIVE + gives), _sibling(GIVE + takes)])
    assert told(one) == {"alive": True}
    seen = told(two)
    assert let_through(seen["answers"]) == {}
    # No number of another PID namespace can be said here, and the user is the same.
    assert seen["peer"] == [0, 1000]


def test_nobody_can_say_over_a_socket_that_it_is_somebody_else(warden: LiveWarden) -> None:
    source = (
        TRIED
        + """
ours, theirs = socket.socketpair()
theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
def claim(pid, uid, gid):
    data = struct.pack('iii', pid, uid, gid)
    ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, data)])
me = os.getpid()
claims = {'root': (me, 0, 0), 'group': (me, 1000, 0), 'nobody': (me, 65534, 1000),
          'init': (1, 1000, 1000), 'all': (1, 0, 0), 'no user': (me, -1, -1)}
tell(answers={name: attempt(claim, *claimed) for name, claimed in claims.items()})
claim(me, 1000, 1000)
_, [(_, _, data)], _, _ = theirs.recvmsg(1, 64)
tell(true=struct.unpack('iii', data)[1:])
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["true"] == [1000, 1000]


def test_descriptors_in_flight_are_counted_and_gone_with_the_task(warden: LiveWarden) -> None:
    source = """
import resource
ours, theirs = socket.socketpair()
sent, why = 0, None
null = os.open('/dev/null', os.O_RDONLY)
pairs = [(ours, theirs)]
while why is None and sent < 20_000:
    try:
        # Each pair also holds itself: only the kernel's own collection frees it.
        socket.send_fds(pairs[-1][0], [b'x'], [null] * 200 + [pairs[-1][1].fileno()])
        sent += 201
        if sent % 2010 == 0:
            pairs.append(socket.socketpair())
    except OSError as error:
        why = errno.errorcode[error.errno]
        pairs.append(socket.socketpair()) if why == 'EAGAIN' else None
tell(sent=sent, why=why, most=resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""
    before = _open_on_host()
    seen = see(warden, source)
    assert seen["why"] == "ETOOMANYREFS"
    assert seen["sent"] <= seen["most"] + 202
    assert _open_on_host() < before + 20_000


def _open_on_host() -> int:
    return int(Path("/proc/sys/fs/file-nr").read_text().split()[0])


# --- names of the machine --------------------------------------------------------------------


def test_the_machines_names_can_be_neither_set_nor_learnt(warden: LiveWarden) -> None:
    source = (
        raw("sethostname", "setdomainname")
        + """
def write(name):
    held = os.open('/proc/sys/kernel/' + name, os.O_WRONLY)
    os.write(held, b'taken')
answers = {
    'host': syscall(NR_sethostname, b'taken', 5), 'domain': syscall(NR_setdomainname, b'taken', 5),
    'empty': syscall(NR_sethostname, b'', 0), 'python': attempt(socket.sethostname, 'taken'),
    'file': attempt(write, 'hostname'), 'domain file': attempt(write, 'domainname'),
}
tell(answers=answers, names=[os.uname().nodename, socket.gethostname(),
     open('/proc/sys/kernel/hostname').read().strip(), open('/etc/hostname').read().strip()])
"""
    )
    before = (os.uname().nodename, _sysctl("kernel/domainname"))
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert set(seen["names"]) == {"gaoler"}
    assert (os.uname().nodename, _sysctl("kernel/domainname")) == before


def test_a_path_socket_of_the_hosts_that_everybody_may_use_is_out_of_reach(
    warden: LiveWarden, tmp_path: Path
) -> None:
    listeners = []
    places = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    name = f"gaoler-test-{_key()}"
    try:
        for place in places:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(place / name))
            os.chmod(place / name, 0o777)
            listener.listen()
            listener.setblocking(False)
            listeners.append(listener)
        # And those that are usually found on a host, the warden's own first.
        usual = [f"{warden.spec.runtime_dir}/warden.sock", "/run/dbus/system_bus_socket"]
        usual += ["/run/systemd/notify", "/var/run/docker.sock", "/run/containerd/containerd.sock"]
        usual += ["/run/systemd/journal/socket", "/dev/log", "/var/run/nscd/socket"]
        source = """
answers = {path: attempt(socket.socket(socket.AF_UNIX, kind).connect, path)
           for path in sys.argv[1:] for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)}
tell(answers=answers)
"""
        seen = see(warden, source, *(str(place / name) for place in places), *usual)
        assert set(seen["answers"].values()) == {"ENOENT"}
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()
    finally:
        for listener, place in zip(listeners, places, strict=False):
            listener.close()
            (place / name).unlink()


def test_objects_of_a_task_that_was_killed_are_gone_as_well(warden: LiveWarden) -> None:
    key = _key()
    source = (
        SYSTEM_V
        + f"""
made = [by_key(kind, {key}, IPC_CREAT | 0o666) for kind in ('shm', 'sem', 'msg')]
libc.mq_open(b'/left', os.O_RDWR | os.O_CREAT, 0o666, None)
open('/dev/shm/left', 'w').write('x' * 4096)
open('/tmp/left', 'w').write('x' * 4096)
"""
    )
    mounted = _mounts()
    with held(warden, source) as pid:
        # They exist: in the task's own namespace, which its /proc file leads to.
        shown = subprocess.run(
            ["nsenter", "--target", str(pid), "--ipc", "cat", "/proc/sysvipc/shm"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(key) in shown.stdout
    assert _on_host(key) == {kind: [] for kind in KINDS}
    assert _mounts() == mounted
    assert not Path("/dev/shm/left").exists()
    assert not Path("/tmp/left").exists()


def _mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def test_each_task_has_names_of_its_own_for_the_host(warden: LiveWarden) -> None:
    """No name can be set; were there a way, it would be nobody else's name."""
    source = "tell(names=os.readlink('/proc/self/ns/uts'))"
    results = warden.run(attack(source), attack(source))
    seen = {told(result)["names"] for (result,) in results}
    assert warden.process is not None
    seen |= {os.readlink(f"/proc/{pid}/ns/uts") for pid in ("self", warden.process.pid)}
    assert len(seen) == 4
