"""The task's user: one that is nobody on the host and can become nobody else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.adversarial.calls import TRIED, let_through, raw, refused
from tests.adversarial.holding import held
from tests.adversarial.probing import attack, see, told
from tests.hosting import LiveWarden

ORDINARY = [1000, 1000, 1000]
# The sets as /proc shows them, of a program without any right.
BARE = {
    "CapInh": "0000000000000000",
    "CapPrm": "0000000000000000",
    "CapEff": "0000000000000000",
    "CapBnd": "0000000000000000",
    "CapAmb": "0000000000000000",
    "NoNewPrivs": "1",
}

# `rights()` is what /proc says that the caller may do; `run` starts a program.
RIGHTS = (
    TRIED
    + """
import shutil, subprocess

def rights(pid='self'):
    lines = open('/proc/%s/status' % pid).read().splitlines()
    shown = dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)
    names = ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs')
    return {name: shown[name] for name in names}

def run(*command, **options):
    "Its exit code and all that it said."
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=60, **options)
    return [ended.returncode, ended.stdout.decode(errors='replace')]
"""
)


def _rights(*names: str) -> str:
    """The head of a probe with `rights`, `run`, `tried` and the calls' numbers."""
    return RIGHTS + raw(*names)


# --- another user ----------------------------------------------------------------------------


def test_no_call_makes_it_another_user(warden: LiveWarden) -> None:
    seen = see(
        warden,
        """
        tell(user=attempt(os.setuid, 0), group=attempt(os.setgid, 0), ids=os.getresuid())
        """.strip(),
    )
    assert let_through({"user": seen["user"], "group": seen["group"]}) == {}
    assert seen["ids"] == ORDINARY


def test_no_way_of_setting_ids_leads_to_root_nobody_or_the_users_number_outside(
    warden: LiveWarden,
) -> None:
    source = """
outside = int(open('/proc/self/uid_map').read().split()[1])
answers = {}
for target in (0, 65534, outside, outside + 1, 999, 1001):
    for name, count in (('setuid', 1), ('setgid', 1), ('seteuid', 1), ('setegid', 1),
                        ('setreuid', 2), ('setregid', 2), ('setresuid', 3), ('setresgid', 3)):
        answers['%s %d' % (name, target)] = attempt(getattr(os, name), *[target] * count)
        if count == 3:  # the saved one alone
            answers['%s saved %d' % (name, target)] = attempt(getattr(os, name), -1, -1, target)
    # These two never fail: they give the former one, whatever comes of it.
    libc.setfsuid(target), libc.setfsgid(target)
tell(answers=answers, file_ids=[libc.setfsuid(-1), libc.setfsgid(-1)])
tell(user=os.getresuid(), group=os.getresgid())
open('mine', 'w').close()
"""
    first, second = warden.run(
        attack(source),
        attack("i = os.stat('mine'); tell(owner=[i.st_uid, i.st_gid], mine=os.getuid())"),
    )
    seen = told(first[0])
    assert let_through(seen["answers"]) == {}
    assert seen["file_ids"] == [1000, 1000]
    assert (seen["user"], seen["group"]) == (ORDINARY, ORDINARY)
    assert told(second[0]) == {"owner": [1000, 1000], "mine": 1000}


