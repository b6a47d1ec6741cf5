"""Output: floods are cut at the limit, whoever writes them and however, and none is lost before."""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.sandbox.job import TaskResult
from tests.adversarial.probing import PRELUDE, attack, told
from tests.emulation import stretched
from tests.hosting import MIB, LiveWarden, piped, python, shell, task

LIMIT = 64 << 10
PATIENT_MS = int(stretched(8_000))

# A flood stops by itself at 64 MiB; `say` goes to stderr, where no flood is.
FLOOD = """
import fcntl, threading

MOST = 64 << 20

def pour(descriptor, block=bytes(1 << 16), most=MOST):
    for _ in range(most // len(block)):
        view = memoryview(block)
        while view:
            view = view[os.write(descriptor, view):]

def say(word):
    os.write(2, word)

"""


def flood(live: LiveWarden, source: str, **limits: Any) -> TaskResult:
    limits = {"output_bytes": LIMIT, "wall_ms": PATIENT_MS, "cpu_ms": PATIENT_MS, **limits}
    return live.run_one(attack(FLOOD + source, **limits))


def expect_output_limit(result: TaskResult) -> None:
    assert (result.outcome, result.reason) == ("output_limit", None), result.stats
    assert (result.exit_code, result.signal, result.timed_out) == (None, None, False)
    assert len(result.stdout) <= LIMIT
    assert len(result.stderr) <= LIMIT


# --- who floods, and how ------------------------------------------------------------------

FLOODS = {
    "write": "pour(1)",
    "one byte at a time": "pour(1, b'x', 1 << 18)",
    "many at once": "os.writev(1, [bytes(1 << 16)] * 64)",
    "threads": """
for _ in range(4):
    threading.Thread(target=pour, args=(1,)).start()
""",
    "children": """
for _ in range(4):
    if os.fork() == 0:
        pour(1)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
""",
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pour(1)
        os._exit(0)
    os._exit(0)
time.sleep(60)
""",
    "sendfile": """
file = os.open('/dev/shm/file', os.O_RDWR | os.O_CREAT)
os.write(file, bytes(1 << 20))
for _ in range(64):
    os.sendfile(1, file, 0, 1 << 20)
""",
    "splice": """
zero = os.open('/dev/zero', os.O_RDONLY)
ends = os.pipe()
for _ in range(MOST >> 16):
    pour(ends[1], bytes(1 << 16), 1 << 16)
    left = 1 << 16
    while left:
        left -= syscall(275, ends[0], None, 1, None, left, 0)
""",
    "vmsplice": """
import mmap
m = mmap.mmap(-1, 1 << 16)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
vector = struct.pack('QQ', at, 1 << 16)
for _ in range(MOST >> 16):
    syscall(278, 1, vector, 1, 0)
""",
    "tee": """
ends = os.pipe()
os.write(ends[1], bytes(1 << 16))
for _ in range(MOST >> 16):
    syscall(276, ends[0], 1, 1 << 16, 0)
""",
    "the stream opened by its name": "pour(os.open('/dev/stdout', os.O_WRONLY))",
    "a larger pipe, filled at once": """
tell_size = fcntl.fcntl(1, 1031, 1 << 20)
os.write(1, bytes(1 << 20))
""",
    "a tiny pipe": "fcntl.fcntl(1, 1031, 4096)\npour(1)",
    "packets": """
fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)
pour(1, bytes(512))
""",
    "without ever waiting": """
os.set_blocking(1, False)
for _ in range(1 << 20):
    try:
        os.write(1, bytes(1 << 16))
    except BlockingIOError:
        pass
""",
    "a command line": "os.execv('/bin/sh', ['sh', '-c', 'head -c 64000000 /dev/zero'])",
}


@pytest.mark.parametrize("way", FLOODS)
def test_a_flood_is_cut_at_the_limit_however_it_is_written(warden: LiveWarden, way: str) -> None:
    result = flood(warden, FLOODS[way])
    expect_output_limit(result)
    assert len(result.stdout) == LIMIT
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)


def test_a_flood_on_stderr_leaves_stdout_whole(warden: LiveWarden) -> None:
    result = flood(warden, "os.write(1, b'kept')\npour(2)")
    expect_output_limit(result)
    assert (result.stdout, result.stdout_truncated) == (b"kept", False)
    assert (len(result.stderr), result.stderr_truncated) == (LIMIT, True)


def test_each_stream_has_the_limit_for_itself(warden: LiveWarden) -> None:
    """Both are filled to the last byte, and nothing is cut."""
    source = """
