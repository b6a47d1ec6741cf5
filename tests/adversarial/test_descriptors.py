"""Descriptors: a task has three pipes, and nothing that it does to them is anybody else's harm."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gaoler.sandbox import init, wire
from gaoler.sandbox.job import Stats, TaskResult
from tests.adversarial.holding import held
from tests.adversarial.probing import attack, see, told
from tests.hosting import MIB, LiveWarden, piped, process_tree, shell, task

DENIED = {"EPERM", "EACCES", "EROFS"}
# The descriptors that are open, by asking the kernel for each number.
OPEN = """
import fcntl
def open_numbers(limit=8192):
    found = []
    for number in range(limit):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
            found.append(number)
        except OSError:
            pass
    return found
"""


# --- what there is ------------------------------------------------------------------------


def test_no_number_but_three_is_open_in_a_program_its_child_or_after_exec(
    warden: LiveWarden,
) -> None:
    child = "import json, sys\n" + OPEN + "json.dump(open_numbers(), sys.stdout)"
    seen = see(
        warden,
        OPEN
        + """
import subprocess
tell(mine=open_numbers())
def look():
    return 0 if open_numbers() == [0, 1, 2] else 1
tell(forked=fate(look))
said = subprocess.run([sys.executable, '-c', sys.argv[1]], close_fds=False, capture_output=True)
tell(after=json.loads(said.stdout))
""",
        child,
    )
    assert seen == {"mine": [0, 1, 2], "forked": ["exit", 0], "after": [0, 1, 2]}


def test_a_program_that_is_started_without_an_interpreter_has_three_too(
    warden: LiveWarden,
) -> None:
    """ls opens the folder that it lists: that is its fourth."""
    result = warden.run_one(task("/bin/ls", "-l", "/proc/self/fd"))
    names = [line.split()[-3] for line in result.stdout.decode().splitlines() if "->" in line]
    assert names == ["0", "1", "2", "3"]


def test_from_outside_its_descriptors_are_pipes_that_only_its_supervisor_shares(
    warden: LiveWarden,
) -> None:
    with held(warden, "") as pid:
        mine = _links(pid)
        assert set(mine) == {"0", "1", "2"}
        assert all(link.startswith("pipe:") for link in mine.values())
        tree = process_tree(os.getpid())
        sharing = {
            part
            for part in ("warden", "jailer", "supervisor", "init")
            for other in tree[part]
            if set(_links(other).values()) & set(mine.values())
        }
        assert sharing == {"supervisor"}
        assert not [line for line in _maps(pid) if "memfd:" in line or "job" in line]


def _links(pid: int) -> dict[str, str]:
    folder = f"/proc/{pid}/fd"
    return {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}


def _maps(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


def test_the_input_of_a_later_step_is_nowhere_in_an_earlier_program(warden: LiveWarden) -> None:
    """The job lies in one memfd: nobody but its own process may hold a page of it."""
    secret = os.urandom(16).hex()
    source = """
import re
half, other = sys.argv[1], sys.argv[2]
found = []
with open('/proc/self/mem', 'rb', buffering=0) as memory:
    for line in open('/proc/self/maps'):
        low, high, rights = re.match('([0-9a-f]+)-([0-9a-f]+) (\\\\S+)', line).groups()
        if rights[0] != 'r' or '[v' in line:
            continue
        try:
            memory.seek(int(low, 16))
            data = memory.read(min(int(high, 16) - int(low, 16), 64 << 20))
        except (OSError, OverflowError):
            continue
        at = -1
        while (at := data.find(half.encode(), at + 1)) >= 0:
            if data[at + len(half):at + 2 * len(half)] == other.encode():
                found.append(line)
for top in ('/box', '/tmp', '/dev/shm'):
    for folder, _, names in os.walk(top):
        found += [n for n in names if n != 'probe.py'
                  and (half + other) in open(os.path.join(folder, n), errors='replace').read()]
tell(found=found)
"""
    (first,), (second,) = warden.run(
        attack(source, secret[:16], secret[16:]),
        task("/bin/cat", "f", stdin=secret.encode(), files={"f": secret.encode()}),
    )
    assert told(first) == {"found": []}
    assert second.stdout.decode() == secret


# --- a folder or file behind a number (CVE-2024-21626, CVE-2019-5736) ----------------------


def test_no_descriptor_is_a_way_out_for_a_working_folder_or_a_command(warden: LiveWarden) -> None:
    """runc's leak of 2024: a current folder, or a program, named through /proc/self/fd."""
    numbers = (3, 4, 5, 7)
    plant = "; ".join(f"ln -s /proc/self/fd/{n} l{n}" for n in numbers)
    (_,), *results = warden.run(
        shell(plant),
        *(task("/bin/pwd", working_dir=f"l{n}") for n in numbers),
        *(task(f"/proc/self/fd/{n}/../../../bin/pwd") for n in numbers),
        *(task(f"/proc/self/fd/{n}") for n in numbers),
    )
    for (result,) in results:
        assert result.stdout == b"", result
        assert result.reason in {"working_dir", "command_not_found", "not_executable"}, result


