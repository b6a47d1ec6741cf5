"""What tests of the real sandbox share: a warden or a whole service, and a look at the host.

Everything that is made here carries an instance name of its own and a UID range of its own,
so a service that runs on the same machine is neither disturbed nor looked at.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaoler.cli import specs
from gaoler.config.settings import Settings, load
from gaoler.sandbox.client import RunningJob
from gaoler.sandbox.job import (
    Event,
    Failed,
    Finished,
    InputFile,
    Job,
    Limits,
    Pipe,
    Step,
    Task,
    TaskDone,
    TaskResult,
    TornDown,
)
from tests.emulation import stretched

MIB = 1 << 20
MS = 1_000_000
USUAL_MS = int(stretched(10_000))  # of a task that names no time
LIMIT_S = stretched(30.0)  # of every wait: a test that needs it has failed
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/box",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
}
# Away from the default range, and one for each test process.
_UIDS_EACH = 512
_FIRST_UID = 300_000 + (os.getpid() % 1_000) * _UIDS_EACH
CGROUP_ROOT = Path("/sys/fs/cgroup")
_ROOT = Path(__file__).parent.parent
_WARDENS = ("gaoler.sandbox.warden", "tests.alterations.warden")


# --- jobs ---------------------------------------------------------------------------------


def task(
    cmd: str,
    *args: str,
    stdin: bytes = b"",
    files: dict[str, bytes] | None = None,
    collect: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    working_dir: str = ".",
    profile: str = "standard_v1",
    wall_ms: int = USUAL_MS,
    wall_promised: bool = False,
    cpu_ms: int = USUAL_MS,
    memory_bytes: int = 256 * MIB,
    pids: int = 64,
    output_bytes: int = MIB,
    file_bytes: int = 128 * MIB,
    stack_bytes: int = 64 * MIB,
) -> Task:
    """One program with limits that suit a test."""
    return Task(
        cmd=cmd,
        args=args,
        env={**ENVIRONMENT, **(env or {})},
        stdin=stdin,
        files=tuple(InputFile(path, 0o755, data) for path, data in (files or {}).items()),
        working_dir=working_dir,
        profile=profile,
        limits=Limits(wall_ms, cpu_ms, memory_bytes, pids, output_bytes, file_bytes, stack_bytes),
        wall_promised=wall_promised,
        collect=collect,
    )


def python(source: str, *args: str, **limits: Any) -> Task:
    """A Python program as a task; it lies in /box/probe.py."""
    files = {**limits.pop("files", {}), "probe.py": source.encode()}
    return task("/usr/bin/python3", "probe.py", *args, files=files, **limits)


def shell(script: str, **limits: Any) -> Task:
    return task("/bin/sh", "-c", script, **limits)


def job(
    *steps: Task | list[Task] | Step,
    budget_ms: int = 2 * USUAL_MS,
    stop_on_failure: bool = False,
    workspace_bytes: int = 128 * MIB,
    output_bytes: int = 16 * MIB,
) -> Job:
    """A job whose time starts now."""
    return Job(
        request_id="test",
        steps=tuple(_step(step) for step in steps),
        deadline_ns=time.monotonic_ns() + budget_ms * MS,
        stop_on_failure=stop_on_failure,
        workspace_bytes=workspace_bytes,
        output_bytes=output_bytes,
        memory_bytes=2048 * MIB,
    )


def _step(given: Task | list[Task] | Step) -> Step:
    if isinstance(given, Step):
        return given
    return Step(tuple(given) if isinstance(given, list) else (given,))


def piped(*tasks: Task, pipes: tuple[tuple[int, int], ...]) -> Step:
    return Step(tasks, tuple(Pipe(source, target) for source, target in pipes))


@dataclass(eq=False)
class Watched:
    """A job under way and all that was heard of it."""

    events: list[Event] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    running: RunningJob | None = None

    def hear(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.ended.set()
        if isinstance(event, TornDown) and not event.quarantined:
            self.gone.set()

    def cancel(self) -> None:
        assert self.running is not None
        self.running.cancel()

    def wait(self) -> Watched:
        """Until it is torn down; fails the test where that does not come."""
        assert self.gone.wait(LIMIT_S), f"never torn down: {self.events}"
        return self

    @property
    def failure(self) -> Failed | None:
        return next((e for e in self.events if isinstance(e, Failed)), None)

    @property
    def results(self) -> dict[tuple[int, int], TaskResult]:
        return {(e.step, e.task): e.result for e in self.events if isinstance(e, TaskDone)}


# --- a warden without a service -----------------------------------------------------------

_counter = itertools.count()


class LiveWarden:
    """A warden of the tests' own, and a client of it.

    `alterations`: what is taken out of it or broken in it, see tests/alterations/warden.py.
    """

    def __init__(self, folder: Path, alterations: Sequence[str] = (), **overrides: Any) -> None:
        number = next(_counter)
        self.alterations = alterations
        self.settings = Settings(
            state_dir=folder / "state",
            runtime_dir=folder,
            sandbox_readonly_paths=load({}).sandbox_readonly_paths,
            **{
                "uid_range": (_FIRST_UID, _FIRST_UID + _UIDS_EACH - 1),
                "max_concurrency": 8,
                "tasks_memory_bytes": 16_384 * MIB,
                **overrides,
            },
        )
        self.instance = f"gaoler-t{os.getpid():x}-{number}"
        self.spec = specs.make_spec(self.settings, self.instance, 0, 0)
        os.makedirs(self.spec.root_dir)
        self.process: subprocess.Popen[bytes] | None = None
        self.client = specs.make_client(self.settings, self.instance)

    def start(self) -> LiveWarden:
        """Start the warden, and the client the first time."""
        spec_read, spec_write = os.pipe()
        os.write(spec_write, self.spec.dump())
        os.close(spec_write)
        alive_read, self.lifeline = os.pipe()
        ready_read, ready_write = os.pipe()
        given = (spec_read, alive_read, ready_write)
        module = _WARDENS[1] if self.alterations else _WARDENS[0]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, given), *self.alterations],
            pass_fds=given,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
        )
        for descriptor in given:
            os.close(descriptor)
        assert select.select([ready_read], [], [], LIMIT_S)[0]
        assert os.read(ready_read, 1) == b"1", "the warden did not start"
        os.close(ready_read)
        if not self.client._thread.is_alive():
            self.client.open()
        self.await_client()
        self.homes = groups_of(self.instance)
        return self

    def jails(self) -> list[str]:
        """The groups of its jails that there are now."""
        return [
            f"{home}/{name}"
            for home in self.homes
            for name in os.listdir(home)
            if name.startswith("jail-")
        ]

    def await_client(self) -> None:
        eventually(lambda: self.client.ready() is None, "the client connects")

    def stop(self) -> None:
        """End it in good order and see that nothing is left."""
        assert self.process is not None
        os.close(self.lifeline)
        assert self.process.wait(LIMIT_S) == 0
        self.client.close()
        assert left_on_host(self.instance, self.settings.uid_range) == []

    def kill(self) -> None:
        """As a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT_S)
        os.close(self.lifeline)

    def submit(self, wanted: Job) -> Watched:
        watched = Watched()
        watched.running = self.client.start(wanted, watched.hear)
        return watched

    def run(self, *steps: Task | list[Task] | Step, **options: Any) -> list[list[TaskResult]]:
        """Run steps to their end; the results in the steps' shape.  Fails where we failed."""
        wanted = job(*steps, **options)
        watched = self.submit(wanted).wait()
        assert watched.failure is None, watched.failure
        results = watched.results
        return [
            [results[s, t] for t in range(len(step.tasks))] for s, step in enumerate(wanted.steps)
        ]

    def run_one(self, wanted: Task, **options: Any) -> TaskResult:
        return self.run(wanted, **options)[0][0]


