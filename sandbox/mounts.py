"""The root that a task sees, and the mounts that are its own.

The warden builds a template once, in its own mount namespace: a small tmpfs with a hand-made
/etc, and the harmless device nodes.  A jail's namespace is a copy of that one; the jailer
mounts the template and the host's toolchain folders, read-only and each through an overlay
of its own, and a fresh /box, and pivots into it; each task's init mounts its own /proc, /tmp
and /dev/shm.  So no two jails share an inode of anything that they can open.

The order matters where a comment says so.
"""

from __future__ import annotations

import os
import re
import shutil
import stat

from gaoler.sandbox import syscalls
from gaoler.sandbox.namespaces import HOSTNAME, INSIDE_GID, INSIDE_UID

BOX = "/box"
TMP = "/tmp"
SHM = "/dev/shm"
WRITABLE = (BOX, TMP, SHM)
READABLE = ("/etc", "/proc")  # beside the toolchain's folders
MASK = "/etc/masked"

# Below the warden's own tmpfs.
_TEMPLATE = "template"
_DEVICE_NODES = "devices"
_EMPTY = "empty"
_JAIL = "jail"  # where each jailer, in its own namespace, puts its jail's root together

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

# Folders and files of the host's /etc that runtimes need and that hold no secret.  The
# host's own passwd, keys, names and addresses are not among them.
_ETC_COPIED = ("ld.so.cache", "ld.so.conf", "mime.types", "timezone", "localtime")
_ETC_COPIED_FOLDERS = ("alternatives", "ssl/certs", "perl", "php", "python3", "ld.so.conf.d")
_ETC_PREFIXES = ("java-", "python3.")  # /etc/java-17-openjdk and the like
_ETC_WRITTEN = {
    "passwd": (
        f"box:x:{INSIDE_UID}:{INSIDE_GID}:box:/box:/bin/sh\n"
        f"nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    ),
    "group": f"box:x:{INSIDE_GID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n",
    "hostname": f"{HOSTNAME}\n",
    "host.conf": "multi on\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
    "networks: files\nprotocols: files\nservices: files\n",
    "shells": "/bin/sh\n/bin/bash\n",
    "os-release": "",
}

# What /proc shows of the machine; everything else at its top is masked, so that an entry
# that a newer kernel adds is hidden until somebody has looked at it.
_PROC_SHOWN = frozenset(
    "cpuinfo filesystems loadavg meminfo mounts net self stat swaps sys thread-self uptime "
    "version vmstat".split()
)
# Below /proc/sys only these; the rest would tell of the host and holds nothing a program needs.
_PROC_SYS_SHOWN = frozenset({"kernel", "vm", "fs"})


def build_template(holder: str, readonly_paths: tuple[str, ...]) -> None:
    """Build what every jail's root is made from, read-only, at the host path `holder`.

    The caller stands in a mount namespace of its own.  `/` is made private first, or the
    host would see what is mounted here.
    """
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("gaoler-root", holder, "tmpfs", flags, "mode=755,size=16m")
    for name in (_TEMPLATE, _DEVICE_NODES, _EMPTY, _JAIL):
        os.mkdir(os.path.join(holder, name), 0o755)
    _make_devices(os.path.join(holder, _DEVICE_NODES))
    root = os.path.join(holder, _TEMPLATE)
    for name in ("box", "dev", "etc", "proc", "run", "tmp", "usr", "var"):
        os.makedirs(os.path.join(root, name), 0o755, exist_ok=True)
    os.symlink("/run", os.path.join(root, "var/run"))
    os.symlink("/tmp", os.path.join(root, "var/tmp"))
    for path in readonly_paths:
        _make_place(root, path)
    _make_etc(os.path.join(root, "etc"))
    _make_mask(root)
    # Read-only as a whole, and only now: everything above had to be written.
    _set_attributes(holder, syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID)


def _make_place(root: str, path: str) -> None:
    """Where a host folder will be shown.  A link, as /bin is today, is made again as one."""
    target = root + path
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
    else:
        os.makedirs(target, exist_ok=True)


def toolchain(readonly_paths: tuple[str, ...]) -> tuple[str, ...]:
    """The host folders to be shown, and every mount point below them, parents first.

    An overlay shows one file system: what the host has mounted below is shown by another,
    and a file that the host has covered with another one stays covered.
    """
    folders = [path for path in readonly_paths if not os.path.islink(path)]
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [_unescape(line.split()[4]) for line in file]
    below = [
        point
        for point in points
        if any(point.startswith(folder + "/") for folder in folders) and _is_mounted(point)
    ]
    found = tuple(sorted({*folders, *below}))
    for path in found:
        if any(character in path for character in ":,\\"):
            raise ValueError(f"a folder whose name an overlay cannot take: {path}")
    return found


def _unescape(point: str) -> str:
    """A path of mountinfo, where blanks and the like are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


def _is_mounted(point: str) -> bool:
    """True for what is mounted there as seen from here.

    What was mounted later, above it, may hide a mount point that is still listed.
    """
    try:
        return _mount_id(point) != _mount_id(os.path.dirname(point))
    except FileNotFoundError:
        return False


def _mount_id(path: str) -> str:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            return next(line for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)


_TOOLS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
# The one mount of a jail on which a device node means a device.
_DEVICES_MOUNT = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NOEXEC


def mount_overlay(folder: str, empty: str, target: str, flags: int = _TOOLS) -> None:
    """Show a folder read-only, through inodes of this mount's own.

    Through a plain bind every jail, and the host, would share the inodes: a task could
    watch by inotify what others open, lock files against them, and flush the host's disk.
    With one layer more, an empty one, the kernel lets an overlay do without an upper.
    """
    syscalls.mount("gaoler-shown", target, "overlay", flags, f"lowerdir={folder}:{empty}")


def _bind_readonly(file: str, target: str) -> None:
    syscalls.mount(file, target, None, syscalls.MS_BIND)
    attributes = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    syscalls.mount_setattr(syscalls.AT_FDCWD, target, 0, attributes)


def _make_etc(etc: str) -> None:
    for name, text in _ETC_WRITTEN.items():
        with open(os.path.join(etc, name), "w", encoding="ascii") as file:
            file.write(text)
    prefixed = [name for name in os.listdir("/etc") if name.startswith(_ETC_PREFIXES)]
    for name in (*_ETC_COPIED, *_ETC_COPIED_FOLDERS, *prefixed):
        target = os.path.join(etc, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _copy(os.path.join("/etc", name), target)


def _make_mask(root: str) -> None:
    """Not /dev/null, which can be opened: a probe must not take it for what it hides."""
    os.close(os.open(root + MASK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0))


def _copy(source: str, target: str) -> None:
    """Copy a file, link or folder with its links as they are.

    A file is left out that not every user of the host may read: nothing else may enter the
    jail.  There are hundreds of links, hence few calls for each.
    """
    try:
        mode = os.lstat(source).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(mode):
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            _copy(os.path.join(source, name), os.path.join(target, name))
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        shutil.copy2(source, target)


def _make_devices(dev: str) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("gaoler-dev", dev, "tmpfs", flags, "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        # The umask would take the others' rights away.
        os.mknod(os.path.join(dev, name), stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(os.path.join(dev, name), 0o666)
    for name, link in _DEVICE_LINKS.items():
        os.symlink(link, os.path.join(dev, name))
    os.mkdir(os.path.join(dev, "shm"), 0o755)


def _set_attributes(path: str, attributes: int) -> None:
    syscalls.mount_setattr(syscalls.AT_FDCWD, path, syscalls.AT_RECURSIVE, attributes)


def enter_root(
    holder: str, folders: tuple[str, ...], uid: int, box_bytes: int, inodes: int
) -> None:
    """Put a jail's root together and make it this namespace's root.

    The old root is detached, so no path leads to the host any more.
    """
    # Names from here: a task reads in its mount table what each overlay was made from.
    os.chdir(holder)
    mount_overlay(_TEMPLATE, _EMPTY, _JAIL)
    mount_overlay(_DEVICE_NODES, _EMPTY, _JAIL + "/dev", _DEVICES_MOUNT)
    for folder in folders:
        if os.path.isdir(folder):
            mount_overlay(folder, _EMPTY, _JAIL + folder)
        else:
            _bind_readonly(folder, _JAIL + folder)
    _mount_private(_JAIL + BOX, uid, box_bytes, inodes)
    os.chdir(_JAIL)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".", syscalls.MNT_DETACH)
    os.chdir("/")


def resize_box(size_bytes: int, inodes: int) -> None:
    """Give /box the size that the job asks for; it was mounted before the job was known."""
    syscalls.mount(
        "gaoler-box",
        BOX,
        "tmpfs",
        syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV,
        f"size={size_bytes},nr_inodes={inodes}",
    )


def mount_task(uid: int, tmp_bytes: int, shm_bytes: int, inodes: int) -> None:
    """A task's own /tmp, /dev/shm and /proc.  The caller is PID 1 of the task's namespace.

    /proc shows the PID namespace of who mounts it, hence PID 1 does; and it is mounted
    before the user namespace is entered, since inside one the kernel would refuse it.
    """
    _mount_private(TMP, uid, tmp_bytes, inodes)
    _mount_private(SHM, uid, shm_bytes, inodes)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("gaoler-proc", "/proc", "proc", flags, "hidepid=2")


def _mount_private(target: str, uid: int, size_bytes: int, inodes: int) -> None:
    syscalls.mount(
        f"gaoler-{os.path.basename(target)}",
        target,
        "tmpfs",
        syscalls.MS_NOSUID | syscalls.MS_NODEV,
        f"size={size_bytes},nr_inodes={inodes},mode=700,uid={uid},gid={uid}",
    )


def mask_proc() -> None:
    """Hide of /proc what tells of the host, and make its settings read-only."""
    for name in os.listdir("/proc"):
        if not name.isdigit() and name not in _PROC_SHOWN:
            _mask(os.path.join("/proc", name))
    for name in os.listdir("/proc/sys"):
        if name not in _PROC_SYS_SHOWN:
            _mask(os.path.join("/proc/sys", name))
    syscalls.mount("/proc/sys", "/proc/sys", None, syscalls.MS_BIND | syscalls.MS_REC)
    _set_attributes("/proc/sys", syscalls.MOUNT_ATTR_RDONLY)


def _mask(path: str) -> None:
    """Hide a file behind one that nobody may open, a folder behind an empty one."""
    kind = os.lstat(path).st_mode
    if stat.S_ISDIR(kind):
        flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("gaoler-mask", path, "tmpfs", flags, "size=0,nr_inodes=2,mode=555")
    elif stat.S_ISREG(kind):
        syscalls.mount(MASK, path, None, syscalls.MS_BIND)