one = threading.Thread(target=pour, args=(2, b'e' * 4096, LIMIT))
one.start()
pour(1, b'o' * 4096, LIMIT)
one.join()
""".replace("LIMIT", str(LIMIT))
    result = flood(warden, source)
    assert (result.outcome, result.exit_code) == ("completed", 0)
    assert (result.stdout, result.stderr) == (b"o" * LIMIT, b"e" * LIMIT)
    assert (result.stdout_truncated, result.stderr_truncated) == (False, False)


@pytest.mark.parametrize("descriptor", [1, 2])
def test_one_byte_past_the_limit_is_too_much_on_either_stream(
    warden: LiveWarden, descriptor: int
) -> None:
    source = f"pour({descriptor}, b'x', {LIMIT} + 1)"
    result = flood(warden, source)
    expect_output_limit(result)
    cut = (result.stdout, result.stderr)[descriptor - 1]
    assert cut == b"x" * LIMIT
    assert (result.stdout_truncated, result.stderr_truncated) == (descriptor == 1, descriptor == 2)


def test_a_limit_of_nothing_lets_silence_through_and_no_byte(warden: LiveWarden) -> None:
    quiet = flood(warden, "", output_bytes=0)
    assert (quiet.outcome, quiet.exit_code, quiet.stdout) == ("completed", 0, b"")
    loud = flood(warden, "os.write(2, b'x')", output_bytes=0)
    assert (loud.outcome, loud.stdout, loud.stderr) == ("output_limit", b"", b"")
    assert loud.stderr_truncated


def test_who_floods_and_leaves_gets_no_more_than_the_limit(warden: LiveWarden) -> None:
    """A child holds the pipe when the first process ends: it ends with it, mid-flood."""
    source = """
ready = os.pipe()
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        os.write(ready[1], b'x')
        time.sleep(number * 0.01)
        pour(1)
        os._exit(0)
for _ in range(3):
    os.read(ready[0], 1)
os._exit(0)
"""
    for _ in range(3):
        result = flood(warden, source)
        assert result.outcome in ("completed", "output_limit"), result.stats
        assert len(result.stdout) <= LIMIT
        assert result.stdout_truncated == (result.outcome == "output_limit")
        assert result.stats.wall_ms < stretched(5000)


@pytest.mark.heavy
def test_a_sibling_that_was_handed_the_pipe_neither_delays_nor_exceeds_it(
    warden: LiveWarden,
) -> None:
    """Descriptors cross between tasks of a request; the pipe is closed with its own task."""
    gives = (
        PRELUDE
        + """
server = socket.socket(socket.AF_UNIX)
server.bind('/box/.way'); server.listen()
os.rename('/box/.way', '/box/way')
taker = server.accept()[0]
os.write(1, b'mine')
socket.send_fds(taker, [b'x'], [1, 2])
taker.recv(1)
"""
    )
    takes = (
        PRELUDE
        + """
while not os.path.exists('/box/way'):
    time.sleep(0.01)
near = socket.socket(socket.AF_UNIX)
near.connect('/box/way')
_, (out, err), _, _ = socket.recv_fds(near, 1, 2)
os.write(out, b'+theirs')
near.send(b'x')
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
end, got = time.monotonic() + LIMIT_S, 'done'
while got == 'done' and time.monotonic() < end:
    got = attempt(os.write, err, b'')
    got = attempt(os.write, out, b'late')
    time.sleep(0.01)
tell(got=got)
""".replace("LIMIT_S", str(stretched(5.0)))
    )
    programs = [
        task("/usr/bin/python3", "-c", text, output_bytes=LIMIT, wall_ms=PATIENT_MS)
        for text in (gives, takes)
    ]
    ((gave, took),) = warden.run(programs)
    assert (gave.outcome, took.outcome) == ("completed", "completed"), (gave, took)
    assert gave.stdout.startswith(b"mine+theirs")
    assert len(gave.stdout) <= LIMIT
    assert told(took) == {"got": "EPIPE"}


# --- nothing is lost, mixed or held up ----------------------------------------------------


def test_every_byte_comes_back_as_it_was(warden: LiveWarden) -> None:
    source = """