@pytest.mark.parametrize(
    ("cmd", "env", "files"),
    [
        ("/proc/self/exe", {}, {}),
        ("/proc/thread-self/exe", {}, {}),
        ("/proc/self/root/proc/self/exe", {}, {}),
        ("exe", {"PATH": "/proc/self"}, {}),
        ("/box/script", {}, {"script": b"#!/proc/self/exe\n"}),
        ("./link", {}, {}),
    ],
)
def test_the_hosts_own_interpreter_cannot_be_run_in_its_place(
    warden: LiveWarden, cmd: str, env: dict[str, str], files: dict[str, bytes]
) -> None:
    """Before exec /proc/self/exe is the service's program, on the host's mount."""
    code = "print(open('/proc/self/maps').read())"
    (_,), (result,) = warden.run(
        shell("ln -s /proc/self/exe link"), task(cmd, "-c", code, env=env, files=files)
    )
    assert (result.outcome, result.reason) == ("completed", "not_executable"), result
    assert result.stdout == b""


def test_the_program_that_runs_can_be_overwritten_by_no_name(warden: LiveWarden) -> None:
    """runc's hole of 2019: /proc/self/exe kept open until nobody runs it any more."""
    tool = os.path.realpath("/usr/bin/python3")
    before = os.stat(tool)
    seen = see(
        warden,
        """
import subprocess
kept = os.open('/proc/self/exe', os.O_PATH)
child = subprocess.Popen(['/bin/sleep', '60'])
other = os.open('/proc/%d/exe' % child.pid, os.O_PATH)
words = {}
def keep(name, path):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        words.setdefault(name, set()).add(attempt(os.open, path, flags))
    words[name] |= {attempt(os.truncate, path, 0), attempt(os.chmod, path, 0o777)}
keep('running', '/proc/self/exe'); keep('kept', '/proc/self/fd/%d' % kept)
keep('child', '/proc/%d/exe' % child.pid)
child.kill(); child.wait()
keep('dead', '/proc/self/fd/%d' % other)        # nobody runs it now
tell(**{name: sorted(met) for name, met in words.items()})
""",
    )
    for name, words in seen.items():
        assert set(words) <= DENIED | {"ETXTBSY"}, (name, words)
    after = os.stat(tool)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


# --- frames -------------------------------------------------------------------------------


def _forged() -> dict[str, bytes]:
    """What the processes around a task say to each other, in its favour."""
    good = TaskResult("completed", exit_code=0, stdout=b"forged", stats=Stats(wall_ms=1))
    return {
        "result": wire.frame(wire.TASK_DONE, wire.pack_result(0, 0, good)),
        "finished": wire.json_frame(wire.FINISHED, {"exec_ns": 1}),
        "failed": wire.json_frame(wire.FAILED, {"stage": "x", "errno": 0, "started": False}),
        "report": init.REPORT.pack(0, 1),
        "exec": json.dumps({"exec_ns": 1, "cpu_ns": [0, 0]}).encode(),
        "refused": json.dumps({"refused": "bad_path"}).encode(),
        "entry": struct.pack("<IBQ", 3, 0, 6) + b"outforged",
    }


