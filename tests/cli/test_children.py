"""Processes that the service starts: what they take from whoever started it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
from pathlib import Path

import pytest

from gaoler.cli import children
from gaoler.sandbox import seccomp, syscalls
from tests.hosting import LIMIT_S

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def test_no_module_is_taken_from_the_folder_that_the_service_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    pid = children.spawn(["-m", "gaoler.sandbox.wire"], ENVIRONMENT, [], lambda: None)
    assert os.waitpid(pid, 0)[1] == 0
    assert not (tmp_path / "taken").exists()


def test_a_child_that_has_only_just_begun_can_be_ended() -> None:
    """Pins: gunicorn was told to end before it led a group of its own, and went on.

    Nor does it hear the signal as we would.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        for _ in range(10):
            pid = children.spawn(["-c", ""], ENVIRONMENT, [], signal.pause)
            children.signal_group(pid, signal.SIGTERM)
            ended = os.pidfd_open(pid)
            assert select.select([ended], [], [], LIMIT_S)[0]
            os.close(ended)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_typed_where_the_service_was_started_cannot_be_read() -> None:
    """Neither by the number that it came by nor by opening it again."""
    source = """
import json, os
def reads(file):
    try:
        descriptor = os.open(file, os.O_RDONLY) if isinstance(file, str) else file
        return bool(os.read(descriptor, 1))
    except OSError:
        return False
os.setgid(65534)
os.setuid(65534)
names = [n for n in (0, 1, 2)] + [f"/proc/self/fd/{n}" for n in (0, 1, 2)]
print(json.dumps([name for name in names if reads(name)]))
"""
    pid, terminal = pty.fork()
    if pid == 0:
        child = children.spawn(["-c", source], ENVIRONMENT, [], os.setsid)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.write(terminal, b"a secret\n")
    said = b""
    try:
        while data := os.read(terminal, 4096):
            said += data
    except OSError:
        pass  # the terminal has no other end any more
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert json.loads(said.splitlines()[-1]) == []


def test_the_web_process_gets_no_namespace_and_no_file_system_of_its_own() -> None:
    source = """
import ctypes, errno, json, os, socket, struct, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
def answer(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno())
threads = [threading.Thread(target=lambda: None)]
threads[0].start(); threads[0].join()
sock = socket.socket()
try:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 9))
    lingers = True
except PermissionError:
    lingers = False
print(json.dumps({
    'unshare': answer(272, 0x10000000),
    'clone': answer(56, 0x10000000 | 17, 0, 0, 0, 0),
    'clone3': answer(435, 0, 0),
    'mount': answer(165, 0, 0, 0, 0, 0),
    'lingers': lingers,
    'child': subprocess.run(['/bin/echo', 'yes'], capture_output=True, text=True).stdout,
}))
"""
    refused = seccomp.compile_web()
    read_end, write_end = os.pipe()

    def prepare() -> None:
        os.dup2(write_end, 1)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.seccomp_load(refused)

    pid = children.spawn(["-c", source], ENVIRONMENT, [write_end], prepare)
    os.close(write_end)
    with open(read_end, encoding="ascii") as file:
        seen = json.load(file)
    assert os.waitpid(pid, 0)[1] == 0
    assert seen == {
        "unshare": "EPERM",
        "clone": "EPERM",
        "clone3": "ENOSYS",
        "mount": "EPERM",
        "lingers": False,
        "child": "yes\n",
    }


def test_a_child_that_hangs_is_killed_and_reaped() -> None:
    pid = children.spawn(["-c", "import signal; signal.pause()"], ENVIRONMENT, [], lambda: None)
    children.end(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
