"""The filter: each system call is met as its profile says, however it is made.

What is probed is derived from the profile's lists, so a new entry has its probe at once.
Here, and only here, the exact answer is the promise.
"""

from __future__ import annotations

import errno
import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gaoler.sandbox import profiles
from gaoler.sandbox.job import Task, TaskResult
from tests.adversarial.calls import TRIED, name_of, number, raw, refused
from tests.adversarial.probing import PRELUDE, attack, see, told
from tests.emulation import STRETCH, stretched
from tests.hosting import LiveWarden, task

HIGH = 1 << 32  # a bit that the kernel does not look at where an argument is an int
X32 = 1 << 30
KILLED = "SIGSYS"


Each = TypeVar("Each")


@dataclass(frozen=True)
class Call:
    """A call and the whole of its six arguments."""

    name: str
    number: int
    arguments: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(hex, self.arguments))})"


def _call(name: str, *arguments: int, fill: int = 0) -> Call:
    return Call(name, number(name), (*arguments, *[fill] * (6 - len(arguments))))


def _filled(names: list[str]) -> list[Call]:
    """Each call with nothing, with all bits, and with high bits alone in every argument."""
    return [_call(name, fill=fill) for name in names for fill in (0, -1, HIGH)]


def _known(names: list[str]) -> list[str]:
    """Those that this machine has at all."""
    return [name for name in names if number(name) >= 0]


def _some(calls: list[Each]) -> list[Each]:
    """A filter is the same program on every kernel, so where each call takes a second not all
    are made: every so many-th, by a number that is prime to the patterns they are made by."""
    return calls if STRETCH == 1 else calls[::13]


# --- what is to be called ------------------------------------------------------------------

MET = _some(
    [
        *((call, "EPERM") for call in _filled(_known(profiles.REFUSED))),
        *((call, KILLED) for call in _filled(_known(profiles.KILLED))),
        *((call, 0) for call in _filled(_known(profiles.PRETENDED))),
    ]
)

_EXCEPTIONS = ("clone", "socket", "socketpair", "mknod", "mknodat", "personality")
_NAMED = {
    number(name)
    for names in (profiles.ALLOWED, profiles.REFUSED, profiles.KILLED, profiles.PRETENDED)
    for name in (*names, *profiles.ALLOWED_NUMBERS, *_EXCEPTIONS)
}
# Kernels from 6.14 on let these past every filter, and do nothing where they do not come
# from a page of the kernel's own, which it makes for who traces from the host.
PAST_EVERY_FILTER = {335: "uretprobe", 336: "uprobe"}
# What no list names: all there is today, and far beyond what kernels have.
UNNAMED = [value for value in range(1024) if value not in _NAMED and value not in PAST_EVERY_FILTER]
BEYOND = [1 << 12, 1 << 20, X32 - 1, -1, HIGH + 435]


def _errno_name(value: int) -> object:
    return errno.errorcode[value] if value else 0


def _final_calls() -> list[tuple[Call, object]]:
    """Every entry of the final filter, as it stands and with high bits that say nothing.

    No call has a program with it, and none is made on a socket.
    """
    calls = []
    for name, values, answer in profiles.FINAL_REFUSED:
        for high in (0, HIGH) if values else (0,):
            first = {0: 2, 1: 1} if name == "socket" else {}
            given = {**first, **{index: value + high for index, value in values.items()}}
            arguments = tuple(given.get(index, -1) for index in range(6))
            calls.append((Call(name, number(name), arguments), _errno_name(answer)))
    return calls


def _final_bits() -> list[tuple[Call, object]]:
    """The same of those that look at some bits of an argument, with all other bits set too."""
    calls = []
    for name, index, bits, value, answer in profiles.FINAL_REFUSED_BITS:
        for given in (value, value + HIGH, value | 0xFFFFFFFF & ~bits):
            first = {0: 2, 2: 0} if name == "socket" else {}
            wanted = {**first, index: given}
            arguments = tuple(wanted.get(at, -1) for at in range(6))
            calls.append((Call(name, number(name), arguments), _errno_name(answer)))
    return calls


FINAL = _some([*_final_calls(), *_final_bits()])

