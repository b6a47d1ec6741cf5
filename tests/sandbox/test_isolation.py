"""What a task finds around itself: a probe reports from inside, the test looks from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.hosting import (
    CGROUP_ROOT,
    MIB,
    LiveWarden,
    command_of,
    eventually,
    job,
    process_tree,
    python,
    shell,
)

PROBE = r"""
import json, os, re, socket, stat

def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return 'errno %d' % error.errno

def tells(path):
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return bool(os.listdir(path))
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return True
    except OSError:
        return False

print(json.dumps({
    'uid_map': read('/proc/self/uid_map').split(),
    'gid_map': read('/proc/self/gid_map').split(),
    'ids': [os.getresuid(), os.getresgid(), os.getgroups()],
    'status': dict(l.split(':\t', 1) for l in read('/proc/self/status').splitlines() if ':\t' in l),
    'namespaces': {n: os.readlink('/proc/self/ns/' + n) for n in os.listdir('/proc/self/ns')},
    'mounts': read('/proc/self/mountinfo'),
    'descriptors': {n: os.readlink('/proc/self/fd/' + n) for n in ('0', '1', '2')},
    'others': [n for n in range(3, 256) if os.path.exists('/proc/self/fd/%d' % n)],
    'cgroup': read('/proc/self/cgroup'),
    'interfaces': [l.split(':')[0].strip() for l in read('/proc/net/dev').splitlines()[2:]],
    'pid': os.getpid(),
    'ppid': os.getppid(),
    'pids': sorted(int(n) for n in os.listdir('/proc') if n.isdigit()),
    'proc': sorted(n for n in os.listdir('/proc') if not n.isdigit()),
    'passwd': read('/etc/passwd'),
    'root': sorted(os.listdir('/')),
    'reachable': [p for p in FORBIDDEN if tells(p)],
    'environment': dict(os.environ),
    'hostname': socket.gethostname(),
    'signals': [read('/proc/self/status').split(n + ':\t')[1].split()[0]
                for n in ('SigBlk', 'SigIgn')],
    'limits': read('/proc/self/limits'),
    'umask': oct(os.umask(0)),
}))
"""
FORBIDDEN = [
    "/root",
    "/home",
    "/etc/shadow",
    "/etc/machine-id",
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/1/mem",
    "/proc/1/environ",
    "/proc/sysrq-trigger",
    "/proc/keys",
    "/sys",
    "/dev/kmsg",
    "/dev/mem",
    "/dev/vda",
    "/dev/kvm",
    "/var/lib/gaoler",
    "/run/gaoler",
    "/work",
]


@pytest.fixture(scope="module")
def report(session_warden: LiveWarden) -> dict[str, Any]:
    """What the probe says, once for all tests of this module."""
    source = f"FORBIDDEN = {FORBIDDEN!r}\n{PROBE}"
    result = session_warden.run_one(python(source))
    assert result.outcome == "completed", result
    assert result.stderr == b"", result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_is_uid_1000_of_a_user_namespace_that_maps_nothing_else(
    report: dict[str, Any], session_warden: LiveWarden
) -> None:
    low, high = session_warden.settings.uid_range
    for name in ("uid_map", "gid_map"):
        inside, outside, count = map(int, report[name])
        assert (inside, count) == (1000, 1)
        assert low <= outside <= high
    assert report["ids"] == [[1000] * 3, [1000] * 3, []]


def test_every_capability_set_is_empty_and_none_can_be_gained(report: dict[str, Any]) -> None:
    status = report["status"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_every_namespace_but_time_is_not_the_hosts(report: dict[str, Any]) -> None:
    for name, inode in report["namespaces"].items():
        host = os.readlink(f"/proc/self/ns/{name}")
        assert (inode == host) == name.startswith("time"), name


def test_only_box_tmp_and_shm_can_be_written(report: dict[str, Any]) -> None:
    writable = set()
    for line in report["mounts"].splitlines():
        fields = line.split()
        if "rw" in fields[5].split(","):
            writable.add(fields[4])
    # /proc has to be mounted so: what there is below it is masked, and Landlock lets nothing
    # in it be opened for writing.
    assert writable - {"/proc"} <= {"/box", "/tmp", "/dev/shm"}


def test_every_mount_forbids_setuid_and_all_but_dev_forbid_devices(report: dict[str, Any]) -> None:
    for line in report["mounts"].splitlines():
        fields = line.split()
        options = fields[5].split(",")
        assert "nosuid" in options, line
        assert "nodev" in options or fields[4] == "/dev", line


def test_it_has_three_descriptors_and_all_are_pipes(report: dict[str, Any]) -> None:
    assert all(target.startswith("pipe:") for target in report["descriptors"].values())
    assert report["others"] == [3] or report["others"] == []  # 3: the listing's own


def test_it_sees_its_own_cgroup_as_the_root(report: dict[str, Any]) -> None:
    for line in report["cgroup"].splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" or set(controllers.split(",")) & {"memory", "pids", "cpu"}:
            assert path == "/", line


def test_there_is_no_interface_but_a_loopback(report: dict[str, Any]) -> None:
    assert report["interfaces"] == ["lo"]


def test_it_sees_no_process_but_its_own(report: dict[str, Any]) -> None:
    assert report["ppid"] == 1
    assert report["pids"] == [report["pid"]]


def test_only_harmless_entries_of_proc_have_anything_in_them(
    warden: LiveWarden, report: dict[str, Any]
) -> None:
    result = warden.run_one(
        shell('for f in /proc/[a-z]*; do test -f $f && test -n "$(head -c9 $f)" && echo $f; done')
    )
    shown = {name.removeprefix("/proc/") for name in result.stdout.decode().split()}
    harmless = "cpuinfo filesystems loadavg meminfo mounts stat swaps uptime version vmstat"
    assert shown <= set(harmless.split())
    assert {"kmsg", "keys", "kallsyms"} & set(report["proc"])  # they are there, and masked


def test_the_hosts_files_cannot_be_reached(report: dict[str, Any]) -> None:
    assert report["reachable"] == []
    assert report["passwd"] != Path("/etc/passwd").read_text()
    assert "root" not in report["passwd"]
    assert report["root"] == sorted(
        {"bin", "box", "dev", "etc", "lib", "proc", "run", "sbin", "tmp", "usr", "var"}
        | {name for name in ("lib32", "lib64") if os.path.exists("/" + name)}
    )


def test_its_environment_is_what_the_job_says_and_no_more(report: dict[str, Any]) -> None:
    assert set(report["environment"]) - {"LC_CTYPE"} == {"PATH", "HOME", "TMPDIR", "LANG"}
    assert report["hostname"] == "gaoler"


def test_signals_umask_and_core_dumps_are_as_a_program_expects(report: dict[str, Any]) -> None:
    blocked, ignored = (int(text, 16) for text in report["signals"])
    assert blocked == 0
    assert ignored & ~((1 << 12) | (1 << 24)) == 0  # SIGPIPE and SIGXFSZ: Python's own doing
    assert report["umask"] == "0o22"
    core = next(line for line in report["limits"].splitlines() if "core file" in line)
    assert core.split()[4:6] == ["1", "1"]


def test_its_control_group_has_the_limits_of_the_job(warden: LiveWarden) -> None:
    watched = warden.submit(job(shell("sleep 60", memory_bytes=96 * MIB, pids=33)))
    eventually(lambda: _group_values(warden, "pids.max") == {"33"}, "the limits are set")
    try:
        memory = _group_values(warden, "memory.limit_in_bytes", "memory.max")
        quota = _group_values(warden, "cpu.cfs_quota_us", "cpu.max")
    finally:
        watched.cancel()
        watched.wait()
    assert memory == {str(96 * MIB)}
    assert quota == {"100000"}  # one CPU's worth in each 100 ms


def _group_values(warden: LiveWarden, *names: str) -> set[str]:
    """What the files say in the group of the first task, in whichever hierarchy."""
    return {
        path.read_text().split()[0]
        for name in names
        for depth in ("", "*/", "*/*/")
        for path in CGROUP_ROOT.glob(f"{depth}{warden.instance}/jail-*/task-0/{name}")
    }


def test_no_descriptor_of_another_request_lives_in_a_jails_processes(warden: LiveWarden) -> None:
    """Each request's socket is held by the warden and its own jailer alone."""
    assert warden.process is not None
    watched = [warden.submit(job(shell("sleep 60"))) for _ in range(2)]
    eventually(
        lambda: (
            sum("sleep 60" in command_of(p) for p in process_tree_of(warden).get("task", [])) >= 2
        ),
        "both programs are running",
    )
    try:
        parts = process_tree_of(warden)
        for pid in parts["jailer"]:
            sockets = _kinds(pid).count("socket")
            assert sockets <= 3, (pid, _kinds(pid))  # warden, request, supervisor
        for pid in parts["init"]:
            assert _kinds(pid).count("socket") == 0
    finally:
        for each in watched:
            each.cancel()
            each.wait()


def process_tree_of(warden: LiveWarden) -> dict[str, list[int]]:
    """jailer, supervisor, init and task below the warden of the tests."""
    assert warden.process is not None
    tree = process_tree(os.getpid())
    assert warden.process.pid in tree["warden"]
    return tree


def _kinds(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    return [os.readlink(f"{folder}/{name}").split(":")[0] for name in os.listdir(folder)]