block = bytes(range(256)) * 128
threading.Thread(target=pour, args=(2, block[::-1], len(block))).start()
pour(1, block, len(block))
"""
    result = flood(warden, source)
    assert result.outcome == "completed"
    assert result.stdout == bytes(range(256)) * 128
    assert result.stderr == result.stdout[::-1]


def test_ten_thousand_single_bytes_are_all_there(warden: LiveWarden) -> None:
    source = """
for mode in (0, os.O_DIRECT):
    fcntl.fcntl(1, fcntl.F_SETFL, mode)
    for number in range(5000):
        os.write(1, bytes([number % 251]))
"""
    result = flood(warden, source)
    assert result.outcome == "completed", result.stderr
    assert result.stdout == bytes(number % 251 for number in range(5000)) * 2


def test_pages_that_are_changed_after_they_were_given_do_no_harm(warden: LiveWarden) -> None:
    """vmsplice hands pages over, not bytes; what comes of it is the program's own affair."""
    source = """
import mmap
m = mmap.mmap(-1, 1 << 14)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
for number in range(3):
    m[:] = bytes([65 + number]) * (1 << 14)
    syscall(278, 1, struct.pack('QQ', at, 1 << 14), 1, 8)
del at
syscall(11, ctypes.addressof(ctypes.c_char.from_buffer(m)), 1 << 14)  # munmap
os._exit(0)
"""
    result = flood(warden, source)
    assert (result.outcome, len(result.stdout)) == ("completed", 3 << 14)
    assert set(result.stdout) <= set(b"ABC\0")


def test_a_program_that_closes_its_streams_goes_on(warden: LiveWarden) -> None:
    source = """
os.write(1, b'last words')
for descriptor in (0, 1, 2):
    os.close(descriptor)
time.sleep(0.2)
open('/box/after', 'w').write('went on')
os._exit(7)
"""
    result = flood(warden, source, collect=("after",), stdin=b"x" * 100_000)
    assert (result.outcome, result.exit_code) == ("completed", 7)
    assert result.stdout == b"last words"
    assert [file.data for file in result.files] == [b"went on"]


def test_a_program_that_swaps_its_streams_is_read_all_the_same(warden: LiveWarden) -> None:
    result = flood(warden, "os.dup2(1, 9); os.dup2(2, 1); os.dup2(9, 2); pour(2)")
    expect_output_limit(result)
    assert (len(result.stdout), result.stderr) == (LIMIT, b"")


def test_reading_its_own_output_back_harms_itself_alone(warden: LiveWarden) -> None:
    source = """
mine = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)
took = 0
for _ in range(200):
    os.write(1, bytes(1000))
    try:
        took += len(os.read(mine, 1000))
    except BlockingIOError:
        pass
say(str(took).encode())
os._exit(0)
"""
    result = flood(warden, source)
    took = int(result.stderr) if result.stderr else 0
    if result.outcome == "completed":
        assert len(result.stdout) + took == 200_000
    else:
        expect_output_limit(result)


def test_writing_to_its_own_input_ends_nowhere_but_in_itself(warden: LiveWarden) -> None:
    """It stuffs the pipe it reads from, while we still have input for it."""
    source = """
own = os.open('/dev/stdin', os.O_WRONLY | os.O_NONBLOCK)
wrote, read, end = 0, 0, time.monotonic() + 0.5
while time.monotonic() < end:
    try:
        wrote += os.write(own, b'y' * 4096)
    except BlockingIOError:
        pass
    read += len(os.read(0, 2048))
tell(wrote=wrote, read=read)
os._exit(0)
"""
    result = flood(warden, source, stdin=b"x" * 4_000_000)
    assert result.outcome == "completed", result.stderr
    assert told(result)["wrote"] > 0
    full = "own = os.open('/dev/stdin', os.O_WRONLY)\npour(own)\n"
    stuck = flood(warden, full, stdin=b"x" * 1_000_000, wall_ms=int(stretched(500)))
    assert (stuck.outcome, stuck.reason) == ("timed_out", "wall")


def test_input_that_is_closed_unread_ends_nothing(warden: LiveWarden) -> None:
    source = "os.close(0)\ntime.sleep(0.1)\nos.write(1, b'alive')"
    result = flood(warden, source, stdin=b"x" * 8_000_000)
    assert (result.outcome, result.stdout) == ("completed", b"alive")