_REFUSED_FAMILIES = [
    family
    for family in range(profiles.LAST_SOCKET_FAMILY + 1)
    if family not in profiles.SOCKET_FAMILIES
]
_DATAGRAM = 2
FAMILIES = _some(
    [
        (_call(name, family + high, _DATAGRAM), answer)
        for name in ("socket", "socketpair")
        for high in (0, HIGH, 0xABCD << 32)
        for families, answer in (
            (_REFUSED_FAMILIES, "EAFNOSUPPORT"),
            ((profiles.LAST_SOCKET_FAMILY + 1, 255, 1 << 16, 0x7FFFFFFF, 0xFFFFFFFF), "ENOSYS"),
        )
        for family in families
    ]
)

SIGCHLD = int(signal.SIGCHLD)
CLONES = _some(
    [
        (_call("clone", flags + high, 0), "EPERM")
        for high in (0, HIGH, 0xFFFFFFFF << 32)
        for flags in (
            *(flag | SIGCHLD for flag in profiles.NAMESPACE_FLAGS),
            *(flag for flag in profiles.NAMESPACE_FLAGS),
            sum(profiles.NAMESPACE_FLAGS),
            0x10000000 | 0x20000 | SIGCHLD,
            0x10000000 | 0x100 | 0x200 | SIGCHLD,  # with memory and file system shared
            0x40000000 | profiles.CLONE_THREAD | 0x900,  # a thread in a network of its own
        )
    ]
)

PERSONALITIES = _some(
    [
        (_call("personality", value + high), "ENOSYS")
        for high in (0, HIGH)
        # 32 bits, readable means executable, a page at 0, compatible layouts, all at once.
        for value in (0x8, 0x400000, 0x440000, 0x100000, 0x200000, 0x8000000, 0xFFFFFFFE, 0x1)
    ]
)

_NODE_AT = -100  # AT_FDCWD
NODES = _some(
    [
        (Call(name, number(name), arguments), "EPERM")
        for kind in range(0, profiles.FILE_KIND_MASK + 1, 0o010000)
        if kind not in profiles.MAKEABLE_KINDS
        # The kernel cuts the mode to 16 bits: what stands above must not hide the kind.
        for mode in (kind | 0o666, kind | 0o666 | 1 << 16, kind | HIGH)
        for name, arguments in (
            ("mknod", (0, mode, 0x103, 0, 0, 0)),
            ("mknodat", (_NODE_AT, 0, mode, 0x103, 0, 0)),
        )
    ]
)

EACH = [*MET, *FINAL, *FAMILIES, *CLONES, *PERSONALITIES, *NODES]

# One child for each, so that what ends it is seen and nothing is left for the next.
MAKE_EACH = (
    PRELUDE
    + TRIED
    + """
wanted = json.load(open('wanted.json'))
tell(each=[tried(syscall, number, *arguments) for number, arguments in wanted['each']])
unnamed = {}
for start in range(0, len(wanted['unnamed']), 64):
    batch = wanted['unnamed'][start:start + 64]
    answers = tried(lambda: [syscall(number, 0, 0, 0, 0, 0, 0) for number in batch])
    if isinstance(answers, str):
        answers = [tried(syscall, number, 0, 0, 0, 0, 0, 0) for number in batch]
    unnamed.update(zip(batch, answers))
tell(unnamed=unnamed)
"""
)


@pytest.fixture(scope="module")
def report(session_warden: LiveWarden) -> dict[str, Any]:
    """One task makes all of them; "each" is by the call's text, "unnamed" by the number."""
    wanted = {
        "each": [(call.number, call.arguments) for call, _ in EACH],
        "unnamed": [*UNNAMED, *BEYOND, *PAST_EVERY_FILTER],
    }
    limit_ms = int(stretched(14_000))  # twice that is less than any warden lets a request run
    result = session_warden.run_one(
        task(
            "/usr/bin/python3",
            "probe.py",
            files={"probe.py": MAKE_EACH.encode(), "wanted.json": json.dumps(wanted).encode()},
            wall_ms=limit_ms,
            cpu_ms=limit_ms,
        ),
        budget_ms=2 * limit_ms,
    )
    assert (result.outcome, result.exit_code, result.stderr) == ("completed", 0, b""), result
    seen = told(result)
    return {
        "each": {str(call): answer for (call, _), answer in zip(EACH, seen["each"], strict=True)},
        "unnamed": {int(value): answer for value, answer in seen["unnamed"].items()},
    }


