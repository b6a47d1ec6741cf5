"""The memory that tasks may share is taken from the host, or from a cgroup above us."""

from __future__ import annotations

from pathlib import Path

import pytest

from gaoler.config.host import memory_for_tasks_bytes

MIB = 2**20


def host(root: Path, cgroups: str, **limits: str) -> Path:
    """A root folder with 1000 MiB of memory; `limits` has file names with `__` for `/`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {1000 * 1024} kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(cgroups)
    for name, text in limits.items():
        limit_file = root / "sys/fs/cgroup" / name.replace("__", "/")
        limit_file.parent.mkdir(parents=True, exist_ok=True)
        limit_file.write_text(text + "\n")
    return root


def test_without_a_limit_it_is_four_fifths_of_the_host(tmp_path: Path) -> None:
    assert memory_for_tasks_bytes(host(tmp_path, "")) == 800 * MIB


@pytest.mark.parametrize(
    ("cgroups", "limits"),
    [
        ("0::/a/b\n", {"a__b__memory.max": str(500 * MIB)}),
        ("0::/a/b\n", {"a__memory.max": str(500 * MIB), "a__b__memory.max": "max"}),
        ("0::/not/here\n", {"memory.max": str(500 * MIB)}),
        ("4:memory:/a\n0::/\n", {"memory__a__memory.limit_in_bytes": str(500 * MIB)}),
        ("4:cpu,memory:/host/id\n", {"memory__memory.limit_in_bytes": str(500 * MIB)}),
        ("4:memory:/\n0::/a\n", {"unified__a__memory.max": str(500 * MIB)}),
    ],
)
def test_the_smallest_limit_on_the_way_to_the_root_counts(
    tmp_path: Path, cgroups: str, limits: dict[str, str]
) -> None:
    assert memory_for_tasks_bytes(host(tmp_path, cgroups, **limits)) == 400 * MIB


def test_a_limit_above_the_hosts_memory_changes_nothing(tmp_path: Path) -> None:
    root = host(
        tmp_path, "4:memory:/\n", **{"memory__memory.limit_in_bytes": "9223372036854771712"}
    )
    assert memory_for_tasks_bytes(root) == 800 * MIB


def test_a_limit_of_somebody_elses_cgroup_does_not_count(tmp_path: Path) -> None:
    root = host(tmp_path, "0::/a\n", **{"b__memory.max": str(MIB)})
    assert memory_for_tasks_bytes(root) == 800 * MIB
