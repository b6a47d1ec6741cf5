"""/proc and /sys: what is shown is the task's own, and none of it can be written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.adversarial.calls import TRIED
from tests.adversarial.probing import attack, see, told
from tests.hosting import LiveWarden, Watched, eventually, job, process_tree, shell

# What may be read at the top of /proc; everything else is masked, whatever the kernel has.
SHOWN = set(
    "cpuinfo filesystems loadavg meminfo mounts net self stat swaps sys thread-self uptime "
    "version vmstat".split()
)
CLOSED = {"EACCES", "EPERM", "ENOENT", "EROFS", "ENOTDIR"}


def _on_host(kind: str) -> list[str]:
    """Names at the top of the host's /proc that are files or folders and not shown inside."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() or entry.name in SHOWN or entry.is_symlink():
            continue
        if entry.is_dir() == (kind == "folder"):
            found.append(entry.name)
    return found


# --- masked names -------------------------------------------------------------------------


def test_no_file_of_the_machine_in_proc_can_be_opened_by_any_way(warden: LiveWarden) -> None:
    """Each that this host has, for reading and writing, by name, handle, and after a chmod."""
    names = _on_host("file")
    seen = see(
        warden,
        """
def reopened(path):
    held = os.open(path, os.O_PATH)
    try:
        os.close(os.open('/proc/self/fd/%d' % held, os.O_RDONLY))
    finally:
        os.close(held)
def changed(path):
    os.chmod(path, 0o444)
for name in sys.argv[1:]:
    path = '/proc/' + name
    words = {attempt(os.open, path, os.O_RDONLY), attempt(os.open, path, os.O_WRONLY),
             attempt(reopened, path), attempt(changed, path), attempt(os.unlink, path),
             attempt(os.rename, path, '/box/' + name), attempt(os.truncate, path, 0)}
    tell(**{name: sorted(words)})
""",
        *names,
    )
    assert set(seen) == set(names)
    refused = CLOSED | {"EXDEV", "EBUSY", "EINVAL"}
    assert {name: words for name, words in seen.items() if not set(words) <= refused} == {}


def test_every_folder_of_the_machine_in_proc_is_empty_and_stays_so(warden: LiveWarden) -> None:
    names = _on_host("folder")
    seen = see(
        warden,
        """
for name in sys.argv[1:]:
    path = '/proc/' + name
    try:
        tell(**{name: [os.listdir(path), attempt(os.mkdir, path + '/x'),
                       attempt(os.open, path + '/x', os.O_CREAT | os.O_WRONLY)]})
    except FileNotFoundError:
        tell(**{name: [[], 'ENOENT', 'ENOENT']})
""",
        *names,
    )
    assert set(seen) == set(names)
    for name, (entries, folder, file) in seen.items():
        assert entries == [], name
        assert {folder, file} <= CLOSED, name


# Whatever this host has: some are of other kernels, or of machines with other parts.
TELLING = """kcore kmsg kallsyms keys key-users modules iomem ioports interrupts slabinfo
    vmallocinfo timer_list sched_debug sysrq-trigger kpagecount kpageflags kpagecgroup cmdline
    config.gz partitions diskstats mtrr acpi/event scsi/scsi bus/pci/devices irq/0
    fs/nfsd tty/drivers driver/rtc sysvipc/shm pressure/memory latency_stats lockdep
    self/../kmsg sys/../kallsyms asound/cards dynamic_debug/control bootconfig""".split()


def test_what_tells_of_the_machine_is_closed_by_roundabout_paths_too(warden: LiveWarden) -> None:
    """They all lead through the same mounts."""
    seen = see(
        warden,
        """
folder = os.open('/proc', os.O_PATH)
os.chdir('/proc/self')
for name in sys.argv[1:]:
    def at():
        os.open(name, os.O_RDONLY, dir_fd=folder)
    paths = ('/proc/', '/proc/self/root/proc/', '../', '/proc/thread-self/../../../',
             '/box/..//./proc/', '/proc/sys/../', '/proc/sys/kernel/../../')
    words = {attempt(os.open, path + name, os.O_RDONLY) for path in paths}
    tell(**{name: sorted(words | {attempt(at), attempt(os.open, '/proc/' + name, os.O_WRONLY)})})
""",
        *TELLING,
    )
    assert set(seen) == set(TELLING)
    assert {name: words for name, words in seen.items() if not set(words) <= CLOSED} == {}


