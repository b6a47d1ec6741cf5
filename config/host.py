"""What the defaults take from the host: its processors and its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_for_tasks_bytes(root: Path = Path("/")) -> int:
    """80 % of the memory that the service may use.

    That is the host's, or less where a cgroup of this process or one above it has a
    limit.  `root` is where /proc and /sys are looked for.
    """
    return min(_host_memory_bytes(root), *_cgroup_limits_bytes(root)) * 4 // 5


def _host_memory_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise RuntimeError("/proc/meminfo has no MemTotal")


def _cgroup_limits_bytes(root: Path) -> Iterator[int]:
    """Every limit on the way from this process's cgroups up to the roots of their trees.

    In a container the names in /proc/self/cgroup may be the host's while the tree shows
    the container's part alone: what is not there is passed over, and the root is looked
    at in any case.
    """
    yield 2**63  # so that there is always one
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        for tree, limit_file in _trees(root, controllers):
            cgroup = tree / name.lstrip("/")
            for folder in [cgroup, *cgroup.parents]:
                if folder.is_relative_to(tree):
                    yield from _limit_bytes(folder / limit_file)


def _trees(root: Path, controllers: str) -> list[tuple[Path, str]]:
    mounted = root / "sys/fs/cgroup"
    if controllers == "":
        return [(mounted, "memory.max"), (mounted / "unified", "memory.max")]
    if "memory" in controllers.split(","):
        return [(mounted / "memory", "memory.limit_in_bytes")]
    return []


def _limit_bytes(limit_file: Path) -> Iterator[int]:
    try:
        text = limit_file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # else "max"
        yield int(text)
