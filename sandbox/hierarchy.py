"""Which control group layout this host has."""

from __future__ import annotations

import os

from gaoler.sandbox import cgroup_v1, cgroup_v2
from gaoler.sandbox.cgroup import Layout


class Unsupported(Exception):
    """The host has no layout that holds a task; the text says what is missing."""


def find_layout() -> Layout:
    """The host's layout, with controllers handed down where it is v2.  Raises Unsupported."""
    found = look()
    if isinstance(found, cgroup_v2.UnifiedLayout):
        try:
            found.settle()
        except OSError as error:
            raise Unsupported(f"cgroup v2 controllers cannot be handed down: {error}") from error
    return found


def look() -> Layout:
    """The host's layout; changes nothing.  Raises Unsupported.

    v1 and hybrid hosts are known by a mounted v1 memory controller.
    """
    tree = v2_mount()
    if tree is None:
        raise Unsupported("no cgroup2 tree is mounted")
    v1 = cgroup_v1.find_mounts()
    if not v1:
        missing = cgroup_v2.missing_controllers(tree)
        if missing:
            raise Unsupported(f"cgroup v2 controllers not available: {', '.join(missing)}")
        if not os.access(tree, os.W_OK):
            raise Unsupported(f"{tree} is mounted read-only")
        return cgroup_v2.UnifiedLayout(tree)
    missing = [name for name in cgroup_v1.CONTROLLERS if name not in v1]
    if missing:
        raise Unsupported(f"cgroup v1 controllers not mounted: {', '.join(missing)}")
    return cgroup_v1.HybridLayout({**v1, "v2": tree})


def v2_mount() -> str | None:
    """Where the v2 tree is mounted, or None."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            _, target, kind, *_ = line.split()
            if kind == "cgroup2":
                return target
    return None
