"""Files and mounts: nothing of the host but the toolchain, and that unchangeable."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adversarial.calls import TRIED
from tests.adversarial.probing import attack, see, told
from tests.hosting import LiveWarden, Watched, eventually, job, process_tree, shell

# `met`: what a call came to in a child of its own; a refusal is an errno's name or a signal's.
MET = TRIED + "def met(*call):\n    return tried(syscall, *call)\n"
DENIED = {"EPERM", "EACCES", "EROFS"}
GONE = DENIED | {"ENOENT", "ENOTDIR"}
# For calls that the filter may answer with the end of the process.
CUT = DENIED | {"SIGSYS", "ENOSYS"}
FOLDERS_OF_OTHERS = ("/", "/etc", "/run", "/dev", "/usr", "/usr/bin", "/usr/lib", "/var", "/proc")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that everybody may read, write and remove; nobody may have."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    file = tmp_path / "canary"
    file.write_text("the host's")
    file.chmod(0o666)
    before = _identity(file)
    yield file
    assert file.read_text() == "the host's"
    assert _identity(file) == before
    assert os.listdir(tmp_path) == ["canary"]


def _identity(file: Path) -> tuple[int, ...]:
    """All of a file's state that a change of any kind would change."""
    s = file.lstat()
    return (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_ctime_ns)


def _assert_all(seen: dict[str, Any], allowed: set[str]) -> None:
    """Each of the words that a probe told is one of the refusals."""
    assert seen
    assert {name: word for name, word in seen.items() if word not in allowed} == {}


# --- the host's paths ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        "",
        "/proc/self/root",
        "/proc/self/cwd/../../..",
        "/proc/thread-self/root/../..",
        "/proc/1/root",
        "/box/../../../..",
        "/run",
        "/run/../..",
        "/dev/fd/0/../../../..",
        "/proc/self/fd/../../../..",
        "/proc/self/ns/../../../..",
    ],
)
def test_a_host_file_that_everybody_may_change_is_out_of_reach(
    warden: LiveWarden, canary: Path, way: str
) -> None:
    seen = see(
        warden,
        """
path = sys.argv[1]
tell(read=attempt(os.open, path, os.O_RDONLY), write=attempt(os.open, path, os.O_WRONLY),
     handle=attempt(os.open, path, os.O_PATH), remove=attempt(os.unlink, path),
     rename=attempt(os.rename, path, '/box/mine'), link=attempt(os.link, path, '/box/mine'),
     chmod=attempt(os.chmod, path, 0), plant=attempt(os.mkdir, path + '-planted'),
     folder=attempt(os.listdir, os.path.dirname(path)))
""",
        way + str(canary),
    )
    _assert_all(seen, GONE | {"EXDEV"})


