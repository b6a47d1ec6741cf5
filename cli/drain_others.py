"""Which services run on this host, for somebody whose settings name none of them.

They are known by the locks in RUNTIME_DIR: in that of the settings at hand and in the usual one.
What a service's STATE_DIR is stands only in its environment, which root alone may read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gaoler.cli import instances, specs
from gaoler.config.settings import Settings, SettingsError, load, table


def text(settings: Settings) -> str:
    """The services that run in one sentence, empty where none can be seen."""
    found = list(_found({settings.runtime_dir, table()["RUNTIME_DIR"].default()}))
    return f"; what does run: {'; '.join(found)}" if found else ""


def _found(folders: set[Path]) -> Iterator[str]:
    for folder in sorted(folders):
        for lock in sorted(folder.glob("gaoler-*.lock")):
            runtime_dir = str(lock.with_suffix(""))
            service = instances.find(runtime_dir)
            if service is not None:
                pid = _pid_of(service)
                os.close(service)
                if pid > 0:
                    yield f"process {pid} with {_where(pid, runtime_dir)}"


def _pid_of(descriptor: int) -> int:
    """The number of a pidfd's process, -1 where it has just ended."""
    told = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    return int(told.partition("\nPid:")[2].split()[0])


def _where(pid: int, runtime_dir: str) -> str:
    """The settings to drain it with, else the folder that it has."""
    with suppress(OSError, SettingsError):
        theirs = load(_environment(pid))
        # Its settings file may have changed since.
        if specs.runtime_dir_of(theirs, specs.instance_of(theirs)) == runtime_dir:
            return f"STATE_DIR={theirs.state_dir} RUNTIME_DIR={theirs.runtime_dir}"
    return runtime_dir


def _environment(pid: int) -> dict[str, str]:
    words = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
