"""What a task could take from the host past its limits, or see of the host's own files' use.

Each of these was done to an earlier version: filters and locks are kernel memory that no
limit counts, and a toolchain shown by a plain bind shares its inodes with the host.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gaoler.sandbox import profiles
from tests.emulation import stretched
from tests.hosting import LiveWarden, eventually, job, python, shell

CALL = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    done = getattr(libc, name)(*args)
    return 'ok' if done >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def _say(warden: LiveWarden, source: str, **limits: Any) -> Any:
    result = warden.run_one(python(CALL + source, **limits))
    assert (result.outcome, result.stderr) == ("completed", b""), result
    return json.loads(result.stdout)


def test_no_program_can_load_a_filter_into_the_kernel(warden: LiveWarden) -> None:
    source = """
import socket, struct
s = socket.socket()
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))
prog = struct.pack('HL', 1, ctypes.addressof(code))
seen = [call('setsockopt', s.fileno(), 1, option, prog, len(prog)) for option in (26, 50, 51, 52)]
seen.append(call('syscall', 317, 1, 0, prog))
seen.append(call('prctl', 22, 2, prog))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
print(json.dumps(seen))
"""
    assert _say(warden, source) == ["EPERM"] * 6


def test_record_locks_are_granted_and_not_taken(warden: LiveWarden) -> None:
    source = """
import fcntl, os, struct
f = open('file', 'w+')
fcntl.lockf(f, fcntl.LOCK_EX)
if os.fork() == 0:
    g = open('file', 'r+')
    asked = struct.pack('hhqqi4x', 1, 0, 0, 0, 0)
    free = struct.unpack('hhqqi4x', fcntl.fcntl(g, fcntl.F_GETLK, asked))
    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(json.dumps([free[0] == fcntl.F_UNLCK, call('fcntl', g.fileno(), 1024, 1)]))
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    assert _say(warden, source) == [True, "EPERM"]


def test_flock_is_real_between_the_processes_of_a_task(warden: LiveWarden) -> None:
    source = """
import fcntl, os
f = open('file', 'w'); fcntl.flock(f, fcntl.LOCK_EX)
g = open('file', 'w')
try:
    fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(json.dumps('taken twice'))
except BlockingIOError:
    print(json.dumps('held'))
"""
    assert _say(warden, source) == "held"