def test_what_is_left_open_of_proc_names_nothing_of_the_host(warden: LiveWarden) -> None:
    """All that can be read, searched for words that only the host knows."""
    words = [
        warden.instance,
        str(warden.settings.runtime_dir),
        str(warden.settings.state_dir),
        "gaoler.sandbox",
    ]
    seen = see(
        warden,
        """
found, count = [], 0
for top, folders, names in os.walk('/proc', followlinks=False):
    folders[:] = [f for f in folders if f not in ('task', 'map_files', 'fd', 'net')]
    for name in names:
        path = os.path.join(top, name)
        if name in ('cmdline', 'environ', 'mem', 'pagemap'):
            continue
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 'rb') as file:
                text = file.read(1 << 20)
        except OSError:
            continue
        count += 1
        found += [path + ': ' + w for w in sys.argv[1:] if w.encode() in text]
tell(found=found, enough=count > 100)
""",
        *words,
    )
    assert seen == {"found": [], "enough": True}


# --- other processes ----------------------------------------------------------------------


def test_a_process_that_has_ended_is_no_way_to_another(warden: LiveWarden) -> None:
    """A folder of /proc that is held says nothing of who gets the number next."""
    seen = see(
        warden,
        """
child = os.fork()
if child == 0:
    time.sleep(60)
held = os.open('/proc/%d' % child, os.O_RDONLY)
os.kill(child, 9); os.waitpid(child, 0)
def through(name):
    os.close(os.open(name, os.O_RDONLY, dir_fd=held))
tell(**{name: attempt(through, name) for name in ('mem', 'maps', 'root', 'ns/mnt', 'cwd', 'fd')})
""",
    )
    assert set(seen.values()) <= CLOSED | {"ESRCH"}, seen


def test_physical_addresses_are_not_told(warden: LiveWarden) -> None:
    """They would say which bits of memory to hammer."""
    seen = see(
        warden,
        """
import mmap
page = mmap.mmap(-1, 4096)
page[:4] = b'here'
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
try:
    with open('/proc/self/pagemap', 'rb', buffering=0) as file:
        file.seek(address // 4096 * 8)
        entry, = struct.unpack('Q', file.read(8))
    frame = entry & ((1 << 55) - 1)
except OSError:
    frame = 0
def followed(name):
    os.close(os.open('/proc/self/map_files/' + name, os.O_RDONLY))
files = {attempt(followed, n) for n in os.listdir('/proc/self/map_files')[:20]}
tell(frame=frame, files=sorted(files), stack=attempt(lambda: open('/proc/self/stack').read()))
""",
    )
    assert seen["frame"] == 0
    assert set(seen["files"]) <= CLOSED
    assert seen["stack"] in CLOSED


# --- writing ------------------------------------------------------------------------------


def test_no_setting_of_the_kernel_can_be_opened_for_writing(warden: LiveWarden) -> None:
    """All that there are, by walking: a new kernel's too."""
    seen = see(
        warden,
        """
opened, count = [], 0
for top, _, names in os.walk('/proc/sys'):
    for name in names:
        path = os.path.join(top, name)
        count += 1
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
            if attempt(os.open, path, flags) == 'done':
                opened.append(path)
        if attempt(os.chmod, path, 0o666) == 'done' or attempt(os.chown, path, 1000, -1) == 'done':
            opened.append(path + ' changed')
tell(opened=opened, enough=count > 100)
""",
    )
    assert seen == {"opened": [], "enough": True}


