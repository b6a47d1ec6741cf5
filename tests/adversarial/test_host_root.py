"""The host's own root: no path, descriptor or process leads to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.probing import see
from tests.hosting import LiveWarden

# Everywhere that a root which was left behind could be found.
_WAYS = (
    "", "/run", "/var", "/var/run", "/mnt", "/oldroot", "/proc/1/root", "/proc/1/cwd",
    "/proc/self/root/..", "/..", "/proc/self/cwd/../..", "/proc/self/task/1/root",
)  # fmt: skip
_WALK = f"""
WAYS = {_WAYS!r}
def through(path, look):
    return [way for way in WAYS if attempt(look, way + path) == 'done']
"""
SECRET = b"nobody in a jail may read this"


@pytest.fixture
def canary() -> Iterator[Path]:
    """A file of the host that everybody may read, where everybody may write."""
    path = Path(f"/var/tmp/gaoler-canary-{os.getpid()}")
    path.write_bytes(SECRET)
    path.chmod(0o666)
    yield path
    path.unlink()


def test_a_file_of_the_host_that_everybody_may_read_cannot_be_read(
    warden: LiveWarden, canary: Path
) -> None:
    seen = see(
        warden,
        _WALK + f"tell(read=through({str(canary)!r}, lambda path: open(path, 'rb').close()))",
    )
    assert seen == {"read": []}


def test_a_file_of_the_host_that_everybody_may_write_cannot_be_written(
    warden: LiveWarden, canary: Path
) -> None:
    seen = see(
        warden,
        _WALK + f"tell(written=through({str(canary)!r}, lambda p: os.truncate(p, 0)))",
    )
    assert seen == {"written": []}
    assert canary.read_bytes() == SECRET


def test_nothing_can_be_made_in_a_folder_of_the_host_that_everybody_may_write(
    warden: LiveWarden, canary: Path
) -> None:
    planted = canary.with_suffix(".planted")
    seen = see(
        warden,
        _WALK + f"tell(made=through({str(planted)!r}, lambda p: os.mkdir(p)))",
    )
    # Its own /var/tmp, by whichever name, is another one.
    assert set(seen["made"]) <= {"", "/..", "/proc/self/root/..", "/proc/self/cwd/../.."}
    assert not planted.exists()


def test_a_program_of_the_host_outside_of_the_toolchain_cannot_be_run(
    warden: LiveWarden, canary: Path
) -> None:
    canary.write_bytes(b"#!/bin/sh\necho run\n")
    canary.chmod(0o755)
    seen = see(
        warden,
        _WALK
        + f"""
import subprocess
tell(run=through({str(canary)!r}, lambda p: subprocess.run([p], check=True)))
""",
    )
    assert seen == {"run": []}


def test_the_hosts_names_and_users_cannot_be_read(warden: LiveWarden) -> None:
    looked_for = ["/etc/machine-id", "/etc/fstab", "/etc/group-", "/etc/passwd-", "/root/.profile"]
    seen = see(
        warden,
        _WALK + f"tell(read=[p for p in {looked_for!r} if through(p, lambda q: open(q).close())])",
    )
    assert seen == {"read": []}


def test_the_hosts_folders_are_not_listed_anywhere(warden: LiveWarden) -> None:
    seen = see(
        warden,
        _WALK
        + "tell(listed=[f for f in ('/home', '/root', '/boot', '/srv', '/sys', '/opt')"
        + " if [w for w in through(f, os.listdir) if w and os.listdir(w + f)]])",
    )
    assert seen == {"listed": []}


def test_a_climb_of_any_height_ends_in_the_jails_own_root(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
os.chdir('/box')
os.chdir('/'.join(['..'] * 64))
folder = os.open('.', os.O_RDONLY)
same = os.stat('/')
tell(
    entries=sorted(os.listdir('.')) == sorted(os.listdir('/')),
    inode=[os.fstat(folder).st_ino, os.fstat(folder).st_dev] == [same.st_ino, same.st_dev],
    above=os.stat('..', dir_fd=folder).st_ino == same.st_ino,
)
""",
    )
    assert seen == {"entries": True, "inode": True, "above": True}


def test_the_mount_table_names_no_file_system_of_the_host(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
tell(kinds=sorted({line.split(' - ')[1].split()[0] for line in open('/proc/self/mountinfo')}),
     points=[line.split()[4] for line in open('/proc/self/mountinfo')])
""",
    )
    assert set(seen["kinds"]) <= {"tmpfs", "overlay", "proc"}
    shown = ("/usr", "/bin", "/lib", "/sbin", "/opt", "/box", "/dev", "/tmp", "/proc")
    assert all(point == "/" or point.startswith(shown) for point in seen["points"]), seen["points"]