def test_a_lock_on_a_toolchain_file_is_not_the_hosts(warden: LiveWarden) -> None:
    source = "import fcntl, time; f = open('/usr/bin/env'); fcntl.flock(f, fcntl.LOCK_EX)\n"
    holds = source + "open('locked', 'w'); time.sleep(60)"
    holder = warden.submit(job([python(holds), shell("until [ -e locked ]; do sleep 0.05; done")]))
    eventually(lambda: (0, 1) in holder.results, "the lock is held")
    try:
        with open("/usr/bin/env", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = warden.run_one(python(source + "print('mine')"))
        assert other.stdout == b"mine\n"
    finally:
        holder.cancel()
        holder.wait()


def test_a_task_does_not_see_what_others_open_in_the_toolchain(warden: LiveWarden) -> None:
    watch = """
import os, time
fd = libc.inotify_init1(0o4000)
assert libc.inotify_add_watch(fd, b'/usr/bin/env', 0xfff) >= 0
open('watching', 'w')
time.sleep(PAUSE)
try:
    print(json.dumps(len(os.read(fd, 65536))))
except BlockingIOError:
    print(json.dumps(0))
"""
    source = CALL + watch.replace("PAUSE", str(stretched(1.0)))
    wait = "until [ -e watching ]; do sleep 0.05; done"
    watches = python(source, wall_ms=60_000)
    watcher = warden.submit(job([watches, shell(wait)], budget_ms=90_000))
    eventually(lambda: (0, 1) in watcher.results, "it watches")
    with open("/usr/bin/env", "rb") as file:
        file.read(1)
    assert warden.run_one(shell("env > /dev/null")).outcome == "completed"
    assert watcher.wait().results[0, 0].stdout == b"0\n"


def test_protocols_without_a_use_are_refused(warden: LiveWarden) -> None:
    source = """
import socket
def made(protocol):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol).close()
        return 'made'
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps([made(protocol) for protocol in (0, 6, 262, 136)]))
"""
    assert _say(warden, source) == ["made", "made", "EPROTONOSUPPORT", "EPROTONOSUPPORT"]


@pytest.mark.parametrize("mode", ["000", "100", "500"])
def test_a_workspace_that_a_task_closed_is_open_to_the_next(warden: LiveWarden, mode: str) -> None:
    (closed,), (after,) = warden.run(
        shell(f"echo x > left; chmod {mode} /box", collect=("left",)),
        shell("cat left in", files={"in": b"y\n"}),
    )
    assert [(f.data, f.error) for f in closed.files] == [(b"x\n", None)]
    assert after.stdout == b"x\ny\n"


def test_a_sibling_that_keeps_closing_the_workspace_breaks_its_own_request_alone(
    warden: LiveWarden,
) -> None:
    close = "import os, time\nend = time.monotonic() + 1\n"
    close += "while time.monotonic() < end:\n    os.chmod('/box', 0)\n"
    results = warden.run([python(close), shell("sleep 0.3", collect=("x",))], shell("echo after"))
    (_, collected), (after,) = results
    if collected.outcome == "completed":
        assert [f.error for f in collected.files] in (["missing"], ["unreadable"])
    else:
        assert (collected.outcome, collected.reason) == ("setup_failed", "bad_path")
    assert (after.outcome, after.stdout) == ("completed", b"after\n")


def test_few_connections_wait_to_be_accepted(warden: LiveWarden) -> None:
    """Each is memory of the kernel that no group is charged for."""
    result = warden.run_one(
        python(
            """
import socket
listener = socket.create_server(('127.0.0.1', 0), backlog=4096)
waiting = []
for _ in range(400):
    sock = socket.socket()
    sock.settimeout(0.05)
    try:
        sock.connect(listener.getsockname())
    except TimeoutError:
        break
    waiting.append(sock)
print(len(waiting))
"""
        )
    )
    assert 100 < int(result.stdout) < 200, result


def test_the_page_cache_of_the_toolchain_cannot_be_dropped_or_asked_about(
    warden: LiveWarden,
) -> None:
    """Through an overlay both would reach the host's own inode."""
    # Large, and no process runs it just now: mapped pages would stay.
    name = ("gcc", "-print-prog-name=cc1plus")
    tool = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    pages = len(Path(tool).read_bytes()) // 4096
    result = warden.run_one(
        python(
            f"""
import ctypes, os
file = os.open({tool!r}, os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
print(ctypes.CDLL(None).syscall(451, file, 0, 0, 0))  # cachestat
"""
        )
    )
    assert result.stdout == b"-1\n", result
    assert _cached_pages(tool) > pages // 2


def _cached_pages(path: str) -> int:
    """Pages of a file that are in memory."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
    ):
        start = ctypes.c_char.from_buffer(mapped)
        vector = (ctypes.c_ubyte * ((len(mapped) + 4095) // 4096))()
        done = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), vector)
        del start  # or the mapping could not be closed
        assert done == 0
        return sum(byte & 1 for byte in vector)


def test_every_final_refusal_has_a_reason_to_be_there() -> None:
    names = {name for name, *_ in (*profiles.FINAL_REFUSED, *profiles.FINAL_REFUSED_BITS)}
    assert names <= set(profiles.ALLOWED) | {
        "socket",
        "setsockopt",
    }  # else the first filter says it already


def test_connections_that_nobody_accepts_end_the_task_before_they_fill_the_host(
    warden: LiveWarden,
) -> None:
    """Until it is accepted a connection, and what was sent on it, is charged to nobody."""
    result = warden.run_one(
        python(
            """
import socket, time
listeners = [socket.create_server(('127.0.0.1', 0), backlog=128) for _ in range(60)]
for listener in listeners:
    for _ in range(100):
        sock = socket.socket()
        sock.connect(listener.getsockname())
        sock.close()
time.sleep(60)
""",
            wall_ms=round(stretched(8_000)),
        ),
        budget_ms=round(stretched(20_000)),
    )
    assert result.outcome == "memory_limit", result


def test_a_thousand_connections_that_are_used_are_nobodys_trouble(warden: LiveWarden) -> None:
    result = warden.run_one(
        python(
            """
import socket, time
listener = socket.create_server(('127.0.0.1', 0), backlog=128)
pairs = []
for _ in range(450):
    sock = socket.create_connection(listener.getsockname())
    pairs.append((sock, listener.accept()[0]))
time.sleep(0.3)
for one, other in pairs:
    one.sendall(b'x')
    assert other.recv(9) == b'x'
print(len(pairs))
"""
        )
    )
    assert result.stdout == b"450\n", result