def test_a_group_can_be_neither_taken_nor_left(warden: LiveWarden) -> None:
    source = (
        raw("setgroups")
        + """
answers = {}
for groups in ([], [0], [1000], [65534], list(range(100))):
    answers[str(groups[:2])] = attempt(os.setgroups, groups)
answers['init'] = attempt(os.initgroups, 'box', 0)
answers['raw'] = syscall(NR_setgroups, 0, None)
tell(answers=answers, groups=os.getgroups())
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["groups"] == []


def test_no_file_can_be_given_to_another_owner_or_taken_from_one(warden: LiveWarden) -> None:
    source = """
open('mine', 'w').close()
os.mkdir('folder')
os.symlink('mine', 'link')
answers = {}
for owner in (0, 65534, 1001):
    answers['user %d' % owner] = attempt(os.chown, 'mine', owner, -1)
    answers['group %d' % owner] = attempt(os.chown, 'mine', -1, owner)
    answers['folder %d' % owner] = attempt(os.chown, 'folder', owner, owner)
    answers['link %d' % owner] = attempt(os.lchown, 'link', owner, owner)
for path in ('/usr/bin/env', '/etc/passwd', '/', '/dev/null', '/proc/sys'):
    answers['take ' + path] = attempt(os.chown, path, 1000, 1000)
    answers['open ' + path] = attempt(os.chmod, path, 0o4777)
tell(answers=answers, owners=[os.lstat(n).st_uid for n in ('mine', 'folder', 'link')])
"""
    before = os.stat("/usr/bin/env")
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["owners"] == [1000] * 3
    after = os.stat("/usr/bin/env")
    assert (after.st_uid, after.st_mode, after.st_ctime_ns) == (
        before.st_uid,
        before.st_mode,
        before.st_ctime_ns,
    )


# --- programs that would give rights ---------------------------------------------------------


def test_a_setuid_program_of_its_own_gives_nothing(warden: LiveWarden) -> None:
    make = (
        _rights()
        + """
tell(ordinary=run('/usr/bin/id'))
for folder in ('/box', '/tmp', '/dev/shm'):
    target = folder + '/raised'
    shutil.copy('/usr/bin/id', target)
    tell(**{folder: attempt(os.chmod, target, 0o6755), folder + ' runs': run(target)})
"""
    )
    use = RIGHTS + "tell(later=run('/box/raised'))"
    made, used = warden.run(attack(make), attack(use))
    seen = told(made[0])
    ordinary = seen["ordinary"]
    assert not _raised(ordinary)
    for folder in ("/box", "/tmp", "/dev/shm"):
        assert seen[f"{folder} runs"] == ordinary
    assert told(used[0])["later"] == ordinary


def test_a_setuid_program_without_a_place_gives_nothing(warden: LiveWarden) -> None:
    """A memfd lies on a mount of the kernel's own, which no option of ours reaches."""
    source = (
        _rights()
        + """
held = os.memfd_create('raised', 0)
with open('/usr/bin/id', 'rb') as file:
    os.sendfile(held, file.fileno(), 0, os.fstat(file.fileno()).st_size)
tell(mode=attempt(os.fchmod, held, 0o6755), owner=attempt(os.fchown, held, 0, 0))
path = '/proc/self/fd/%d' % held
tell(ordinary=run('/usr/bin/id'))
tell(path=run(path, pass_fds=[held]))
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.dup2(write_end, 1)
    os.execve(held, ['raised'], {})
os.wait()
tell(held=os.read(read_end, 4096).decode())
"""
    )
    seen = see(warden, source)
    assert refused(seen["owner"])
    assert not _raised(seen["ordinary"])
    assert [seen["path"], [0, seen["held"]]] == [seen["ordinary"]] * 2


def _raised(said: list[Any]) -> bool:
    """What id says of a program that root's or other effective rights came to."""
    return said[0] != 0 or "euid" in said[1] or "egid" in said[1] or "uid=0" in said[1]


def test_the_setuid_programs_of_the_toolchain_run_as_anybody_else(warden: LiveWarden) -> None:
    """The loader shows the IDs that it was given, which it does for no raised program."""
    source = (
        RIGHTS
        + r"""
seen = {}
folders = ('/usr/bin', '/usr/sbin', '/usr/local/bin', '/usr/lib/openssh', '/usr/lib/dbus-1.0')
for folder in folders:
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        info = entry.stat(follow_symlinks=False)
        raised = stat.S_ISREG(info.st_mode) and info.st_mode & (stat.S_ISUID | stat.S_ISGID)
        if raised and os.access(entry.path, os.X_OK):
            said = run(entry.path, env={'LD_SHOW_AUXV': '1', 'LD_TRACE_LOADED_OBJECTS': '1'})[1]
            lines = [line.split() for line in said.splitlines() if line.startswith('AT_')]
            shown = {line[0].rstrip(':'): line[1] for line in lines if len(line) == 2}
            ids = [shown.get(n) for n in ('AT_UID', 'AT_EUID', 'AT_GID', 'AT_EGID', 'AT_SECURE')]
            seen[entry.path] = ids
tell(ordinary=[str(n) for n in (*os.getresuid()[:2], *os.getresgid()[:2])], **seen)
"""
    )
    seen = see(warden, source)
    raised = {os.path.basename(path) for path in seen}
    assert {"su", "passwd", "mount"} <= raised  # else this says nothing
    usual = [*seen.pop("ordinary")[:4], "0"]
    assert "0" not in usual[:4]
    assert {path: ids for path, ids in seen.items() if ids != usual} == {}


def test_no_tool_that_changes_users_or_namespaces_gets_anywhere(warden: LiveWarden) -> None:
    source = (
        RIGHTS
        + r"""
show = ['id']
commands = {
    'su': ['-c', 'id', 'nobody'], 'runuser': ['-u', 'nobody', 'id'], 'sg': ['nogroup', '-c', 'id'],
    'setpriv': ['--reuid', '0', *show], 'chroot': ['/box', 'id'],
    'unshare': ['--user', '--map-root-user', *show], 'nsenter': ['--target', '1', '--all', *show],
    'mount': ['-t', 'tmpfs', 'x', '/box'], 'umount': ['/proc'], 'passwd': ['-d', 'box'],
    'newuidmap': [str(os.getpid()), '0', '0', '1'], 'newgidmap': [str(os.getpid()), '0', '0', '1'],
    'chrt': ['--fifo', '50', *show], 'sysctl': ['-w', 'kernel.hostname=x'],
    'hostname': ['x'], 'losetup': ['-f'], 'setcap': ['all=ep', 'probe.py'],
}
before = open('/proc/self/mountinfo').read()
ends = {}
for name, arguments in commands.items():
    path = shutil.which(name, path='/usr/bin:/usr/sbin:/bin:/sbin')
    if path:
        ends[name] = run(path, *arguments)[0]
tell(ends=ends, same_mounts=before == open('/proc/self/mountinfo').read())
tell(ids=os.getresuid(), rights=rights())
"""
    )
    seen = see(warden, source)
    assert {"su", "setpriv", "unshare", "nsenter", "mount"} <= set(seen["ends"])
    assert [name for name, code in seen["ends"].items() if code == 0] == []
    assert seen["same_mounts"]
    assert (seen["ids"], seen["rights"]) == (ORDINARY, BARE)


def test_a_file_cannot_be_given_capabilities(warden: LiveWarden) -> None:
    source = (
        _rights("setxattr")
        + r"""
shutil.copy('/usr/bin/cat', 'raised')
# Version 2, and version 3 for the root of a user namespace; effective, all of them.
two = struct.pack('<5I', 0x02000001, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff)
three = struct.pack('<6I', 0x03000001, 0xffffffff, 0, 0x1ff, 0, 1000)
answers = {}
for path in ('raised', '/tmp/raised', '/dev/shm/raised'):
    if path != 'raised':
        shutil.copy('/usr/bin/cat', path)
    for name, value in (('two', two), ('three', three)):
        answers[path + ' ' + name] = attempt(os.setxattr, path, 'security.capability', value)
answers['trusted'] = attempt(os.setxattr, 'raised', 'trusted.overlay.opaque', b'y')
code, said = run('./raised', '/proc/self/status')
tell(answers=answers, effective=said.split('CapEff:')[1].split()[0])
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["effective"] == BARE["CapEff"]


# --- capabilities ----------------------------------------------------------------------------


def test_no_capability_can_be_put_into_any_set(warden: LiveWarden) -> None:
    source = (
        _rights("capset")
        + """
def ask(effective, permitted, inheritable, pid=0):
    low, high = 0xffffffff, 0x1ff
    sets = [(low if wanted else 0) for wanted in (effective, permitted, inheritable)]
    sets += [(high if wanted else 0) for wanted in (effective, permitted, inheritable)]
    return syscall(NR_capset, struct.pack('Ii', 0x20080522, pid), struct.pack('6I', *sets))
answers = {
    'all': ask(1, 1, 1), 'effective': ask(1, 0, 0), 'permitted': ask(0, 1, 0),
    'inheritable': ask(0, 0, 1), 'of init': ask(1, 1, 1, 1),
}
for capability in (0, 7, 12, 21, 40):
    answers['ambient %d' % capability] = tried(syscall, 157, 47, 2, capability, 0, 0)
    answers['bounding %d' % capability] = tried(syscall, 157, 24, capability, 0, 0, 0)
tell(answers=answers, rights=rights())
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["rights"] == BARE


def test_securebits_and_kept_capabilities_bring_nothing_back(warden: LiveWarden) -> None:
    source = (
        _rights("prctl")
        + """
answers = {hex(bits): syscall(NR_prctl, 28, bits, 0, 0, 0) for bits in (1, 0x2f, 0x10, 0xff)}
syscall(NR_prctl, 8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS: for a change of user that cannot happen
attempt(os.setuid, 1000)
tell(answers=answers, bits=syscall(NR_prctl, 27, 0, 0, 0, 0), rights=rights())
tell(after_exec=run('/usr/bin/grep', 'CapPrm', '/proc/self/status'))
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["bits"] in (0, 1 << 4)  # "kept" may be said; there is nothing to be kept
    assert seen["rights"] == BARE
    assert seen["after_exec"] == [0, f"CapPrm:\t{BARE['CapPrm']}\n"]


def test_no_new_privileges_is_for_good(warden: LiveWarden) -> None:
    source = (
        _rights("prctl")
        + """
answers = {str(value): syscall(NR_prctl, 38, value, 0, 0, 0) for value in (0, 2, -1, 1 << 32)}
tell(answers=answers, still=syscall(NR_prctl, 39, 0, 0, 0, 0), rights=rights())
pid = os.fork()
if pid == 0:
    os.execv('/bin/sh', ['sh', '-c', 'exec sleep 60'])
tell(of_child=rights(pid))
os.kill(pid, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["still"] == 1
    assert (seen["rights"], seen["of_child"]) == (BARE, BARE)


# --- a user namespace in which it would be root ----------------------------------------------


def test_a_user_namespace_cannot_be_made_again(warden: LiveWarden) -> None:
    seen = see(warden, "tell(end=fate(lambda: syscall(272, 0x10000000)))")  # unshare
    assert seen == {"end": ["signal", signal.SIGSYS]}


def test_no_call_that_makes_processes_makes_a_user_namespace(warden: LiveWarden) -> None:
    source = (
        _rights("clone", "clone3", "unshare")
        + """
USER, MOUNT, NET, PID = 0x10000000, 0x20000, 0x40000000, 0x20000000
def link():
    return os.readlink('/proc/self/ns/user')
def cloned(flags):
    pid = syscall(NR_clone, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid
def cloned_anew(flags):
    request = ctypes.create_string_buffer(struct.pack('11Q', flags, *[0] * 3, 17, *[0] * 6), 88)
    pid = syscall(NR_clone3, request, 88)
    if pid == 0:
        os._exit(0)
    return pid
before, answers = link(), {}
for flags in (USER, USER | MOUNT, USER | NET | PID, MOUNT, NET, PID, 0x80):
    answers['clone %x' % flags] = tried(cloned, flags)
    answers['clone3 %x' % flags] = tried(cloned_anew, flags)
    answers['unshare %x' % flags] = tried(syscall, NR_unshare, flags)
tell(answers=answers, same=link() == before, rights=rights())
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]
    assert seen["rights"] == BARE


def test_no_namespace_can_be_entered_by_a_file_or_by_a_process(warden: LiveWarden) -> None:
    source = (
        _rights("setns", "pidfd_open")
        + """
answers = {}
child = os.fork()
if child == 0:
    signal.pause()
for name in os.listdir('/proc/self/ns'):
    held = os.open('/proc/self/ns/' + name, os.O_RDONLY)
    answers['own ' + name] = tried(syscall, NR_setns, held, 0)
    answers['init ' + name] = attempt(os.open, '/proc/1/ns/' + name, os.O_RDONLY)
    os.close(held)
for pid in (1, os.getpid(), child):
    held = syscall(NR_pidfd_open, pid, 0)
    if isinstance(held, int):
        answers['process %d' % pid] = tried(syscall, NR_setns, held, 0x7e020080)
        answers['mount of %d' % pid] = tried(syscall, NR_setns, held, 0x20000)
tell(answers=answers, rights=rights())
os.kill(child, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["rights"] == BARE


def test_no_question_to_a_namespace_gives_the_one_above_it(warden: LiveWarden) -> None:
    """Of init's there would be more: the host's user namespace owns them."""
    source = (
        _rights("pidfd_open")
        + """
import fcntl
def ask(held, request):
    try:
        found = fcntl.ioctl(held, request)
    except OSError as error:
        return errno.errorcode[error.errno]
    return os.readlink('/proc/self/fd/%d' % found)
answers = {}
own = {os.readlink('/proc/self/ns/' + name) for name in os.listdir('/proc/self/ns')}
for name in sorted(os.listdir('/proc/self/ns')):
    held = os.open('/proc/self/ns/' + name, os.O_RDONLY)
    for request in (0xb701, 0xb702):  # its user namespace, its parent
        answers['%s %x' % (name, request)] = ask(held, request)
    os.close(held)
init = syscall(NR_pidfd_open, 1, 0)
for request in range(0xff01, 0xff0b):  # each namespace of a process
    answers['init %x' % request] = ask(init, request)
tell(answers=answers, own=sorted(own))
"""
    )
    seen = see(warden, source)
    others = {name: link for name, link in seen["answers"].items() if link not in seen["own"]}
    assert let_through(others) == {}
    assert [link for link in others.values() if link.startswith(("user:", "pid:"))] == []


def test_the_maps_of_users_and_groups_cannot_be_written_again(warden: LiveWarden) -> None:
    source = (
        RIGHTS
        + r"""
def write(path, text):
    held = os.open(path, os.O_WRONLY)
    os.write(held, text.encode())
def maps(pid):
    names = ('uid_map', 'gid_map', 'projid_map', 'setgroups')
    return [open('/proc/%s/%s' % (pid, name)).read().split() for name in names]
child = os.fork()
if child == 0:
    signal.pause()
before, answers = maps('self'), {}
for pid in ('self', 'thread-self', str(child), '1'):
    for name, text in (('uid_map', '0 0 1'), ('gid_map', '0 0 1'), ('setgroups', 'allow'),
                       ('uid_map', '0 1000 1'), ('projid_map', '0 0 1')):
        path = '/proc/%s/%s' % (pid, name)
        answers[path + ' ' + text] = attempt(write, path, text)
tell(answers=answers, same=maps('self') == before == maps(child), setgroups=before[3])
os.kill(child, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]
    assert seen["setgroups"] == ["deny"]


# --- other processes' insides ----------------------------------------------------------------


def test_no_process_can_be_traced(warden: LiveWarden) -> None:
    source = (
        _rights("ptrace")
        + """
first = os.fork()
if first == 0:
    signal.pause()
second = os.fork()
if second == 0:
    # A sibling, its parent, and init.
    answers = {}
    for name, pid in (('sibling', first), ('parent', os.getppid()), ('init', 1)):
        answers['attach ' + name] = syscall(NR_ptrace, 16, pid, 0, 0)
        answers['seize ' + name] = syscall(NR_ptrace, 0x4206, pid, 0, 0)
    tell(by_child=answers)
    os._exit(0)
os.waitpid(second, 0)
answers = {'attach': syscall(NR_ptrace, 16, first, 0, 0), 'me': syscall(NR_ptrace, 0, 0, 0, 0),
           'seize': syscall(NR_ptrace, 0x4206, first, 0, 0x100000)}
tracers = [open('/proc/%d/status' % pid).read().split('TracerPid:\\t')[1].split()[0]
           for pid in (os.getpid(), first)]
tell(answers=answers, tracers=tracers)
os.kill(first, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through({**seen["answers"], **seen["by_child"]}) == {}
    assert seen["tracers"] == ["0", "0"]


def test_no_process_can_read_write_or_compare_the_memory_of_another(warden: LiveWarden) -> None:
    calls = (
        "process_vm_readv process_vm_writev kcmp process_madvise process_mrelease move_pages "
        "migrate_pages pidfd_open"
    )
    source = (
        _rights(*calls.split())
        + """
secret = ctypes.create_string_buffer(b'a secret of the child', 64)
child = os.fork()
if child == 0:
    signal.pause()
taken = ctypes.create_string_buffer(64)
here = struct.pack('QQ', ctypes.addressof(taken), 64)
there = struct.pack('QQ', ctypes.addressof(secret), 64)
held = syscall(NR_pidfd_open, child, 0)
answers = {}
for pid in (child, 1, os.getpid()):
    answers['read %d' % pid] = tried(syscall, NR_process_vm_readv, pid, here, 1, there, 1, 0)
    answers['write %d' % pid] = tried(syscall, NR_process_vm_writev, pid, here, 1, there, 1, 0)
    answers['compare %d' % pid] = tried(syscall, NR_kcmp, os.getpid(), pid, 0, 0, 1)
    answers['migrate %d' % pid] = tried(syscall, NR_migrate_pages, pid, 0, None, None)
    answers['move %d' % pid] = tried(syscall, NR_move_pages, pid, 0, None, None, None, 0)
answers['advise'] = tried(syscall, NR_process_madvise, held, there, 1, 21, 0)
answers['release'] = tried(syscall, NR_process_mrelease, held, 0)
tell(answers=answers, taken=taken.value.decode())
os.kill(child, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["taken"] == ""


def test_no_descriptor_can_be_taken_out_of_another_process(warden: LiveWarden) -> None:
    source = (
        _rights("pidfd_open", "pidfd_getfd")
        + """
ready, tell_ready = os.pipe()
child = os.fork()
if child == 0:
    with open('secret', 'w') as file:
        file.write('x')
        os.write(tell_ready, b'%d' % file.fileno())
        signal.pause()
number = int(os.read(ready, 8))
answers = {}
for pid, wanted in ((child, number), (child, 0), (1, 0), (1, 3), (os.getpid(), 0)):
    held = syscall(NR_pidfd_open, pid, 0)
    answers['%d of %d' % (wanted, pid)] = tried(syscall, NR_pidfd_getfd, held, wanted, 0)
tell(answers=answers)
os.kill(child, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}


def test_a_process_cannot_pass_itself_off_as_another_program(warden: LiveWarden) -> None:
    source = (
        _rights("prctl")
        + """
before = os.readlink('/proc/self/exe')
held = os.open('/usr/bin/env', os.O_RDONLY)
answers = {'exe': syscall(NR_prctl, 35, 13, held, 0, 0)}
for option in (1, 3, 6, 8, 10, 12):  # code, data, brk, arguments, environment, vector
    answers['mm %d' % option] = syscall(NR_prctl, 35, option, 4096, 0, 0)
# All at once, which asks for no capability; it may change what is its own, never the program.
size = ctypes.create_string_buffer(4)
syscall(NR_prctl, 35, 15, size, 0, 0)
own = bytearray(104)
struct.pack_into('I', own, 96, 0)
struct.pack_into('i', own, 100, held)
answers['map'] = syscall(NR_prctl, 35, 14, bytes(own), len(own), 0)
tell(answers=answers, same=os.readlink('/proc/self/exe') == before)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]


def test_no_key_of_anybody_can_be_made_asked_for_or_read(warden: LiveWarden) -> None:
    source = (
        _rights("add_key", "request_key", "keyctl")
        + """
def key(number, *arguments):
    return tried(syscall, number, *arguments)
answers = {
    'add': key(NR_add_key, b'user', b'mine', b'secret', 6, -3),
    'big': key(NR_add_key, b'big_key', b'mine', b'x' * 4096, 4096, -4),
    'ring': key(NR_add_key, b'keyring', b'ring', None, 0, -5),
    'request': key(NR_request_key, b'user', b'mine', b'call out', -3),
    'session': key(NR_keyctl, 0, -3, 0), 'of user': key(NR_keyctl, 0, -4, 0),
    'user session': key(NR_keyctl, 0, -5, 0), 'join': key(NR_keyctl, 1, b'gaoler'),
    'describe': key(NR_keyctl, 6, -5, None, 0), 'read': key(NR_keyctl, 11, -5, None, 0),
    'persistent': key(NR_keyctl, 22, -1, -3), 'search': key(NR_keyctl, 10, -5, b'user', b'x', 0),
}
tell(answers=answers, shown=[attempt(open, '/proc/keys'), attempt(open, '/proc/key-users')])
"""
    )
    low, high = warden.settings.uid_range
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert all(refused(answer) for answer in seen["shown"])
    owners = {line.split(":")[0].strip() for line in _lines("/proc/key-users")}
    assert not [owner for owner in owners if low <= int(owner) <= high]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


# --- the root, the processor, the limits -----------------------------------------------------


def test_the_root_cannot_be_changed_even_if_a_folder_above_is_held(warden: LiveWarden) -> None:
    source = (
        _rights("chroot", "pivot_root", "fchdir")
        + """
os.makedirs('deep/er')
held = os.open('/', os.O_PATH | os.O_DIRECTORY)
before = os.stat('/')
answers = {'chroot': attempt(os.chroot, 'deep'), 'here': attempt(os.chroot, '.'),
           'pivot': tried(syscall, NR_pivot_root, b'deep', b'deep/er')}
os.fchdir(held)
for _ in range(64):
    os.chdir('..')
after = os.stat('.')
tell(answers=answers, same=(before.st_ino, before.st_dev) == (after.st_ino, after.st_dev))
tell(root=sorted(os.listdir('.')), homes=os.path.exists('root') or os.path.exists('home'))
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]
    assert "box" in seen["root"]
    assert not seen["homes"]


def test_no_process_can_run_before_all_others(warden: LiveWarden) -> None:
    source = (
        _rights("sched_setattr", "sched_setscheduler")
        + """
answers = {}
for policy, name in ((1, 'fifo'), (2, 'rr')):
    for priority in (1, 50, 99):
        answers['%s %d' % (name, priority)] = attempt(
            os.sched_setscheduler, 0, policy, os.sched_param(priority))
        answers['%s forked %d' % (name, priority)] = attempt(
            os.sched_setscheduler, 0, policy | 0x40000000, os.sched_param(priority))
        attributes = struct.pack('IIQiIQQQ', 48, policy, 0, 0, priority, 0, 0, 0)
        answers['attr %s %d' % (name, priority)] = syscall(NR_sched_setattr, 0, attributes, 0)
deadline = struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10_000_000, 20_000_000, 20_000_000)
answers['deadline'] = syscall(NR_sched_setattr, 0, deadline, 0)
answers['nice by attr'] = syscall(
    NR_sched_setattr, 0, struct.pack('IIQiIQQQ', 48, 0, 0, -20, 0, 0, 0, 0), 0)
answers['of init'] = attempt(os.sched_setscheduler, 1, os.SCHED_FIFO, os.sched_param(1))
answers['idle init'] = attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
answers['bind init'] = attempt(os.sched_setaffinity, 1, {0})
tell(answers=answers, policy=os.sched_getscheduler(0), nice=os.getpriority(os.PRIO_PROCESS, 0))
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert (seen["policy"], seen["nice"]) == (0, 0)


def test_politeness_cannot_be_taken_back(warden: LiveWarden) -> None:
    source = (
        TRIED
        + """
answers = {}
for value in (-1, -20):
    answers['process %d' % value] = attempt(os.setpriority, os.PRIO_PROCESS, 0, value)
    answers['group %d' % value] = attempt(os.setpriority, os.PRIO_PGRP, 0, value)
    answers['user %d' % value] = attempt(os.setpriority, os.PRIO_USER, 0, value)
    answers['init %d' % value] = attempt(os.setpriority, os.PRIO_PROCESS, 1, value)
answers['polite init'] = attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)
os.nice(10)
answers['back'] = attempt(os.nice, -5)
tell(answers=answers, nice=os.nice(0))
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["nice"] == 10


def test_its_disk_accesses_are_nobodys_betters(warden: LiveWarden) -> None:
    source = (
        _rights("ioprio_set", "ioprio_get")
        + """
answers = {}
for who, name in ((1, 'process'), (2, 'group'), (3, 'user')):
    for level in (1 << 13, 1 << 13 | 4, 1 << 13 | 7):  # real time
        answers['%s %x' % (name, level)] = syscall(NR_ioprio_set, who, 0, level)
answers['init'] = syscall(NR_ioprio_set, 1, 1, 2 << 13 | 7)
tell(answers=answers)
"""
    )
    assert let_through(see(warden, source)["answers"]) == {}


def test_no_hard_limit_can_be_raised_by_anybody_for_anybody(warden: LiveWarden) -> None:
    source = (
        _rights("prlimit64")
        + """
import resource
def limits():
    return [resource.getrlimit(kind) for kind in range(16)]
child = os.fork()
if child == 0:
    signal.pause()
before, answers = limits(), {}
for kind, (soft, hard) in enumerate(before):
    if hard == resource.RLIM_INFINITY:
        continue
    for wanted in (hard + 1, resource.RLIM_INFINITY):
        try:
            resource.setrlimit(kind, (soft, wanted))
            answers['%d to %d' % (kind, wanted)] = 'done'
        except (OSError, ValueError):  # "not allowed to raise maximum limit"
            pass
        for pid in (0, child):
            answers['%d of %d to %d' % (kind, pid, wanted)] = syscall(
                NR_prlimit64, pid, kind, struct.pack('qq', soft, wanted), None)
for pid in (1, 2**22):
    answers['init %d' % pid] = syscall(NR_prlimit64, pid, 7, struct.pack('QQ', 1, 1), None)
    answers['ask %d' % pid] = syscall(NR_prlimit64, pid, 7, None, ctypes.create_string_buffer(16))
tell(answers=answers, same=limits() == before, tried=len(answers))
os.kill(child, signal.SIGKILL)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]
    assert seen["tried"] > 20  # else there were no limits to be raised


def test_nothing_in_its_own_proc_can_be_set(warden: LiveWarden) -> None:
    source = (
        TRIED
        + r"""
wanted = {
    'oom_score_adj': '-1000', 'oom_adj': '-17', 'loginuid': '0', 'timens_offsets': 'monotonic 9 0',
    'coredump_filter': '0xff', 'autogroup': '-20', 'attr/current': 'x', 'attr/exec': 'x',
    'attr/keycreate': 'x', 'clear_refs': '5', 'sched': '0', 'comm': 'warden', 'make-it-fail': '1',
    'latency': '0', 'patch_state': '1', 'mem': 'x', 'timerslack_ns': '1', 'seccomp_cache': 'x',
}
def write(path, text):
    held = os.open(path, os.O_WRONLY)
    os.write(held, text.encode())
def shown(name):
    try:
        return open('/proc/self/' + name).read()
    except OSError:
        return None
watched = ('oom_score_adj', 'loginuid', 'timens_offsets', 'coredump_filter', 'attr/current')
before, answers = [shown(name) for name in watched], {}
for name, text in wanted.items():
    for place in ('self', 'thread-self', 'self/task/%d' % os.getpid(), '1'):
        answers[place + '/' + name] = attempt(write, '/proc/%s/%s' % (place, name), text)
tell(answers=answers, same=before == [shown(name) for name in watched])
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["same"]


def test_no_option_of_a_process_needs_more_than_it_has_and_is_granted(warden: LiveWarden) -> None:
    source = (
        _rights("prctl", "syslog", "vhangup", "settimeofday", "clock_settime", "acct")
        + """
def ask(option, *given):
    return syscall(NR_prctl, option, *given, *[0] * (4 - len(given)))
answers = {
    'io flusher': ask(57, 1), 'bounding': ask(24, 0), 'ambient': ask(47, 2, 21),
    'memory merge': ask(67, 1), 'securebits': ask(28, 1), 'endian': ask(20, 1),
    'log': syscall(NR_syslog, 3, ctypes.create_string_buffer(64), 64),
    'clear log': syscall(NR_syslog, 5, 0, 0), 'hang up': syscall(NR_vhangup),
    'time': syscall(NR_settimeofday, struct.pack('qq', 1, 0), None),
    'clock': syscall(NR_clock_settime, 0, struct.pack('qq', 1, 0)),
    'accounting': syscall(NR_acct, b'/box/log'),
}
tell(answers=answers, year=time.gmtime().tm_year)
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["year"] > 2000


def test_from_outside_it_is_a_leased_user_without_any_right(warden: LiveWarden) -> None:
    """The host's side of all of the above: what the kernel keeps of the process."""
    with held(warden, "attempt(os.setuid, 0); attempt(os.setgroups, [0])") as pid:
        shown = _status(pid)
    low, high = warden.settings.uid_range
    uids, gids = (list(map(int, shown[name].split())) for name in ("Uid", "Gid"))
    assert len(set(uids)) == 1
    assert low <= uids[0] <= high
    assert gids == uids
    assert shown["Groups"].strip() == ""
    assert {name: shown[name].strip() for name in BARE} == BARE


def _status(pid: int) -> dict[str, Any]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