def test_climbing_by_dots_from_any_folder_ends_at_the_jails_root(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
def top(folder):
    for _ in range(12):
        up = os.open('..', os.O_PATH | os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = up
    found = os.fstat(folder)
    os.close(folder)
    return [found.st_dev, found.st_ino]
names = ['/', '/box', '/tmp', '/dev', '/dev/shm', '/proc', '/proc/self', '/proc/self/fd',
         '/proc/sys/kernel', '/usr', '/usr/bin', '/usr/lib', '/etc', '/run']
tops = [top(os.open(n, os.O_PATH | os.O_DIRECTORY)) for n in names]
os.chdir('../' * 300)
tell(tops=tops, cwd=os.getcwd(), names=sorted(os.listdir('.')))
""",
    )
    assert len({tuple(top) for top in seen["tops"]}) == 1
    assert seen["cwd"] == "/"
    host = os.stat("/")
    assert tuple(seen["tops"][0]) != (host.st_dev, host.st_ino)
    assert "root" not in seen["names"]
    assert "sys" not in seen["names"]


def test_a_folder_that_was_moved_while_it_was_open_does_not_lead_out(warden: LiveWarden) -> None:
    """The old way out of a chroot: hold a folder, have it moved, climb from it."""
    seen = see(
        warden,
        """
os.makedirs('a/b/c')
held = os.open('a/b/c', os.O_DIRECTORY)
os.rename('a/b/c', 'c')
os.chdir('c'); os.rmdir('../c')          # and from a folder that is no more
found = []
for start in (held, os.open('.', os.O_PATH)):
    try:
        os.fchdir(start); os.chdir('../../../../../..')
        here = os.stat('.'); root = os.stat('/')
        found.append([here.st_dev, here.st_ino] == [root.st_dev, root.st_ino])
    except FileNotFoundError:
        found.append(True)
tell(at_root=found, out=attempt(os.rename, '/box/a', '/a'), box=attempt(os.rename, '/box', '/b'),
     rmdir=attempt(os.rmdir, '/box'))
""",
    )
    assert seen.pop("at_root") == [True, True]
    _assert_all(seen, DENIED | {"EXDEV", "EBUSY", "ENOTEMPTY"})


def test_no_mount_is_one_of_the_hosts_and_none_gets_its_changes(warden: LiveWarden) -> None:
    """Compared by device numbers: each mount is of a file system of the jail's own."""
    seen = see(warden, "tell(lines=open('/proc/self/mountinfo').read().splitlines())")
    mounts = [line.split() for line in seen["lines"]]
    assert [m[4] for m in mounts].count("/") == 1
    for fields in mounts:
        propagation = fields[6 : fields.index("-")]
        assert propagation == [], fields
    host = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    # A single file that the host has mounted into its toolchain can only be bound.
    shared = [m[4] for m in mounts if m[2] in host and os.path.isdir(m[4])]
    assert shared == []


def test_the_mount_table_names_no_folder_of_the_service(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
names = ('mountinfo', 'mounts', 'mountstats', 'maps', 'smaps', 'numa_maps', 'cgroup', 'environ')
def read(path):
    try:
        return open(path, errors='replace').read()
    except OSError:
        return ''
tell(found=[n for n in names for word in sys.argv[1:] if word in read('/proc/self/' + n)])
""",
        warden.instance,
        str(warden.settings.runtime_dir),
        str(warden.settings.state_dir),
    )
    assert seen == {"found": []}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("mount proc", "met(165, b'p', b'/box', b'proc', 0, None)"),
        ("mount tmpfs", "met(165, b't', b'/box', b'tmpfs', 0, None)"),
        ("bind", "met(165, b'/', b'/box', None, 4096 | 16384, None)"),
        ("remount the root", "met(165, None, b'/', None, 32 | 4096, None)"),
        ("remount the toolchain", "met(165, None, b'/usr', None, 32, None)"),
        ("make it shared", "met(165, None, b'/', None, (1 << 20) | 16384, None)"),
        ("move", "met(165, b'/box', b'/tmp', None, 8192, None)"),
        ("overlay", "met(165, b'o', b'/box', b'overlay', 0, b'lowerdir=/usr,upperdir=/box')"),
        ("uncover kmsg", "met(166, b'/proc/kmsg', 2)"),
        ("uncover box", "met(166, b'/box', 2)"),
        ("open tree", "met(428, -100, b'/', 1)"),
        ("move mount", "met(429, -100, b'/box', -100, b'/tmp', 0)"),
        ("new file system", "met(430, b'tmpfs', 0)"),
        ("pick a file system", "met(433, -100, b'/usr', 0)"),
        ("mount attributes", "met(442, -100, b'/', 0, ctypes.c_char_p(bytes(32)), 32)"),
        ("mounts of their own", "met(272, 0x20000)"),
        ("join mounts", "met(308, os.open('/proc/self/ns/mnt', 0), 0x20000)"),
        ("quota", "met(179, 0x800002, b'/usr', 0, None)"),
    ],
)
def test_the_mount_table_cannot_be_changed(warden: LiveWarden, name: str, call: str) -> None:
    seen = see(
        warden,
        MET
        + f"""
table = open('/proc/self/mountinfo').read()
tell(met={call})
tell(same=open('/proc/self/mountinfo').read() == table)
""",
    )
    assert seen["same"], name
    assert seen["met"] in CUT, name


# --- the toolchain ------------------------------------------------------------------------


def _tool() -> Path:
    return Path(os.path.realpath("/usr/bin/python3"))


def test_no_call_changes_a_file_of_the_toolchain(warden: LiveWarden) -> None:
    tool = _tool()
    before = _identity(tool), sorted(os.listdir(tool.parent))
    seen = see(
        warden,
        """
tool = sys.argv[1]
folder = os.path.dirname(tool)
open('/box/mine', 'w').close()
held = os.open(tool, os.O_RDONLY)
again = '/proc/self/fd/%d' % os.open(tool, os.O_PATH)
tell(write=attempt(os.open, tool, os.O_WRONLY), both=attempt(os.open, tool, os.O_RDWR),
     cut=attempt(os.open, tool, os.O_RDONLY | os.O_TRUNC), truncate=attempt(os.truncate, tool, 0),
     short=attempt(os.ftruncate, held, 0), reopened=attempt(os.open, again, os.O_WRONLY),
     chmod=attempt(os.chmod, tool, 0o777), fchmod=attempt(os.fchmod, held, 0o777),
     chmod_again=attempt(os.chmod, again, 0o4777), chown=attempt(os.chown, tool, 1000, 1000),
     touch=attempt(os.utime, tool), unlink=attempt(os.unlink, tool),
     rename=attempt(os.rename, tool, tool + '.old'), over=attempt(os.rename, '/box/mine', tool),
     link=attempt(os.link, tool, folder + '/new'), symlink=attempt(os.symlink, 'x', folder + '/x'),
     xattr=attempt(os.setxattr, tool, 'user.x', b'x'), less=attempt(os.removexattr, tool, 'user.x'),
     allocate=attempt(os.posix_fallocate, held, 0, 9), held=attempt(os.pwrite, held, b'x', 0))
""",
        str(tool),
    )
    _assert_all(seen, DENIED | {"EBADF", "EINVAL", "EXDEV", "ENOTSUP"})
    assert (_identity(tool), sorted(os.listdir(tool.parent))) == before


@pytest.mark.parametrize("folder", FOLDERS_OF_OTHERS)
def test_nothing_of_any_kind_is_made_or_moved_outside_the_writable_folders(
    warden: LiveWarden, folder: str
) -> None:
    seen = see(
        warden,
        """
folder = sys.argv[1]
new = folder + '/planted'
open('/box/mine', 'w').close()
before = sorted(os.listdir(folder)) if folder != '/proc' else []
def bound():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(new)
tell(file=attempt(os.open, new, os.O_CREAT | os.O_WRONLY, 0o600), folder=attempt(os.mkdir, new),
     symlink=attempt(os.symlink, '/box', new), link=attempt(os.link, '/box/mine', new),
     fifo=attempt(os.mkfifo, new), socket=attempt(bound), node=attempt(os.mknod, new, 0o600),
     rename=attempt(os.rename, '/box/mine', new), swap=syscall(316, -100, b'/box/mine', -100,
     (folder + '/.').encode(), 2), nameless=attempt(os.open, folder, os.O_TMPFILE | os.O_RDWR),
     chmod=attempt(os.chmod, folder, 0o777), chown=attempt(os.chown, folder, 1000, 1000))
if folder != '/proc' and sorted(os.listdir(folder)) != before:
    tell(listing='changed')
""",
        folder,
    )
    # In /proc a name that is made up does not exist, and a swap with "." is no swap.
    _assert_all(seen, GONE | {"EXDEV", "EBUSY", "EINVAL", "ENOTSUP", "EISDIR"})
    assert not Path(folder, "planted").exists()


def test_a_nameless_file_gets_no_name_outside_the_writable_folders(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
held = os.open('/box', os.O_TMPFILE | os.O_RDWR, 0o755)
os.write(held, b'#!/bin/sh\\n')
source = ('/proc/self/fd/%d' % held).encode()
def named(path):
    return syscall(265, -100, source, -100, path, 0x400)
def by_handle(path):
    return syscall(265, held, b'', -100, path, 0x1000)
# In the box it may have one: programs replace their files so.
tell(inside=named(b'/box/named') == 0, size=os.stat('/box/named').st_size)
places = (b'/usr/bin/x', b'/etc/x', b'/dev/x', b'/run/x', b'/x', b'/proc/x')
tell(names=[named(p) for p in places], handles=[by_handle(p) for p in places])
""",
    )
    assert (seen["inside"], seen["size"]) == (True, 10)
    assert set(seen["names"]) | set(seen["handles"]) <= GONE | {"EXDEV"}


def test_files_of_others_cannot_be_linked_into_the_workspace(warden: LiveWarden) -> None:
    """A hard link to a set-UID file would outlive its repair."""
    seen = see(
        warden,
        """
names = ['/usr/bin/su', sys.executable, '/etc/passwd', '/dev/null', '/proc/self/exe', '/proc/kmsg']
tell(links=[attempt(os.link, n, '/box/l', follow_symlinks=True) for n in names],
     renames=[attempt(os.rename, n, '/box/l') for n in names],
     swaps=[syscall(316, -100, n.encode(), -100, b'/box/probe.py', 2) for n in names],
     clones=[syscall(265, os.open(n, os.O_PATH), b'', -100, b'/box/l', 0x1000) for n in names],
     there=os.path.lexists('/box/l'))
""",
    )
    assert seen.pop("there") is False
    assert {word for words in seen.values() for word in words} <= GONE | {"EXDEV"}
    if os.path.exists("/usr/bin/su"):
        assert os.stat("/usr/bin/su").st_nlink == 1


def test_a_mapping_of_a_tool_cannot_be_made_writable(warden: LiveWarden) -> None:
    tool = _tool()
    before = tool.read_bytes()[:4096]
    seen = see(
        warden,
        """
import mmap
file = os.open(sys.argv[1], os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
address = libc.mmap(None, 4096, 1, 1, file, 0)
tell(shared=attempt(mmap.mmap, file, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
     mprotect='done' if libc.mprotect(address, 4096, 3) == 0
              else errno.errorcode[ctypes.get_errno()])
own = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
own[:4] = b'mine'                         # a copy of its own: it may
tell(again=os.pread(file, 4, 0) == b'\\x7fELF')
""",
        str(tool),
    )
    assert seen.pop("again") is True
    _assert_all(seen, DENIED)
    assert tool.read_bytes()[:4096] == before


@pytest.mark.heavy
def test_what_is_forced_through_proc_mem_does_not_reach_the_tool(warden: LiveWarden) -> None:
    """Writing to a read-only mapping through /proc/self/mem, in the manner of Dirty COW."""
    tool = _tool()
    before = tool.read_bytes()[:4096]
    seen = see(
        warden,
        """
import mmap
file = os.open(sys.argv[1], os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
met = []
for kind in (1, 2):                       # shared, private
    address = libc.mmap(None, 4096, 1, kind, file, 0)
    try:
        with open('/proc/self/mem', 'r+b', buffering=0) as memory:
            memory.seek(address)
            memory.write(b'mine')
        met.append('done')
    except OSError as error:
        met.append(errno.errorcode[error.errno])
tell(met=met, same=os.pread(file, 4, 0) == b'\\x7fELF')
""",
        str(tool),
    )
    assert seen["same"] is True
    assert seen["met"][0] in DENIED | {"EIO"}
    assert tool.read_bytes()[:4096] == before


def test_a_write_into_a_pipe_never_reaches_the_file_that_was_spliced_into_it(
    warden: LiveWarden,
) -> None:
    """CVE-2022-0847, with a file of the probe's own that it holds open for reading alone."""
    seen = see(
        warden,
        """
with open('victim', 'wb') as file:
    file.write(b'A' * 4096)
os.chmod('victim', 0o444)
file = os.open('victim', os.O_RDONLY)
read_end, write_end = os.pipe()
for _ in range(16):
    os.write(write_end, b'x' * 4096)      # every slot of the pipe has been written to
for _ in range(16):
    os.read(read_end, 4096)
os.splice(file, write_end, 1, offset_src=0)
os.write(write_end, b'B' * 100)
tell(left=open('victim').read().count('A'))
""",
    )
    assert seen == {"left": 4096}


# --- rights in files ----------------------------------------------------------------------


def test_a_file_of_its_own_carries_no_rights_of_anybody_else(warden: LiveWarden) -> None:
    """chown to root, to the host's numbers or to nobody; set-UID on a copy; and the true owner."""
    low, high = warden.settings.uid_range
    source = """
import shutil, subprocess
shutil.copy('/usr/bin/id', 'own')
low, high = int(sys.argv[1]), int(sys.argv[2])
owners = {str(n): attempt(os.chown, 'own', n, n) for n in (0, 1, 65534, low, high, 999)}
os.chmod('own', 0o6755)
who = subprocess.run(['./own', '-u'], capture_output=True).stdout.decode().strip()
tell(owners=owners, who=who)
os.mkfifo('go'); open('ready', 'w').close()
open('go').read()
"""
    with _held(warden, source, str(low), str(high)) as (box, watched):
        info = (box / "own").stat()
        assert low <= info.st_uid <= high
        assert info.st_uid == info.st_gid == box.stat().st_uid
    seen = told(watched.results[0, 0])
    assert seen["who"] == "1000"
    assert set(seen["owners"].values()) <= {"EPERM", "EINVAL"}


@pytest.mark.parametrize(
    "name",
    [
        "security.ima",
        "security.evm",
        "trusted.gaoler",
        "system.advise",
        "gaoler",
    ],
)
def test_no_attribute_that_means_rights_can_be_set(warden: LiveWarden, name: str) -> None:
    seen = see(
        warden,
        """
import shutil
shutil.copy('/usr/bin/id', 'own')
# Revision 2 of file capabilities: everything permitted and effective.
value = struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
fd = os.open('own', os.O_RDWR)
tell(path=attempt(os.setxattr, 'own', sys.argv[1], value),
     descriptor=attempt(os.setxattr, fd, sys.argv[1], value),
     folder=attempt(os.setxattr, '/box', sys.argv[1], value),
     tool=attempt(os.setxattr, sys.executable, sys.argv[1], value))
names = os.listxattr('own')
if sys.argv[1] in names:
    tell(listed='yes')
""",
        name,
    )
    _assert_all(seen, DENIED | {"ENOTSUP", "EINVAL"})


def test_an_attribute_that_means_nothing_is_set_on_its_own_files_at_most(
    warden: LiveWarden,
) -> None:
    """A kernel with a security module of BPF programs forgets to ask who may name one."""
    seen = see(
        warden,
        """
for path in ('/', '/etc/passwd', '/dev/null', sys.executable, '/proc/self/status'):
    tell(**{path: attempt(os.setxattr, path, 'security.gaoler', b'x')})
""",
    )
    _assert_all(seen, DENIED | {"ENOTSUP"})


def test_a_label_is_put_on_no_file_but_its_own(warden: LiveWarden) -> None:
    """A kernel that has SELinux and no policy lets an owner write labels that nobody reads."""
    seen = see(
        warden,
        """
for name in ('security.selinux', 'security.SMACK64', 'security.apparmor'):
    for path in ('/', '/etc/passwd', '/dev/null', sys.executable, '/proc/self/status'):
        tell(**{name + path: attempt(os.setxattr, path, name, b'system_u:object_r:etc_t:s0')})
""",
    )
    _assert_all(seen, DENIED | {"ENOTSUP"})


def test_an_access_list_gives_nobody_else_a_way_into_the_workspace(warden: LiveWarden) -> None:
    """Whatever names an access list holds, they are those of a namespace that maps one."""
    seen = see(
        warden,
        """
def entry(tag, rights, who):
    return struct.pack('<HHI', tag, rights, who)
low = int(sys.argv[1])
met = {}
for who in (0, low, 65534):
    value = struct.pack('<I', 2) + entry(1, 7, 0xffffffff) + entry(2, 7, who) \\
        + entry(4, 7, 0xffffffff) + entry(16, 7, 0xffffffff) + entry(32, 7, 0xffffffff)
    met[str(who)] = attempt(os.setxattr, '/box', 'system.posix_acl_access', value)
tell(**met)
""",
        str(warden.settings.uid_range[0]),
    )
    _assert_all(seen, DENIED | {"EINVAL", "ENOTSUP", "EOVERFLOW"})


@pytest.mark.parametrize("path", ["/box/own", "/box", "/usr/bin/env", "/etc/passwd"])
def test_no_file_can_be_made_immutable(warden: LiveWarden, path: str) -> None:
    """A file of the workspace that could not be removed would outlive its teardown."""
    seen = see(
        warden,
        """
import fcntl
open('/box/own', 'w').close()
fd = os.open(sys.argv[1], os.O_RDONLY)
def flags(value):
    fcntl.ioctl(fd, 0x40086602, struct.pack('l', value))
tell(immutable=attempt(flags, 0x10), append=attempt(flags, 0x20), both=attempt(flags, 0x30),
     extended=attempt(fcntl.ioctl, fd, 0x401c5820, struct.pack('IIIII8x', 8, 0, 0, 0, 0)))
""",
        path,
    )
    _assert_all(seen, DENIED | {"ENOTTY", "ENOTSUP", "EINVAL"})


@pytest.mark.heavy
def test_no_file_system_can_be_frozen_trimmed_or_shut_down(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import fcntl
requests = {'freeze': 0xC0045877, 'thaw': 0xC0045878, 'trim': 0xC0185879, 'shutdown': 0x8004587D,
            'map': 1, 'resize': 0x40086610, 'swap boot': 0x6611, 'verity': 0x40806685,
            'encrypt': 0x800c6613, 'label': 0x41009432}
for path in ('/usr', '/usr/bin/env', '/etc', '/box', '/dev', '/proc'):
    fd = os.open(path, os.O_RDONLY)
    for name, number in requests.items():
        tell(**{path + ' ' + name: attempt(fcntl.ioctl, fd, number, bytes(256))})
""",
    )
    _assert_all(seen, DENIED | {"ENOTTY", "ENOTSUP", "EINVAL", "ENOSYS", "EFAULT", "EBADF"})
    assert os.statvfs("/usr").f_blocks  # it answers


# --- devices ------------------------------------------------------------------------------


def test_there_are_five_devices_and_none_of_them_is_a_disk(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
nodes = {}
for top, _, names in os.walk('/dev'):
    for name in names:
        info = os.lstat(os.path.join(top, name))
        if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
            nodes[name] = [stat.S_ISCHR(info.st_mode), os.major(info.st_rdev),
                           os.minor(info.st_rdev)]
others = '''ptmx pts tty console tty0 ttyS0 kmsg mem port fuse kvm vsock vhost-net vhost-vsock
    loop0 loop-control net/tun mqueue hugepages userfaultfd uinput snd dri input hwrng rtc0 vda sda
    mapper/control btrfs-control cpu_dma_latency autofs watchdog vfio/vfio bus/usb'''
there = [n for n in others.split() if attempt(os.stat, '/dev/' + n) != 'ENOENT']
tell(nodes=nodes, there=there)
""",
    )
    assert seen["nodes"] == {
        "null": [True, 1, 3],
        "zero": [True, 1, 5],
        "full": [True, 1, 7],
        "random": [True, 1, 8],
        "urandom": [True, 1, 9],
    }
    assert seen["there"] == []


@pytest.mark.parametrize(
    ("name", "kind", "major", "minor"),
    [
        ("mem", stat.S_IFCHR, 1, 1),
        ("kmsg", stat.S_IFCHR, 1, 11),
        ("tty", stat.S_IFCHR, 5, 0),
        ("fuse", stat.S_IFCHR, 10, 229),
        ("tun", stat.S_IFCHR, 10, 200),
        ("null", stat.S_IFCHR, 1, 3),
        ("whiteout", stat.S_IFCHR, 0, 0),
        ("root disk", stat.S_IFBLK, -1, -1),
        ("loop", stat.S_IFBLK, 7, 0),
    ],
)
def test_no_device_node_can_be_made_or_would_mean_a_device(
    warden: LiveWarden, name: str, kind: int, major: int, minor: int
) -> None:
    del name
    device = os.stat("/").st_dev if major < 0 else os.makedev(major, minor)
    seen = see(
        warden,
        """
kind, device = int(sys.argv[1]), int(sys.argv[2])
for place in ('/box', '/tmp', '/dev/shm'):
    path = place + '/node'
    folder = os.open(place, os.O_DIRECTORY)
    tell(**{place: attempt(os.mknod, path, kind | 0o666, device),
            place + ' at': attempt(os.mknod, 'node2', kind | 0o666, device, dir_fd=folder),
            place + ' there': 'EPERM' if os.listdir(place) in ([], ['probe.py']) else 'made'})
""",
        str(kind),
        str(device),
    )
    _assert_all(seen, DENIED)


def test_a_rename_leaves_no_device_behind(warden: LiveWarden) -> None:
    """A whiteout is the one node that the kernel itself makes for anybody: 0:0, of no device."""
    result = warden.run_one(
        attack(
            """
open('file', 'w').close()
tell(met=syscall(316, -100, b'file', -100, b'moved', 4))
node = os.lstat('file')
if not stat.S_ISREG(node.st_mode):
    tell(device=node.st_rdev, opened=attempt(os.open, 'file', os.O_RDONLY))
""",
            collect=("file",),
        )
    )
    seen = told(result)
    (file,) = result.files
    if seen["met"] == 0:
        assert seen["device"] == 0
        assert seen["opened"] in GONE | {"ENXIO"}
        assert (file.data, file.error) == (b"", "not_a_regular_file")
    else:
        assert seen["met"] in DENIED | {"EINVAL"}
        assert (file.data, file.error) == (b"", None)


def test_the_devices_cannot_be_moved_changed_or_given_orders(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
import fcntl
orders = {'add entropy': 0x40085203, 'count entropy': 0x40045201, 'zap': 0x5204, 'clear': 0x5206,
          'reseed': 0x5207}
for name in ('random', 'urandom'):
    fd = os.open('/dev/' + name, os.O_RDWR)
    for order, number in orders.items():
        tell(**{name + ' ' + order: attempt(fcntl.ioctl, fd, number, struct.pack('iiQ', 64, 8, 0))})
for name in ('null', 'zero', 'full', 'random'):
    path = '/dev/' + name
    tell(**{name + ' chmod': attempt(os.chmod, path, 0),
            name + ' chown': attempt(os.chown, path, 1000, -1),
            name + ' unlink': attempt(os.unlink, path),
            name + ' rename': attempt(os.rename, path, '/dev/x'),
            name + ' touch': attempt(os.utime, path, (1, 1))})
""",
    )
    _assert_all(seen, DENIED | {"EINVAL"})
    assert warden.run_one(shell("echo x > /dev/null; head -c 3 /dev/zero")).stdout == b"\0\0\0"


# --- handles ------------------------------------------------------------------------------


def test_a_file_cannot_be_opened_by_a_handle_that_was_guessed(warden: LiveWarden) -> None:
    """The way out of early Docker: handles of a host's root are the same everywhere."""
    seen = see(
        warden,
        MET
        + """
met_handles = {}
for path in ('/usr', '/', '/box', '/proc', '/dev'):
    mount = os.open(path, os.O_RDONLY)
    for inode in (2, 128, 256):
        for kind in (1, 2, 0x81):
            handle = struct.pack('IiII', 8, kind, inode, 0) + bytes(64)
            met_handles['%s %d %d' % (path, inode, kind)] = met(304, mount, handle, 0)
tell(**met_handles)
""",
    )
    _assert_all(seen, CUT | {"ESTALE", "ENOTSUP", "EINVAL"})


def test_a_files_handle_is_not_told(warden: LiveWarden) -> None:
    seen = see(
        warden,
        MET
        + """
for path in (b'/', b'/usr/bin/env', b'/box', b'/proc/self'):
    handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
    number = ctypes.c_int()
    tell(**{path.decode(): met(303, -100, path, handle, ctypes.byref(number), 0)})
""",
    )
    _assert_all(seen, CUT)


# --- what all jails show ------------------------------------------------------------------


def test_no_file_that_all_jails_show_tells_what_another_request_opens(warden: LiveWarden) -> None:
    """Inodes must be each jail's own, not the toolchain's alone."""
    source = """
import select
os.mkfifo('go'); open('ready', 'w').close()
open('go').read()                           # until its own jail is at rest
fd = libc.inotify_init1(os.O_NONBLOCK)
names = (b'/etc', b'/etc/passwd', b'/etc/ld.so.cache', b'/dev', b'/dev/null', b'/dev/urandom',
         b'/run', b'/')
watches = {libc.inotify_add_watch(fd, name, 0xfff): name.decode() for name in names}
open('watching', 'w').close()
open('go').read()                           # until the other request is over
seen = set()
while select.select([fd], [], [], 0)[0]:
    data = os.read(fd, 65536)
    while data:
        watch, mask, _, length = struct.unpack_from('iIII', data)
        seen.add(watches[watch])
        data = data[16 + length:]
tell(watched=len(watches), seen=sorted(seen))
"""
    with _held(warden, source) as (box, watched):
        (box / "go").write_text("go")
        eventually((box / "watching").exists, "it watches")
        for name in ("/etc/passwd", "/dev/null", "/dev/urandom"):
            other = warden.run_one(shell(f"head -c 1 {name} > /dev/null; ls / /etc"))
            assert other.exit_code == 0
    assert told(watched.results[0, 0]) == {"watched": 8, "seen": []}


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/null", "/"])
def test_a_lock_on_a_file_that_all_jails_show_holds_up_nobody_else(
    warden: LiveWarden, path: str
) -> None:
    take = """
import fcntl
file = os.open(sys.argv[1], os.O_RDONLY)
tell(met=attempt(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB))
"""
    hold = take + "os.mkfifo('go'); open('ready', 'w').close(); open('go').read()"
    with _held(warden, hold, path) as (_, watched):
        assert see(warden, take, path) == {"met": "done"}
    assert told(watched.results[0, 0]) == {"met": "done"}


@contextmanager
def _held(warden: LiveWarden, source: str, *args: str) -> Iterator[tuple[Path, Watched]]:
    """Start a probe, wait for its file `ready`; it goes on at the end, by its FIFO `go`.

    Gives its workspace, as the host sees it.
    """
    watched = warden.submit(job(attack(source, *args)))
    eventually(lambda: any(_boxes_with("ready")), "it is ready")
    box = next(_boxes_with("ready"))
    yield box, watched
    (box / "go").write_text("go")
    watched.wait()


def _boxes_with(name: str) -> Iterator[Path]:
    """/box of each task that runs and has made a file of that name."""
    for pid in process_tree(os.getpid()).get("task", ()):
        box = Path(f"/proc/{pid}/root/box")
        if (box / name).exists():
            yield box


def test_the_whole_file_system_cannot_be_watched(warden: LiveWarden) -> None:
    seen = see(
        warden,
        MET
        + """
tell(start=met(300, 0, 0), unlimited=met(300, 0x10 | 0x20, 0), report=met(300, 0x200 | 0x400, 0),
     mark=met(301, 0, 1 | 0x10, 0x20, -100, b'/usr'))
""",
    )
    _assert_all(seen, CUT | {"EBADF", "EINVAL"})


def test_sockets_of_the_host_have_no_name_inside(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
def reached(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.connect(path)
names = ['/run/docker.sock', '/run/containerd/containerd.sock', '/run/dbus/system_bus_socket',
         '/run/systemd/private', '/run/systemd/notify', '/dev/log', '/run/gaoler/warden.sock']
for name in names + sys.argv[1:]:
    tell(**{name: attempt(reached, name), '/var' + name: attempt(reached, '/var' + name)})
""",
        warden.spec.socket_path,
    )
    _assert_all(seen, GONE)
    assert warden.client.ready() is None