# --- a whole service ----------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    body: Any
    headers: dict[str, str]


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class LiveService:
    """`gaoler serve` on ports of its own."""

    def __init__(self, folder: Path, wrapper: tuple[str, ...] = (), **environment: str) -> None:
        self.wrapper = wrapper  # a command that execs the one that follows it
        self.port, self.internal_port = free_port(), free_port()
        self.log_path = folder / "serve.log"
        self.environment = {
            "PATH": os.environ["PATH"],
            "BIND": f"127.0.0.1:{self.port}",
            "INTERNAL_BIND": f"127.0.0.1:{self.internal_port}",
            "STATE_DIR": str(folder / "state"),
            "RUNTIME_DIR": str(folder / "run"),
            "UID_RANGE": f"{_FIRST_UID}-{_FIRST_UID + _UIDS_EACH - 1}",
            "MAX_CONCURRENCY": "2",
            **environment,
        }
        self.settings = load(self.environment)
        self.instance = specs.instance_of(self.settings)
        self.process: subprocess.Popen[bytes] | None = None
        # As bin/serve does.
        self.settings.state_dir.mkdir(mode=0o750, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.settings.state_dir, self.settings.service_user)

    def start(self) -> LiveService:
        """Start it and wait for the line that says how to try it."""
        log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [*self.wrapper, sys.executable, "-m", "gaoler.cli.main", "serve"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        log.close()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if b"curl" in line:
                return self
        self.process.wait(LIMIT_S)
        self.process.stdout.close()
        raise AssertionError(f"the service did not start:\n{self.log_path.read_text()}")

    def stop(self) -> int:
        """SIGTERM; its exit code.  Nothing may be left afterwards."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        eventually(lambda: self.left_on_host() == [], lambda: f"left: {self.left_on_host()}")
        return code

    def left_on_host(self) -> list[str]:
        return left_on_host(self.instance, self.settings.uid_range)

    def pids(self) -> dict[str, list[int]]:
        """The service's own processes by their part: serve, warden, arbiter, worker, jailer,
        supervisor, init, task."""
        assert self.process is not None
        return process_tree(self.process.pid)

    def request(
        self,
        method: str = "POST",
        path: str = "/api/v1/execute",
        body: Any = None,
        headers: dict[str, str] | None = None,
        internal: bool = False,
        timeout_s: float = 2 * LIMIT_S,
    ) -> HttpAnswer:
        port = self.internal_port if internal else self.port
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            data,
            {"Content-Type": "application/json", **(headers or {})},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return HttpAnswer(answer.status, json.load(answer), _lower(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, json.load(error), _lower(error.headers))

    def execute(self, *steps: Any, **envelope: Any) -> HttpAnswer:
        return self.request(body={"steps": list(steps), **envelope})

    def queue(self) -> Any:
        return self.request("GET", "/internal/queue", internal=True).body

    def is_idle(self) -> bool:
        """True where no request runs or waits and every slot is free."""
        picture = self.queue()
        return (
            not picture["running"]
            and not picture["waiting"]
            and picture["slots"]["free"] == picture["slots"]["total"]
        )


# --- looking at the host ------------------------------------------------------------------


def eventually(true: Any, what: Any, limit_s: float = LIMIT_S) -> None:
    """Wait until a condition of another process holds; there is no event for it here."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.01)


def processes() -> Iterator[tuple[int, int, int, str]]:
    """(pid, parent, real UID, command line) of every process of the host."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = Path("/proc", name)
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines()
            )
            if status["State"].split()[0] in "ZX":
                continue
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            yield int(name), int(status["PPid"]), int(status["Uid"].split()[0]), command


def command_of(pid: int) -> str:
    """The command line of a process, "" once it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def process_tree(top: int) -> dict[str, list[int]]:
    """The parts of a running service below `gaoler serve`, or of a warden."""
    children: dict[int, list[tuple[int, int, str]]] = {}
    for pid, parent, uid, command in processes():
        children.setdefault(parent, []).append((pid, uid, command))
    parts: dict[str, list[int]] = {"serve": [top]}
    names = ("jailer", "supervisor", "init", "task")

    def below(pid: int, depth: int) -> None:
        for child, _, _ in children.get(pid, []):
            parts.setdefault(names[min(depth, 3)], []).append(child)
            below(child, depth + 1)

    for pid, _, command in children.get(top, []):
        if any(module in command for module in _WARDENS):
            parts.setdefault("warden", []).append(pid)
            below(pid, 0)
        else:
            parts.setdefault("arbiter", []).append(pid)
            parts["worker"] = [child for child, _, _ in children.get(pid, [])]
    return parts


def left_on_host(instance: str, uids: tuple[int, int]) -> list[str]:
    """Every trace of an instance: groups, mounts, processes of its users."""
    found = groups_of(instance)
    found += mounts_and_processes(instance, uids)
    return found


def groups_of(instance: str) -> list[str]:
    """The instance's groups, one in each hierarchy, wherever its home is."""
    return [
        path
        for pattern in ("", "*/", "*/*/", "*/*/*/")
        for path in glob.glob(f"{CGROUP_ROOT}/{pattern}{instance}")
    ]


def mounts_and_processes(instance: str, uids: tuple[int, int]) -> list[str]:
    """Mounts that the host sees, and processes of the instance's users."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if instance in line]
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        uid = _uid_of(pid)
        if uid is not None and uids[0] <= uid <= uids[1]:
            found.append(f"process {pid} of UID {uid}: {command_of(pid)}")
    return found


def _uid_of(pid: int) -> int | None:
    """The real UID of a process that has not ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read(4096)
    except OSError:
        return None
    if b"\nState:\tZ" in status or b"\nState:\tX" in status:
        return None
    return int(status.partition(b"\nUid:\t")[2].split(None, 1)[0])


def jails_on_host(instance: str) -> list[str]:
    """The groups of jails that there are now."""
    return [path for home in groups_of(instance) for path in glob.glob(f"{home}/jail-*")]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