def _each(calls: Sequence[tuple[Call, object]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("call", "answer"), [pytest.param(call, answer, id=str(call)) for call, answer in calls]
    )


@_each(MET)
def test_a_call_is_refused_ended_or_pretended_whatever_its_arguments(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


@pytest.mark.parametrize("value", _some([value for value in UNNAMED if value < 600]), ids=name_of)
def test_a_call_that_no_list_names_is_as_if_there_was_none(
    report: dict[str, Any], value: int
) -> None:
    assert report["unnamed"][value] == "ENOSYS"


def test_calls_that_kernels_may_have_one_day_are_not_there_either(report: dict[str, Any]) -> None:
    assert {report["unnamed"][value] for value in (*UNNAMED, *BEYOND)} == {"ENOSYS"}


def test_the_calls_of_the_kernels_own_tracing_do_nothing_for_a_program(
    report: dict[str, Any],
) -> None:
    answers = {report["unnamed"][value] for value in PAST_EVERY_FILTER}
    assert answers <= {"ENOSYS", "SIGILL", "ENXIO"}


def test_what_a_filter_cannot_look_into_is_among_those_that_are_not_there() -> None:
    hidden = (
        "clone3 io_uring_setup io_uring_enter io_uring_register io_setup io_submit memfd_secret "
        "lookup_dcookie uselib ustat sysfs _sysctl nfsservctl modify_ldt remap_file_pages "
        "statmount listmount lsm_set_self_attr open_tree_attr listns"
    )
    assert {number(name) for name in hidden.split()} <= set(UNNAMED)


@_each(FINAL)
def test_the_final_filter_answers_by_value_and_not_by_what_stands_above_it(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


@_each(FAMILIES)
def test_a_socket_of_another_family_is_refused_however_wide_its_number(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


@_each(CLONES)
def test_clone_makes_no_namespace_whatever_else_it_is_asked_for(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


@_each(PERSONALITIES)
def test_a_personality_that_weakens_memory_or_has_32_bits_is_not_there(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


@_each(NODES)
def test_a_node_of_another_kind_is_not_made_whatever_stands_above_the_kind(
    report: dict[str, Any], call: Call, answer: object
) -> None:
    assert report["each"][str(call)] == answer


# --- what a socket may be ---------------------------------------------------------------------


def test_no_internet_socket_is_made_but_of_the_protocols_that_programs_use(
    warden: LiveWarden,
) -> None:
    """Every kind and every protocol that the kernel could know, also with flags and high bits."""
    source = (
        raw("socket")
        + f"""
passed = set()
for high in (0, 0x80800, {HIGH}):
    for family in (2, 10):
        for kind in range(16):
            for protocol in (*range(300), 0x7fffffff, 0xffffffff, {HIGH} + 132):
                made = syscall(NR_socket, family, kind + high, protocol)
                if isinstance(made, int):
                    os.close(made)
                if made not in ('ENOSYS', 'EPROTONOSUPPORT', 'EPERM'):
                    passed.add((family, kind, protocol))
tell(passed=sorted(passed))
"""
    )
    passed = {tuple(each) for each in see(warden, source)["passed"]}
    allowed = {
        (family, kind, protocol)
        for family, kind, protocols in profiles.INTERNET_SOCKETS
        for protocol in protocols
    }
    assert passed <= allowed
    assert {(2, 1, 0), (2, 1, 6), (2, 2, 17)} <= passed  # else this says nothing


_NO_DESCRIPTOR = "EBADF"  # the kernel's own word: the call came so far
_ATTACH = (26, 50, 51, 52)  # each is probed above, once
_OTHER_LEVELS = (2, 58, 132, 136, 255, 256, 263, 265, 270, 271, 273, 276, 279, 280, 282, 283, 284)


def test_no_option_of_a_socket_can_be_set_but_those_that_programs_use(warden: LiveWarden) -> None:
    source = (
        raw("setsockopt")
        + f"""
answers = {{}}
for level in {(*profiles.SOCKET_OPTIONS, *_OTHER_LEVELS)}:
    for option in range(-1, 320):
        if (level, option) not in {[(1, option) for option in _ATTACH]}:
            for high in (0, {HIGH}):
                answer = syscall(NR_setsockopt, -1, level + high, option + high, None, 0)
                answers.setdefault(answer, set()).add((level, option))
tell(**{{str(answer): sorted(which) for answer, which in answers.items()}})
"""
    )
    seen = see(warden, source)
    final = {
        (values[1], values[2]): number
        for name, values, number in profiles.FINAL_REFUSED
        if name == "setsockopt"
    }
    allowed = {
        (level, int(option))
        for level, options in profiles.SOCKET_OPTIONS.items()
        for option in options.split()
    }
    pretended = {which for which in allowed if final.get(which) == 0}
    assert set(map(tuple, seen[_NO_DESCRIPTOR])) == allowed - set(final)
    assert set(map(tuple, seen["0"])) == pretended
    assert set(seen) <= {_NO_DESCRIPTOR, "0", "ENOSYS", "ENOPROTOOPT", "EPERM"}


# --- what decent programs need is still there ------------------------------------------------


def test_what_is_allowed_is_allowed_with_high_bits_too_and_does_no_more(
    warden: LiveWarden,
) -> None:
    source = (
        raw("socket", "socketpair", "clone", "mknod", "personality", "getpid")
        + """
high = 1 << 32
family = socket.socket(fileno=tried_fd) if (tried_fd := syscall(NR_socket, high + 2, 2, 0)) else 0
tell(family=family.getsockname()[0])
tell(pair=tried(syscall, NR_socketpair, high + 1, 1, 0, ctypes.create_string_buffer(8)))
pid = syscall(NR_clone, high | signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(7)
tell(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
kinds = {}
for kind in (0, stat.S_IFIFO, stat.S_IFREG, stat.S_IFSOCK):
    path = b'node-%o' % kind
    syscall(NR_mknod, path, kind | 0o600, 0)
    kinds[path.decode()] = stat.S_IFMT(os.stat(path).st_mode)
tell(kinds=list(kinds.values()))
tell(persona=[syscall(NR_personality, high + 0x40000), syscall(NR_personality, 0xffffffff)])
tell(pid=syscall(high + NR_getpid) == os.getpid())
"""
    )
    assert see(warden, source) == {
        "family": "0.0.0.0",
        "pair": 0,
        "child": 7,
        "kinds": [0o100000, 0o010000, 0o100000, 0o140000],
        "persona": [0, 0x40000],
        "pid": True,
    }


def test_a_node_that_was_refused_is_not_there_and_no_device_is_to_be_had(
    warden: LiveWarden,
) -> None:
    source = (
        raw("mknod", "mknodat")
        + """
tell(made=[
    syscall(NR_mknod, b'memory', stat.S_IFCHR | 0o666, os.makedev(1, 1)),
    syscall(NR_mknod, b'disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)),
    syscall(NR_mknod, b'hole', stat.S_IFCHR | 0o666, 0),
    syscall(NR_mknodat, -100, b'terminal', stat.S_IFCHR | 0o666, os.makedev(5, 0)),
])
tell(left=sorted(set(os.listdir('.')) - {'probe.py'}))
"""
    )
    seen = see(warden, source)
    assert [answer for answer in seen["made"] if not refused(answer)] == []
    assert seen["left"] == []


# --- other ways into the kernel --------------------------------------------------------------

# `run_code(code)` calls machine code that lies below 4 GiB; {here} is where.
MACHINE_CODE = (
    TRIED
    + r"""
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

def run_code(make):
    "What the code leaves in eax.  `make(here)` gives it."
    here = libc.mmap(None, 8192, 7, 0x62, -1, 0)  # private, anonymous, 32 bits
    code = make(here)
    ctypes.memmove(here, code, len(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(here)()

def load_eax(value):
    return b'\xb8' + struct.pack('<I', value)

def in_32_bits(code):
    "The code in a 32-bit segment, with ebp at memory that can be read."
    def make(here):
        jump = b'\x6a\x23\x68' + struct.pack('<I', here + 64) + b'\x48\xcb'
        return jump.ljust(64, b'\x90') + b'\xbd' + struct.pack('<I', here + 4096) + code + b'\xf4'
    return make
"""
)


def test_a_32_bit_call_by_interrupt_ends_the_process(warden: LiveWarden) -> None:
    # getpid, execve, clone, unshare, socketcall, pidfd_open and one that is none.
    source = (
        MACHINE_CODE
        + r"""
seen = {}
for number in (20, 11, 120, 310, 102, 434, 5000):
    seen[number] = tried(run_code, lambda here: load_eax(number) + b'\xcd\x80\xc3')
tell(**{str(number): end for number, end in seen.items()})
"""
    )
    # A kernel that has no such calls raises a fault at the instruction.
    assert set(see(warden, source).values()) <= {KILLED, "SIGSEGV"}


def test_a_call_from_a_32_bit_segment_ends_the_process(warden: LiveWarden) -> None:
    source = (
        MACHINE_CODE
        + r"""
tell(interrupt=tried(run_code, in_32_bits(load_eax(20) + b'\xcd\x80')))
tell(enter=tried(run_code, in_32_bits(load_eax(20) + b'\x0f\x34')))
tell(call=tried(run_code, in_32_bits(load_eax(20) + b'\x0f\x05')))
"""
    )
    # Which of the instructions there are depends on the processor.
    assert set(see(warden, source).values()) <= {KILLED, "SIGSEGV", "SIGILL"}


def test_an_x32_number_ends_the_process_even_if_the_call_is_allowed(warden: LiveWarden) -> None:
    numbers = [0, 39, 59, 101, 272, 435, 512, 520, 545, 547, X32 - 1]
    source = (
        TRIED
        + f"""
numbers = [{X32} + number for number in {numbers}] + [0x80000000, 0xfffffffe, -2, {HIGH + X32 + 39}]
tell(**{{str(number): tried(syscall, number, 0, 0, 0, 0, 0, 0) for number in numbers}})
"""
    )
    seen = see(warden, source)
    assert set(seen.values()) == {KILLED}, seen


def test_high_bits_of_a_number_hide_no_call(warden: LiveWarden) -> None:
    source = (
        raw("unshare", "acct", "ptrace")
        + """
high = 0x1234 << 32
tell(unshare=tried(syscall, high + NR_unshare, 0x10000000), refused=syscall(high + NR_acct, 0))
tell(ptrace=syscall(high + NR_ptrace, 0, 0, 0, 0))
"""
    )
    assert see(warden, source) == {"unshare": KILLED, "refused": "EPERM", "ptrace": "EPERM"}


def test_the_page_of_old_calls_answers_the_time_and_nothing_else(warden: LiveWarden) -> None:
    source = (
        TRIED
        + """
page = 0xffffffffff600000
def time_by_page():
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(page + 0x400)
    return abs(call(None) - time.time()) < 3600
def jump(offset):
    return ctypes.CFUNCTYPE(ctypes.c_long)(page + offset)()
tell(time=tried(time_by_page))
tell(inside=[tried(jump, offset) for offset in (1, 7, 0x3ff, 0x401, 0xc00, 0xff0)])
"""
    )
    seen = see(warden, source)
    assert seen["time"] in (True, "SIGSEGV")
    assert set(seen["inside"]) == {"SIGSEGV"}


def test_a_thread_that_breaks_the_rules_ends_with_its_whole_process(warden: LiveWarden) -> None:
    source = (
        raw("unshare", "setns", "bpf")
        + """
import threading
def by_thread(number):
    thread = threading.Thread(target=syscall, args=(number, 0, 0, 0, 0, 0))
    thread.start()
    thread.join()
    return 'went on'
tell(ends=[tried(by_thread, number) for number in (NR_unshare, NR_setns, NR_bpf)])
"""
    )
    assert see(warden, source) == {"ends": [KILLED] * 3}


def test_a_signal_handler_may_call_no_more_than_the_program(warden: LiveWarden) -> None:
    source = (
        raw("unshare", "acct", "clone3")
        + """
answers = []
def handle(number, frame):
    answers.extend([syscall(NR_acct, 0), syscall(NR_clone3, None, 0)])
def handle_badly(number, frame):
    syscall(NR_unshare, 0)
signal.signal(signal.SIGUSR1, handle)
signal.signal(signal.SIGUSR2, handle_badly)
def signal_me():
    os.kill(os.getpid(), signal.SIGUSR2)
    return 'went on'
os.kill(os.getpid(), signal.SIGUSR1)
tell(answers=answers, end=tried(signal_me))
"""
    )
    assert see(warden, source) == {"answers": ["EPERM", "ENOSYS"], "end": KILLED}


def test_the_rules_outlive_exec_and_fork(warden: LiveWarden) -> None:
    source = (
        raw("unshare", "acct")
        + """
again = '''
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(int(sys.argv[1]), 0)
print(ctypes.get_errno(), flush=True)
'''
import subprocess
def run(number):
    ended = subprocess.run([sys.executable, '-c', again, str(number)], capture_output=True)
    return [ended.returncode, ended.stdout.decode()]
tell(refused=run(NR_acct), ended=run(NR_unshare))
"""
    )
    assert see(warden, source) == {
        "refused": [0, f"{errno.EPERM}\n"],
        "ended": [-signal.SIGSYS, ""],
    }


def test_the_end_by_the_filter_can_be_neither_caught_nor_ignored_nor_blocked(
    warden: LiveWarden,
) -> None:
    source = (
        raw("unshare")
        + """
import threading
def caught():
    signal.signal(signal.SIGSYS, lambda *_: os._exit(3))
    return syscall(NR_unshare, 0)
def ignored():
    signal.signal(signal.SIGSYS, signal.SIG_IGN)
    return syscall(NR_unshare, 0)
def blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return syscall(NR_unshare, 0)
def waited_for():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGSYS})
    threading.Thread(target=signal.sigwait, args=({signal.SIGSYS},)).start()
    return syscall(NR_unshare, 0)
tell(**{body.__name__: tried(body) for body in (caught, ignored, blocked, waited_for)})
"""
    )
    seen = see(warden, source)
    assert seen == dict.fromkeys(("caught", "ignored", "blocked", "waited_for"), KILLED)


def test_catching_its_own_calls_lets_none_past_the_filter(warden: LiveWarden) -> None:
    """The kernel can hand a program its own calls as signals; the filter comes after."""
    source = (
        raw("unshare", "prctl")
        + """
def dispatched():
    selector = ctypes.create_string_buffer(1)  # 0: let them through
    tried_to = syscall(NR_prctl, 59, 1, 0, 0, ctypes.addressof(selector))
    return [tried_to, syscall(NR_unshare, 0)]
tell(end=tried(dispatched))
"""
    )
    assert see(warden, source) == {"end": KILLED}


def test_the_last_words_of_a_leader_are_kept_and_its_end_is_a_policy_violation(
    warden: LiveWarden,
) -> None:
    source = (
        raw("unshare", "bpf")
        + """
import threading
signal.signal(signal.SIGSYS, signal.SIG_IGN)
tell(last='words')
if sys.argv[1] == 'thread':
    threading.Thread(target=syscall, args=(NR_bpf, 0, 0, 0)).start()
    while True:
        signal.pause()
syscall(NR_unshare, 0)
os._exit(0)
"""
    )
    for (result,) in warden.run(attack(source, "leader"), attack(source, "thread")):
        assert (result.outcome, result.exit_code, result.signal) == ("policy_violation", None, None)
        assert told(result) == {"last": "words"}


def test_a_child_that_breaks_the_rules_ends_alone(warden: LiveWarden) -> None:
    source = (
        raw(*_known(profiles.KILLED))
        + """
numbers = [value for name, value in list(globals().items()) if name.startswith('NR_')]
tell(ends=sorted({tried(syscall, number, 0, 0, 0, 0, 0, 0) for number in numbers}))
"""
    )
    assert see(warden, source) == {"ends": [KILLED]}


# --- native_v1 -------------------------------------------------------------------------------

# Makes the calls that its arguments name, as number:argument:…, and says what each gave.
NATIVE_SOURCE = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    long me = syscall(SYS_getpid);
    for (int i = 1; i < count; i++) {
        long given[7] = {0};
        int at = 0;
        for (char *part = strtok(words[i], ":"); part; part = strtok(NULL, ":"))
            given[at++] = (long)strtoul(part, NULL, 0);
        errno = 0;
        long result = syscall(given[0], given[1], given[2], given[3], given[4], given[5], given[6]);
        if (syscall(SYS_getpid) != me)
            _exit(0);
        printf("%d\n", result == -1 ? errno : 0);
        fflush(stdout);
    }
    return 0;
}
"""

_FORKING = [
    _call("clone", flags)
    for flags in (
        SIGCHLD,
        0,
        0x4000 | 0x100 | SIGCHLD,  # as posix_spawn makes it
        0x100 | 0x200 | 0x400 | 0x800,  # as a thread, but for the one flag
        HIGH | SIGCHLD,
        HIGH * profiles.CLONE_THREAD | SIGCHLD,  # the flag, but where nobody looks
    )
]
NATIVE_KILLED = _some(
    [
        *(_call(name, fill=fill) for name in _known(profiles.NATIVE_KILLED) for fill in (0, -1)),
        *_FORKING,
        *(_call(name) for name in _known(profiles.KILLED)),
    ]
)
_WITHOUT_KILLED = [
    *((call, answer) for call, answer in (*MET, *FINAL, *PERSONALITIES, *NODES)),
    *((_call(name), "ENOSYS") for name in ("clone3", "io_uring_setup", "memfd_secret", "io_setup")),
]
NATIVE_ANSWERED = [
    (call, answer)
    for call, answer in _WITHOUT_KILLED
    # A socket is the end here, whatever its family.
    if answer != KILLED and call.name not in profiles.NATIVE_KILLED
]


@pytest.fixture(scope="module")
def native_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("native")
    (folder / "calls.c").write_text(NATIVE_SOURCE)
    subprocess.run(["gcc", "-O1", "-o", folder / "calls", folder / "calls.c"], check=True)
    return (folder / "calls").read_bytes()


def _native(program: bytes | None, calls: list[Call], profile: str = "native_v1") -> Task:
    """The program with these calls; None where an earlier step has laid it out."""
    words = [
        ":".join(str(value & 0xFFFFFFFFFFFFFFFF) for value in (call.number, *call.arguments))
        for call in calls
    ]
    files = {} if program is None else {"calls": program}
    return task("./calls", *words, files=files, profile=profile)


@pytest.fixture(scope="module")
def native_ends(session_warden: LiveWarden, native_program: bytes) -> dict[str, TaskResult]:
    """How the program ends with each call, by the call's text.  It can have no child here, so
    each is a task; several side by side, of one file that a step before them brings."""
    ends: dict[str, TaskResult] = {}
    at_once, in_one_job = 4, 60
    for start in range(0, len(NATIVE_KILLED), in_one_job):
        calls = NATIVE_KILLED[start : start + in_one_job]
        steps = [
            [_native(None, [call]) for call in calls[first : first + at_once]]
            for first in range(0, len(calls), at_once)
        ]
        budget_ms = int(stretched(30_000))
        _, *results = session_warden.run(_native(native_program, []), *steps, budget_ms=budget_ms)
        flat = [result for step in results for result in step]
        ends.update({str(call): result for call, result in zip(calls, flat, strict=True)})
    return ends


@pytest.mark.parametrize("call", NATIVE_KILLED, ids=str)
def test_a_native_program_ends_with_what_it_has_no_use_for(
    native_ends: dict[str, TaskResult], call: Call
) -> None:
    result = native_ends[str(call)]
    assert (result.outcome, result.stdout) == ("policy_violation", b"")


def test_a_native_program_meets_the_other_rules_as_any_program_does(
    warden: LiveWarden, native_program: bytes
) -> None:
    calls = [call for call, _ in NATIVE_ANSWERED]
    result = warden.run_one(_native(native_program, calls))
    assert (result.outcome, result.exit_code) == ("completed", 0), result
    codes = [int(line) for line in result.stdout.split()]
    answers = [_errno_name(code) for code in codes]
    wrong = {
        str(call): seen
        for (call, answer), seen in zip(NATIVE_ANSWERED, answers, strict=True)
        if seen != answer
    }
    assert wrong == {}


def test_the_same_calls_do_not_end_a_program_of_the_other_profile(
    warden: LiveWarden, native_program: bytes
) -> None:
    """So the ends above are native_v1's own doing."""
    calls = [call for call in NATIVE_KILLED if call.name in ("socket", "fork", "memfd_create")]
    result = warden.run_one(_native(native_program, calls, profile="standard_v1"))
    assert (result.outcome, len(result.stdout.split())) == ("completed", len(calls))