SETTINGS = """kernel/core_pattern kernel/modprobe kernel/hotplug kernel/poweroff_cmd kernel/sysrq
    kernel/hostname kernel/domainname kernel/cad_pid kernel/panic kernel/ns_last_pid
    kernel/randomize_va_space kernel/yama/ptrace_scope kernel/usermodehelper/bset
    kernel/unprivileged_bpf_disabled kernel/kptr_restrict kernel/shm_rmid_forced kernel/sem
    kernel/msgmnb kernel/shmmax fs/mqueue/msg_max fs/file-max fs/nr_open fs/suid_dumpable
    fs/protected_symlinks fs/binfmt_misc/register fs/binfmt_misc/status fs/pipe-max-size
    fs/inotify/max_user_watches vm/overcommit_memory vm/mmap_min_addr vm/panic_on_oom
    vm/drop_caches net/core/somaxconn net/ipv4/ip_forward user/max_user_namespaces
    dev/cdrom/autoeject debug/exception-trace abi/vsyscall32""".split()


def test_settings_that_would_change_the_host_keep_their_values(warden: LiveWarden) -> None:
    """Also those of namespaces that are the task's own: they are not its to set.

    What would be written is what stands there, so nothing happens where it succeeds.
    """
    lasting = [name for name in SETTINGS if name != "kernel/ns_last_pid"]
    before = {name: _value(Path("/proc/sys", name)) for name in lasting}
    seen = see(
        warden,
        """
for name in sys.argv[1:]:
    path = '/proc/sys/' + name
    try:
        value = open(path, 'rb').read()
    except OSError:
        value = b''
    def written():
        fd = os.open(path, os.O_WRONLY)
        if value:
            os.write(fd, value)
        os.close(fd)
    tell(**{name: [attempt(written), attempt(os.truncate, path, 0)]})
""",
        *SETTINGS,
    )
    assert set(seen) == set(SETTINGS)
    assert {name: words for name, words in seen.items() if not set(words) <= CLOSED} == {}
    assert {name: _value(Path("/proc/sys", name)) for name in lasting} == before