@pytest.mark.parametrize("kind", list(_forged()))
def test_a_frame_that_is_written_to_every_descriptor_is_output_and_no_more(
    warden: LiveWarden, kind: str
) -> None:
    """By number, by name, by new openings of either direction, and from a child."""
    frame = _forged()[kind]
    source = """
import fcntl
frame = bytes.fromhex(sys.argv[1])
def pour(number):
    try:
        fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK)
        return os.write(number, frame)
    except OSError:
        return 0
written = [0, 0, 0]
for number in range(1024):
    if number < 3:
        written[number] += pour(number)
    elif pour(number):
        os._exit(99)
for number in range(3):
    for flags in (os.O_WRONLY, os.O_RDWR):
        try:
            again = os.open('/proc/self/fd/%d' % number, flags | os.O_NONBLOCK)
        except OSError:
            continue
        written[number] += pour(again)
        os.close(again)
if os.fork() == 0:
    os._exit(0 if os.write(2, frame) else 1)
os.wait()
open('out', 'w').write('mine')
os._exit(7)
"""
    (first,), (second,) = warden.run(
        attack(source, frame.hex(), collect=("out",)), shell("echo next; exit 3")
    )
    assert (first.outcome, first.reason, first.exit_code) == ("completed", None, 7)
    assert first.stdout == frame * (len(first.stdout) // len(frame))
    assert first.stderr == frame * (len(first.stderr) // len(frame))
    assert first.stdout
    assert first.stderr
    assert [(f.path, f.data, f.error) for f in first.files] == [("out", b"mine", None)]
    assert (second.outcome, second.exit_code, second.stdout) == ("completed", 3, b"next\n")


def test_no_socket_of_the_jails_own_processes_can_be_found(warden: LiveWarden) -> None:
    """Not in its tables, by a guess at names, nor by a socket that answers to it."""
    seen = see(
        warden,
        """
lines = open('/proc/net/unix').read().splitlines()[1:]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
names = ['', 'gaoler', 'job', 'warden', 'supervisor', 'jailer', 'init', 'report', '00000', '00001']
met = {attempt(sock.connect, '\\0' + name) for name in names}
def peers(number):
    socket.socket(fileno=os.dup(number)).getpeername()
tell(listed=len(lines), met=sorted(met), peers=sorted({attempt(peers, n) for n in (0, 1, 2)}))
""",
    )
    assert seen["listed"] == 0
    assert set(seen["met"]) <= {"ECONNREFUSED", "EPERM", "EINVAL", "EPROTOTYPE"}
    assert seen["peers"] == ["ENOTSOCK"]


# --- what a task does to its own three ----------------------------------------------------


def test_a_task_that_closes_all_three_ends_as_any_other(warden: LiveWarden) -> None:
    (first,), (second,) = warden.run(
        attack(
            """
os.write(1, b'before'); os.closerange(0, 3)
assert os.open('/box/a', os.O_CREAT | os.O_RDWR) == 0   # the numbers are free for files
assert os.open('/box/b', os.O_CREAT | os.O_RDWR) == 1
os.write(1, b'not output')
time.sleep(0.05)
os._exit(5)
""",
            stdin=b"x" * MIB,
            collect=("b",),
        ),
        shell("cat; echo end", stdin=b"next "),
    )
    assert (first.outcome, first.exit_code, first.stdout) == ("completed", 5, b"before")
    assert first.files[0].data == b"not output"
    assert second.stdout == b"next end\n"


def test_what_a_task_sets_on_its_pipes_is_not_what_the_supervisor_sees(
    warden: LiveWarden,
) -> None:
    """O_NONBLOCK, O_ASYNC and the like belong to an open file, and that is not shared."""
    result = warden.run_one(
        attack(
            """
import fcntl
for number in (0, 1, 2):
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    tell(**{str(number): flags & (os.O_NONBLOCK | os.O_ASYNC | os.O_APPEND)})
    fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_ASYNC)
total = 0
try:
    while True:
        total += os.write(2, b'x' * 4096)       # far more than the supervisor can take at once
        if total > 300 << 10:
            break
except BlockingIOError:
    pass
read = 0
while read < 200000:
    try:
        read += len(os.read(0, 65536))
    except BlockingIOError:
        time.sleep(0.001)
tell(read=read, total=total)
""",
            stdin=b"i" * 200_000,
        )
    )
    seen = told(result)
    assert (result.outcome, result.exit_code) == ("completed", 0)
    assert [seen[n] for n in "012"] == [0, 0, 0]
    assert seen["read"] == 200_000
    assert result.stderr == b"x" * seen["total"]


def test_pipes_of_any_size_carry_everything(warden: LiveWarden) -> None:
    """The smallest makes more work, the largest holds more memory: it is bounded and its own."""
    result = warden.run_one(
        attack(
            """
import fcntl
sizes = {}
for number in (0, 1, 2):
    for size in (1 << 31, 1 << 24, 1 << 20, 4096):
        sizes['%d %d' % (number, size)] = attempt(fcntl.fcntl, number, 1031, size & 0x7fffffff)
data = sys.stdin.buffer.read()
os.write(2, json.dumps(sizes).encode())
left = memoryview(data)
while left:
    left = left[os.write(1, left):]
""",
            stdin=bytes(range(256)) * 2000,
        )
    )
    assert result.stdout == bytes(range(256)) * 2000
    sizes = json.loads(result.stderr)
    assert {sizes[f"{n} {1 << 24}"] for n in range(3)} <= {"EPERM", "EBUSY"}
    assert {sizes[f"{n} 4096"] for n in range(3)} <= {"done", "EBUSY"}


def test_packets_and_spliced_pages_arrive_whole(warden: LiveWarden) -> None:
    """O_DIRECT makes packets of writes; vmsplice and tee give the task's own pages away."""
    result = warden.run_one(
        attack(
            """
import fcntl, mmap
fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)
for letter in (b'a', b'b', b'c'):
    os.write(1, letter * 1000)
fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY)
page = mmap.mmap(-1, 4096)
page[:] = b'd' * 4096
class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
part = Part(ctypes.addressof(ctypes.c_char.from_buffer(page)), 4096)
gift = syscall(278, 1, ctypes.byref(part), 1, 8)
copied = syscall(276, 0, 1, 1000, 0)
moved = os.splice(0, 1, 1000)
back = attempt(os.splice, 1, 0, 10)
os.write(2, json.dumps([gift, copied, moved, back]).encode())
""",
            stdin=b"s" * 1000,
        )
    )
    gift, copied, moved, back = json.loads(result.stderr)
    assert back in {"EBADF", "EINVAL", "EAGAIN"}
    expected = b"a" * 1000 + b"b" * 1000 + b"c" * 1000 + b"d" * gift + b"s" * (copied + moved)
    assert result.stdout == expected
    assert (result.outcome, copied, moved) == ("completed", 1000, 1000)


def test_an_endless_splice_meets_the_output_limit(warden: LiveWarden) -> None:
    """The same pages again and again: they cost the task next to nothing."""
    result = warden.run_one(
        attack(
            """
with open('/tmp/source', 'wb') as file:
    file.write(bytes(65536))
source = os.open('/tmp/source', os.O_RDONLY)
while os.splice(source, 1, 65536, offset_src=0):
    pass
""",
            output_bytes=100_000,
        )
    )
    assert (result.outcome, len(result.stdout)) == ("output_limit", 100_000)


def test_asking_for_signals_about_its_pipes_hits_nobody_else(warden: LiveWarden) -> None:
    """F_SETOWN with SIGKILL as the signal: whoever is named, none of ours is hit."""
    result = warden.run_one(
        attack(
            """
import fcntl
met = {}
signal.signal(signal.SIGIO, signal.SIG_IGN)
for owner in (1, -1, 2147483647, os.getppid()):
    for number in (0, 1, 2):
        met['%d %d' % (owner, number)] = [attempt(fcntl.fcntl, number, 8, owner),
                                           attempt(fcntl.fcntl, number, 10, signal.SIGKILL)]
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        os.write(1, b'\\n'); os.write(2, b'\\n'); os.read(0, 1)
    except OSError:
        pass
    time.sleep(0.01)
for number in (0, 1, 2):
    fcntl.fcntl(number, 8, 0); fcntl.fcntl(number, 10, 0)
tell(alive=True)
""",
            stdin=b"x" * 100_000,
        )
    )
    assert (result.outcome, result.exit_code) == ("completed", 0), result
    assert json.loads(result.stdout) == {"alive": True}  # behind blank lines


def test_rights_and_locks_on_its_pipes_stop_nothing(warden: LiveWarden) -> None:
    """They are its user's, so that it can open /dev/stdout; the other end is not."""
    result = warden.run_one(
        attack(
            """
import fcntl
for number in (0, 1, 2):
    met = {'mode': attempt(os.fchmod, number, 0), 'owner': attempt(os.fchown, number, 0, 0),
           'lock': attempt(fcntl.flock, number, fcntl.LOCK_EX), 'sync': attempt(os.fsync, number),
           'cut': attempt(os.ftruncate, number, 0), 'seals': attempt(fcntl.fcntl, number, 1033, 15),
           'xattr': attempt(os.setxattr, number, 'user.x', b'x'),
           'lease': attempt(fcntl.fcntl, number, 1024, 0)}
    os.write(2, json.dumps(met).encode() + b'\\n')
print(sys.stdin.read())
""",
            stdin=b"still",
        )
    )
    assert result.stdout == b"still\n"
    for line in result.stderr.splitlines():
        met = json.loads(line)
        assert met.pop("mode") == "done"
        assert met.pop("lock") == "done"
        assert set(met.values()) <= {"EPERM", "EINVAL", "EACCES", "ENOTSUP", "EBADF"}, met


def test_reading_its_own_output_and_writing_its_own_input_holds_up_nobody(
    warden: LiveWarden,
) -> None:
    """Both ends of its pipes can be had by name: it deceives itself alone, and ends in time."""
    (first,), (second,) = warden.run(
        attack(
            """
os.write(1, b'one'); os.write(2, b'e')
ends = [os.open('/proc/self/fd/%d' % n, os.O_RDWR | os.O_NONBLOCK) for n in (0, 1, 2)]
os.write(ends[0], b'own')
os.write(1, b'two')
os._exit(4)                                     # it had both ends of all when it ended
""",
            stdin=b"given",
        ),
        shell("cat", stdin=b"next"),
    )
    assert (first.outcome, first.exit_code) == ("completed", 4)
    assert first.stdout in (b"onetwo",)
    assert second.stdout == b"next"


def test_a_third_task_cannot_put_a_word_into_a_pipe_between_two(warden: LiveWarden) -> None:
    """All three have one user, to whom the pipe belongs: it must be out of reach by name."""
    intruder = """
import glob
end = time.monotonic() + 0.3
tries = 0
while time.monotonic() < end:
    for path in glob.glob('/proc/[0-9]*/fd/*') + glob.glob('/proc/[0-9]*/task/*/fd/*'):
        if path.split('/')[2] == str(os.getpid()):
            continue
        tries += attempt(os.open, path, os.O_WRONLY | os.O_NONBLOCK) == 'done'
tell(tries=tries)
"""
    source = shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.05; done")
    step = piped(source, task("/bin/cat"), attack(intruder), pipes=((0, 1),))
    _, reader, other = warden.run(step)[0]
    assert reader.stdout == b"1\n2\n3\n4\n5\n6\n"
    assert told(other) == {"tries": 0}


def test_a_partner_that_makes_the_pipe_not_wait_breaks_its_own_words_alone(
    warden: LiveWarden,
) -> None:
    """Each end of a pipe between two tasks is an open file of its own."""
    writing = """
import fcntl, os, time
fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY | os.O_NONBLOCK)
for number in range(20):
    os.write(1, b'%d\\n' % number)
    time.sleep(0.005)
"""
    writer = task("/usr/bin/python3", "-c", writing)  # a file would be the reader's as well
    reader = attack(
        """
import fcntl
flags = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK
tell(flags=flags, lines=len(sys.stdin.read().split()))
"""
    )
    _, read = warden.run(piped(writer, reader, pipes=((0, 1),)))[0]
    assert told(read) == {"flags": 0, "lines": 20}


# --- many ---------------------------------------------------------------------------------


def test_a_flood_of_descriptors_ends_at_the_limit_and_costs_the_host_none(
    warden: LiveWarden,
) -> None:
    source = """
import resource
count, met = 0, 'done'
while met == 'done':
    met = attempt(os.dup, 1)
    count += met == 'done'
low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
def raised():
    resource.setrlimit(resource.RLIMIT_NOFILE, (high + 1, high + 1))
try:
    raised_met = attempt(raised)
except ValueError:
    raised_met = 'EPERM'
tell(met=met, count=count, limits=[low, high], raised=raised_met,
     at=attempt(os.dup2, 1, 1024), far=attempt(os.dup2, 1, 1 << 20))
os.closerange(3, 1024)
"""
    with _supervisors_unchanged(warden):
        seen = see(warden, source)
    assert seen == {
        "met": "EMFILE",
        "count": 1021,
        "limits": [1024, 1024],
        "raised": "EPERM",
        "at": "EBADF",
        "far": "EBADF",
    }


@contextmanager
def _supervisors_unchanged(warden: LiveWarden) -> Iterator[None]:
    """The warden has as many descriptors afterwards as before."""
    assert warden.process is not None
    folder = Path(f"/proc/{warden.process.pid}/fd")
    before = len(list(folder.iterdir()))
    yield
    assert len(list(folder.iterdir())) <= before + 1  # a jail may be leaving yet


def test_names_of_its_streams_lead_to_its_own_and_no_others(warden: LiveWarden) -> None:
    """/dev/stdout and its like can be opened, as programs do; in a sibling they are others."""
    script = "echo {0} > /dev/stdout; echo {0} >> /proc/self/fd/2; cat /dev/stdin; echo > /dev/fd/1"
    left, right = warden.run(
        [shell(script.format(name), stdin=name.encode()) for name in ("left", "right")]
    )[0]
    assert (left.stdout, left.stderr) == (b"left\nleft\n", b"left\n")
    assert (right.stdout, right.stderr) == (b"right\nright\n", b"right\n")