# --- whatever ends it ---------------------------------------------------------------------

ENDS = {
    "wall": ("time.sleep(60)", {"wall_ms": int(stretched(400))}),
    "cpu": ("while True: pass", {"cpu_ms": int(stretched(250))}),
    "memory": ("x = [b'x' * (1 << 20) for _ in range(400)]", {"memory_bytes": 48 * MIB}),
    "output": ("pour(2)", {}),
    "signal": ("os.kill(os.getpid(), signal.SIGSEGV)", {}),
    "forbidden": ("syscall(165, 0, 0, 0, 0, 0)", {}),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", {"wall_ms": int(stretched(400))}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("end", ENDS)
def test_what_was_written_before_is_kept_whatever_ends_it(warden: LiveWarden, end: str) -> None:
    source, limits = ENDS[end]
    result = flood(warden, "pour(1, b'kept', 40_000)\n" + source, **limits)
    assert result.outcome != "completed"
    assert result.stdout == b"kept" * 10_000
    assert not result.stdout_truncated


# --- the request's output -----------------------------------------------------------------


def test_steps_share_what_output_the_request_has(warden: LiveWarden) -> None:
    """A flood of one step leaves to the next what it did not get; then there is nothing left."""
    share = 100_000
    results = warden.run(
        shell("head -c 60000 /dev/zero", output_bytes=MIB),
        shell("head -c 60000 /dev/zero", output_bytes=MIB),
        shell("echo x", output_bytes=MIB),
        shell("true", output_bytes=MIB),
        output_bytes=share,
    )
    one, two, three, four = (result for (result,) in results)
    assert (one.outcome, len(one.stdout)) == ("completed", 60_000)
    assert (two.outcome, len(two.stdout), two.stdout_truncated) == ("output_limit", 40_000, True)
    assert (three.outcome, three.stdout, three.stdout_truncated) == ("output_limit", b"", True)
    assert (four.outcome, four.stdout_truncated) == ("completed", False)


def test_both_streams_and_the_files_come_from_one_share(warden: LiveWarden) -> None:
    source = (
        FLOOD
        + """
open('/box/file', 'wb').write(bytes(500))
threading.Thread(target=pour, args=(2, b'e', 700)).start()
pour(1, b'o', 700)
"""
    )
    result = warden.run_one(attack(source, collect=("file",)), output_bytes=1000)
    assert (result.stdout, result.stdout_truncated) == (b"o" * 700, False)
    assert (result.stderr, result.stderr_truncated) == (b"e" * 300, True)
    assert [(file.data, file.error) for file in result.files] == [(b"", "too_large")]


def test_a_flooding_sibling_takes_nothing_of_anothers_share(warden: LiveWarden) -> None:
    flooding = "cat /dev/zero"
    ((one, two, three),) = warden.run(
        [shell(flooding), shell("head -c 30000 /dev/zero | tr '\\0' x"), shell(flooding + " >&2")],
        output_bytes=120_000,
    )
    assert (one.outcome, three.outcome) == ("output_limit", "output_limit")
    assert (two.outcome, two.stdout) == ("completed", b"x" * 30_000)
    assert (len(one.stdout), len(three.stderr)) == (40_000, 40_000)


def test_what_goes_through_a_pipe_between_tasks_is_no_output(warden: LiveWarden) -> None:
    ((writes, counts),) = warden.run(
        piped(
            shell("exec head -c 20000000 /dev/zero", output_bytes=0),
            shell("exec wc -c", output_bytes=100),
            pipes=((0, 1),),
        )
    )
    assert (writes.outcome, writes.stdout) == ("completed", b"")
    assert counts.stdout == b"20000000\n"


def test_a_program_that_looks_like_a_frame_is_only_output(warden: LiveWarden) -> None:
    """Bytes of ours: lengths, JSON of a result.  Nobody reads a program's output as such."""
    fakes = b'{"failed": "x", "errno": 1}\n' + b"\0\0\0\x10" * 64 + b'{"exec_ns": 1, "cpu_ns": []}'
    source = f"import os\nos.write(1, {fakes!r})\nos.write(2, {fakes!r})\nos._exit(4)\n"
    result = warden.run_one(python(source))
    assert (result.outcome, result.exit_code) == ("completed", 4)
    assert result.stdout == result.stderr == fakes