def _value(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def test_it_cannot_make_itself_the_last_one_to_be_killed(warden: LiveWarden) -> None:
    """Looked at from the host: its score is the default, whatever it and its children try."""
    source = """
def ask(value):
    with open('/proc/self/oom_score_adj', 'w') as file:
        file.write(value)
met = {value: attempt(ask, value) for value in ('-1000', '-999', '-500', '-1')}
tell(**met)
os.mkfifo('go'); open('ready', 'w').close()
open('go').read()
"""
    with _held(warden, source) as (pid, watched):
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "0"
        assert Path(f"/proc/{pid}/coredump_filter").read_text()
    assert set(told(watched.results[0, 0]).values()) <= CLOSED


@contextmanager
def _held(warden: LiveWarden, source: str) -> Iterator[tuple[int, Watched]]:
    """Run a probe until its file `ready` is there; it goes on at the end.  Gives its pid."""
    watched = warden.submit(job(attack(source)))
    eventually(lambda: _ready_pids() != [], "it is ready")
    pid = _ready_pids()[0]
    yield pid, watched
    Path(f"/proc/{pid}/root/box/go").write_text("go")
    watched.wait()


def _ready_pids() -> list[int]:
    pids = process_tree(os.getpid()).get("task", [])
    return [pid for pid in pids if Path(f"/proc/{pid}/root/box/ready").exists()]


def test_a_crash_starts_no_program_of_the_host_and_leaves_no_core(warden: LiveWarden) -> None:
    """core_pattern is the host's; what it pipes into would run as root outside."""
    seen = see(
        warden,
        """
import resource
resource_met = attempt(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))) \\
    if resource.getrlimit(resource.RLIMIT_CORE)[1] >= 1 << 20 else 'EPERM'
def crash(number):
    os.kill(os.getpid(), number)
ends = [fate(lambda n=n: crash(n))[1] for n in (signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT)]
tell(limit=resource.getrlimit(resource.RLIMIT_CORE)[1], ends=ends, raised=resource_met,
     left=sorted(os.listdir('/box')), tmp=os.listdir('/tmp'))
""",
    )
    assert seen == {
        "limit": 1,
        "ends": [signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT],
        "raised": "EPERM",
        "left": ["probe.py"],
        "tmp": [],
    }


# --- other file systems of the kernel -----------------------------------------------------


def test_there_is_no_sys_no_cgroup_and_no_debug_file_system(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
names = '/sys /sys/fs/cgroup /sys/kernel/debug /sys/kernel/security /sys/kernel/tracing ' \\
        '/sys/firmware /sys/class/net /sys/devices/system/cpu /dev/cgroup /cgroup /run/cgroup ' \\
        '/dev/mqueue /dev/pts /dev/hugepages /proc/sys/fs/binfmt_misc/register /debug /selinux'
tell(there=[n for n in names.split() if os.path.lexists(n)],
     kinds=sorted({line.split(' - ')[1].split()[0] for line in open('/proc/self/mountinfo')}),
     made=[attempt(os.mkdir, n) for n in ('/sys', '/cgroup', '/proc/x', '/dev/pts')])
""",
    )
    assert seen["there"] == []
    assert not {k for k in seen["kinds"] if k.startswith(("cgroup", "sysfs", "debugfs", "tracefs"))}
    assert set(seen["made"]) <= CLOSED


def test_its_groups_have_no_files_that_it_could_write(warden: LiveWarden) -> None:
    """Neither by a path of the host nor by names that its own /proc tells it."""
    seen = see(
        warden,
        """
groups = [line.split(':', 2) for line in open('/proc/self/cgroup').read().splitlines()]
names = {'/sys/fs/cgroup' + path + '/' + file for _, _, path in groups
         for file in ('cgroup.procs', 'memory.max', 'pids.max', 'release_agent', 'cgroup.kill')}
names |= {'/sys/fs/cgroup/%s%s/release_agent' % (kind, path) for _, kind, path in groups}
tell(opened=[n for n in sorted(names) if attempt(os.open, n, os.O_WRONLY) == 'done'],
     named=[line for line in map(':'.join, groups) if sys.argv[1] in line],
     cpuset=sys.argv[1] in (open('/proc/self/cpuset').read()
                            if os.path.exists('/proc/self/cpuset') else ''))
""",
        warden.instance,
    )
    assert seen == {"opened": [], "named": [], "cpuset": False}


def test_another_proc_cannot_be_had(warden: LiveWarden) -> None:
    """A fresh one would have no masks: by mount, by the newer calls, or by fsopen."""
    seen = see(
        warden,
        TRIED
        + """
os.mkdir('/box/p')
tell(mount=tried(syscall, 165, b'proc', b'/box/p', b'proc', 0, None),
     again=tried(syscall, 165, b'proc', b'/proc', b'proc', 0, b'hidepid=0'),
     remount=tried(syscall, 165, None, b'/proc', None, 32, b'hidepid=0,subset='),
     uncover=tried(syscall, 166, b'/proc/sys', 2), fsopen=tried(syscall, 430, b'proc', 0),
     tree=tried(syscall, 428, -100, b'/proc', 1), sysfs=tried(syscall, 430, b'sysfs', 0))
tell(empty=os.listdir('/box/p') == [])
""",
    )
    assert seen.pop("empty") is True
    assert set(seen.values()) <= {"EPERM", "EACCES", "SIGSYS", "ENOSYS"}, seen


def test_the_network_in_proc_is_the_tasks_own(warden: LiveWarden) -> None:
    """unix, tcp and route tables tell of sockets and of the host's neighbours."""
    mine = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    result = warden.run_one(
        shell("cat /proc/net/unix /proc/net/tcp /proc/net/udp /proc/net/route /proc/net/arp")
    )
    lines = result.stdout.decode().splitlines()
    assert {line.split()[-1] for line in lines} & {m for m in mine if m.startswith(("/", "@"))} == (
        set()
    )
    # Five heads and nothing below them.
    assert len(lines) <= 5, lines
